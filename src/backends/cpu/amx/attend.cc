// SPDX-License-Identifier: Apache-2.0
// The level amx: avx512_bf16 with tiles of bf16. What is not exact in bf16 goes to avx512.
#if defined(__x86_64__)

#include <sys/syscall.h>
#include <unistd.h>

#include "backends/cpu/level_headers.h"

namespace quire::cpu::amx {

QUIRE_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi,avx2,fma,f16c")
// Each uses the ones before it.
// clang-format off
#include "backends/cpu/avx512/vec.inl"
#if defined(QUIRE_EMULATED_CPU)
#include "emulated_cpu/bf16_instructions.inl"
#include "emulated_cpu/tile_instructions.inl"
#else
#include "backends/cpu/avx512_bf16/instructions.inl"
#include "backends/cpu/amx/instructions.inl"
#endif
#include "backends/cpu/constants.inl"
#include "backends/cpu/matrix.inl"
#include "backends/cpu/panels.inl"
#include "backends/cpu/amx/int8.inl"
#include "backends/cpu/pairs.inl"
#include "backends/cpu/softmax.inl"
#include "backends/cpu/amx/exp2.inl"
#include "backends/cpu/amx/tiles.inl"
#include "backends/cpu/item_rows.inl"
#include "backends/cpu/scores_of_chunk.inl"
#include "backends/cpu/quick_softener.inl"
#include "backends/cpu/chunk_of_head.inl"
#include "backends/cpu/pipeline.inl"
#include "backends/cpu/attend_item.inl"
// clang-format on

void attend_items(const AttendCall& call, std::span<const WorkItem> items, const WorkItem* next,
                  const Scratch& scratch) noexcept {
  const bool done =
      call.spec.q_dtype == DType::kBF16 &&
      dispatch_dtype_among<BFloat16, Float8E4M3, Float8E5M2, std::int8_t>(
          call.cache.format.dtype, [&]<class T>() {
            AmxDot::begin(items[0].rows.size(), call.cache.format.layout == KvLayoutId::kPlain);
            attend_items_of<AmxDot, T>(call, items, next, scratch);
            AmxDot::end();
          });
  if (!done) avx512::attend_items(call, items, next, scratch);
}
QUIRE_TARGET_END

bool request_tiles() noexcept {
  return ask_for_tiles();
}

}  // namespace quire::cpu::amx

#endif

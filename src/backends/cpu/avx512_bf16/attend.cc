// SPDX-License-Identifier: Apache-2.0
// The level avx512_bf16: avx512 with VBMI, and products of bf16 pairs. What is not exact in bf16
// goes to avx512.
#if defined(__x86_64__)

#include "backends/cpu/level_headers.h"

namespace quire::cpu::avx512_bf16 {

QUIRE_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi,avx512vnni,fma,f16c")
// Each uses the ones before it.
// clang-format off
#include "backends/cpu/avx512/vec.inl"
#if defined(QUIRE_EMULATED_CPU)
#include "emulated_cpu/bf16_instructions.inl"
#else
#include "backends/cpu/avx512_bf16/instructions.inl"
#endif
#include "backends/cpu/constants.inl"
#include "backends/cpu/matrix.inl"
#include "backends/cpu/panels.inl"
#include "backends/cpu/avx512_bf16/int8.inl"
#include "backends/cpu/pairs.inl"
#include "backends/cpu/softmax.inl"
#include "backends/cpu/f32_ops.inl"
#include "backends/cpu/words.inl"
#include "backends/cpu/avx512_bf16/dot.inl"
#include "backends/cpu/item_rows.inl"
#include "backends/cpu/scores_of_chunk.inl"
#include "backends/cpu/quick_softener.inl"
#include "backends/cpu/chunk_of_head.inl"
#include "backends/cpu/pipeline.inl"
#include "backends/cpu/attend_item.inl"
#include "backends/cpu/int8_items.inl"
// clang-format on

void attend_items(const AttendCall& call, std::span<const WorkItem> items, const WorkItem* next,
                  const Scratch& scratch) noexcept {
  if (call.spec.q_dtype != DType::kBF16) {
    avx512::attend_items(call, items, next, scratch);
    return;
  }
  const auto attend = [&]<class T>(std::span<const WorkItem> some, const Scratch& own) {
    attend_items_of<Bf16Dot, T>(call, some, next, own);
  };
  if (call.cache.format.dtype == DType::kI8) {
    attend_int8(call, items, next, scratch,
                [&](std::span<const WorkItem> some, const Scratch& own) {
                  attend.template operator()<std::int8_t>(some, own);
                });
  } else if (!dispatch_dtype_among<BFloat16, Float8E4M3, Float8E5M2>(
                 call.cache.format.dtype,
                 [&]<class T>() { attend.template operator()<T>(items, scratch); })) {
    avx512::attend_items(call, items, next, scratch);
  }
}
QUIRE_TARGET_END

}  // namespace quire::cpu::avx512_bf16

#endif

// SPDX-License-Identifier: Apache-2.0
// The GPU kernels on the emulator: a few small cases of the conformance list that reach every
// kernel and every feature, with every load and store of a kernel checked.
#include "emulated_gpu/emulated_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "conformance/case_list.h"
#include "conformance/run.h"

namespace quire::testing {
namespace {

using conformance::Case;
using conformance::CaseResult;
using conformance::CaseStatus;

// Streamed rows, tiles of rows and portable rows; every stored format and instance of dims; splits,
// masks, biases, trees, layouts; append, copies, merges.
constexpr std::string_view kCases[] = {
    "decode/basic",
    "decode/head_dim/128",
    "decode/head_dim/256",
    "decode/v_in_k/192_128",
    "decode/group/7",
    "decode/block_size/1",
    "decode/block_size/19",
    "decode/length/zero_and_one",
    "decode/types/f32_f32",
    "decode/types/f16_f16",
    "decode/types/bf16_f8e4m3_token_head",
    "decode/types/bf16_f8e5m2_head",
    "decode/types/f16_i8_token_head",
    "decode/mask/window_5",
    "decode/feature/all",
    "decode/data/marked_bf16_1100",
    "decode/cache/ragged",
    "decode/tensors/padding_rows",
    "decode/verify/basic",
    "prefill/basic",
    "prefill/head_dim/72",
    "prefill/head_dim/128",
    "prefill/head_dim/256",
    "prefill/length/more_queries_than_keys",
    "prefill/types/bf16_f8e4m3_token_head",
    "prefill/types/bf16_f8e5m2_head",
    "prefill/types/f16_i8_head",
    "prefill/tensors/odd",
    "prefill/encoder/window_4_4",
    "mixed/everything",
    "mixed/padding",
    "mixed/tree/depths_alibi",
    "cross/feature/bias_full",
    "cache/append/f8e4m3_token_head_from_f32",
    "cache/append/place/pair_tiled_i8_token_head",
    "cache/copy_blocks/preferred",
    "cache/copy_region/types_i8_token_head",
    "cache/export/pair_tiled_i8_token_head",
    "merge/partials/3",
};
static_assert(std::size(kCases) <= 40, "they are run by every change");

// With wide warps and in shuffled order, one of each kernel.
constexpr std::string_view kWideCases[] = {
    "decode/basic",
    "decode/types/bf16_f8e4m3_token_head",
    "decode/feature/all",
    "prefill/basic",
    "mixed/tree/depths_alibi",
    "cache/append/f8e4m3_token_head_from_f32",
};

Case find_case(const std::vector<Case>& cases, std::string_view name) {
  const auto found =
      std::find_if(cases.begin(), cases.end(), [name](const Case& c) { return c.name == name; });
  require(found != cases.end(), "no case is named ", name);
  return *found;
}

void expect_passes(AttentionBackend& backend, const Case& c) {
  const CaseResult result = conformance::run_case(backend, c);
  EXPECT_TRUE(result.status == CaseStatus::kPassed) << c.name << ": " << result.reason;
}

void expect_passes(const EmulatedGpuOptions& options, std::span<const std::string_view> names) {
  const std::unique_ptr<AttentionBackend> backend = make_emulated_gpu(options);
  const std::vector<Case> cases = conformance::all_cases();
  for (const std::string_view name : names) {
    expect_passes(*backend, find_case(cases, name));
  }
}

TEST(EmulatedGpu, Passes) {
  expect_passes({}, kCases);
}

TEST(EmulatedGpu, PassesWithWideWarpsInShuffledOrder) {
  expect_passes({.warp_width = 64, .seed = 7}, kWideCases);
}

// What does not fit such a device is computed by the kernel that needs none.
TEST(EmulatedGpu, PassesWithLittleSharedMemory) {
  expect_passes({.shared_bytes = 64 * 1024}, kWideCases);
}

// f32 has no kernel that takes items in runs, also where there are more of them than thread blocks.
TEST(EmulatedGpu, PassesSplitDecodesOfF32) {
  Case c = find_case(conformance::all_cases(), "decode/types/f32_f32");
  c.name = "decode/types/f32_f32_split";
  c.sequences = {{1, 1500}};
  const std::unique_ptr<AttentionBackend> backend = make_emulated_gpu();
  expect_passes(*backend, c);
}

}  // namespace
}  // namespace quire::testing

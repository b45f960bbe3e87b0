// SPDX-License-Identifier: Apache-2.0
#include "benchmark/roof.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "benchmark/loaded_case.h"

namespace quire::benchmark {
namespace {

using ::testing::ElementsAre;

Work work_of_shape(const CustomShape& shape, Operation operation = Operation::kAttend) {
  BenchCase c = custom_case(shape);
  c.operation = operation;
  return work_of(c, bench_outline(c));
}

// 16 sequences x 4096 keys x 8 heads x (128 + 128) dims x 2 bytes = 256 MiB, and 32 query heads
// multiply and add each of them: 4 FLOP per byte.
TEST(Work, Decode) {
  const Work work = work_of_shape({.batch = "q1@4096*16"});
  EXPECT_EQ(work.bytes, 256LL << 20);
  EXPECT_EQ(work.unique_bytes, work.bytes);
  EXPECT_EQ(work.flops, 4 * work.bytes);
  EXPECT_EQ(work.moved_bytes, 0);
}

TEST(Work, CausalPrefillCountsVisiblePairs) {
  const Work work = work_of_shape({.batch = "q5@7"});  // 3 + 4 + 5 + 6 + 7 keys seen
  EXPECT_EQ(work.flops, 2LL * (3 + 4 + 5 + 6 + 7) * 32 * 256);
  EXPECT_EQ(work.bytes, 7LL * 8 * 256 * 2);
}

TEST(Work, ScalesPerTokenAndHeadAreRead) {
  const Work work = work_of_shape(
      {.batch = "q1@10", .kv_dtype = DType::kI8, .scales = ScaleGranularity::kPerTokenHead});
  EXPECT_EQ(work.bytes, 10LL * 8 * (256 + 2 * 4));
}

TEST(Work, AWindowIsAllThatIsRead) {
  const Work inside = work_of_shape({.batch = "q1@1024*2"});
  const Work windowed = work_of_shape({.batch = "q1@32768*2", .window = 1024});
  EXPECT_EQ(windowed.bytes, inside.bytes);
  EXPECT_EQ(windowed.flops, inside.flops);
}

TEST(Work, ASharedPrefixIsUniqueOnce) {
  const Work work = work_of_shape({.batch = "q1@4096*16", .shared_tokens = 3072});
  const std::int64_t token_bytes = 8LL * 256 * 2;
  EXPECT_EQ(work.bytes, 16 * 4096 * token_bytes);
  EXPECT_EQ(work.unique_bytes, (3072 + 16 * 1024) * token_bytes);
}

TEST(Work, AppendReadsAndWrites) {
  const Work bf16 = work_of_shape({.batch = "q512@512*16"}, Operation::kAppend);
  EXPECT_EQ(bf16.bytes, 8192LL * 8 * 256 * 2);
  EXPECT_EQ(bf16.moved_bytes, 2 * bf16.bytes);
  const Work fp8 =
      work_of_shape({.batch = "q512@512*16", .kv_dtype = DType::kF8E4M3}, Operation::kAppend);
  EXPECT_EQ(fp8.bytes, bf16.bytes);
  EXPECT_EQ(fp8.moved_bytes, bf16.bytes + bf16.bytes / 2);
}

TEST(Work, ACaseForCopyTakesAQuarterOfTheBlocks) {
  BenchCase c = custom_case({.batch = "q1@64*16", .block_size = 16});
  c.operation = Operation::kCopy;
  const conformance::Problem outline = bench_outline(c);
  EXPECT_EQ(work_of(c, outline).bytes, num_copies(outline) * 16 * 8 * 256 * 2);
  EXPECT_EQ(num_copies(outline), outline.num_blocks / 4);
}

// What lies outside every window takes one block for all.
TEST(Outline, HidesWhatNobodySees) {
  const conformance::Problem outline =
      bench_outline(custom_case({.batch = "q1@1024*2", .block_size = 16, .window = 64}));
  EXPECT_EQ(outline.num_blocks, 1 + 2 * 4);
  EXPECT_EQ(outline.sequences[1].blocks.front(), 0);
  EXPECT_NE(outline.sequences[1].blocks.back(), 0);
}

TEST(Roof, IsTheLargerOfReadingAndComputing) {
  const Work work{.bytes = 100, .flops = 400};
  const Roof read = roof_of(work, {.read = 10, .copy = 0, .peak = 100}, false);
  EXPECT_EQ(read.bound, Bound::kRead);
  EXPECT_DOUBLE_EQ(read.seconds, 10);
  const Roof peak = roof_of(work, {.read = 100, .copy = 0, .peak = 100}, false);
  EXPECT_EQ(peak.bound, Bound::kPeak);
  EXPECT_DOUBLE_EQ(peak.seconds, 4);
}

TEST(Roof, OfHotDataIsThePeakAlone) {
  const Roof roof =
      roof_of({.bytes = 100, .flops = 400}, {.read = 1, .copy = 0, .peak = 100}, true);
  EXPECT_EQ(roof.bound, Bound::kPeak);
  EXPECT_DOUBLE_EQ(roof.seconds, 4);
}

TEST(Roof, OfAppendAndCopyIsMemcpy) {
  const Roof roof = roof_of({.bytes = 100, .flops = 0, .moved_bytes = 200},
                            {.read = 1000, .copy = 25, .peak = 1}, false);
  EXPECT_EQ(roof.bound, Bound::kCopy);
  EXPECT_DOUBLE_EQ(roof.seconds, 4);
}

TEST(Peaks, ALevelMayUseWhatItHasAndWhatIsBelow) {
  const std::vector<PeakKind> all{PeakKind::kPortable,   PeakKind::kFmaAvx2, PeakKind::kFmaAvx512,
                                  PeakKind::kBf16Avx512, PeakKind::kBf16Amx, PeakKind::kInt8Amx};
  EXPECT_THAT(peaks_of_level("scalar", DType::kBF16, all), ElementsAre(PeakKind::kPortable));
  EXPECT_EQ(peaks_of_level("avx512", DType::kBF16, all).back(), PeakKind::kFmaAvx512);
  EXPECT_EQ(peaks_of_level("avx512_bf16", DType::kBF16, all).back(), PeakKind::kBf16Avx512);
  EXPECT_EQ(peaks_of_level("amx", DType::kBF16, all).back(), PeakKind::kBf16Amx);
  EXPECT_EQ(peaks_of_level("amx", DType::kF16, all).back(), PeakKind::kFmaAvx512);
  EXPECT_EQ(peaks_of_level("", DType::kBF16, all).back(), PeakKind::kBf16Amx);
}

}  // namespace
}  // namespace quire::benchmark

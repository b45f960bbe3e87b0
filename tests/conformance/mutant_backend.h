// SPDX-License-Identifier: Apache-2.0
// A backend with one deliberate bug at a time: the conformance suite has to find each of them.
//
// Without a bug it is a plain f32 implementation that passes. The bugs are those that attention
// kernels have had: borders of masks, positions, indices, rounding, states that are not reset.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backends/host_backend.h"

namespace quire::conformance {

enum class Bug : std::uint8_t {
  kNone,
  // Masks and positions.
  kWindowLeftShort,
  kWindowLeftLong,
  kWindowRightLong,
  kTopLeftCausal,
  kCausalStrict,
  kChunkShifted,
  kChunkTruncates,
  kNegativePositionsClamped,
  kTreeMsbFirst,
  kTreeAndCausal,
  kTreeRowsUnpadded,
  kDepthIgnored,
  kDepthOfQueryOnly,
  kDepthOfPlainSequence,
  // Scores.
  kSoftcapAfterBias,
  kSoftcapIgnored,
  kAlibiSign,
  kAlibiWithoutAbs,
  kAlibiOfKeyOnly,
  kAlibiSlopeOfKvHead,
  kBiasByPaddedRow,
  kBiasOfKvHead,
  kBiasOfFirstSequence,
  kBiasAddedToNaN,
  // Softmax, lse, sinks.
  kLseBase2,
  kLseWithSink,
  kSinkTwice,
  kSinkIgnored,
  kEmptyRowDivides,
  kEmptyRowLseZero,
  kNoMaximum,
  kNoRescale,
  kLosesOneKeyOfMany,
  kCountsOneKeyTwice,
  kScoresInBf16,
  kAccumulatesInBf16,
  // Where things lie.
  kStaleBlock,
  kTableOfPreviousSequence,
  kReadsPastLength,
  kZeroTimesNaN,
  kHeadModulo,
  kVInKFromTheEnd,
  kRaggedFromZero,
  kBlockIdIn16Bits,
  kScaleOfFirstToken,
  kScaleOfFirstHead,
  kScaleOfK,
  kDenseQuery,
  kDenseLse,
  kVStridesOfK,
  kIgnoresEnds,
  kWritesPaddingRows,
  // append.
  kTruncatesFp8,
  kInt8To127,
  kInfinityKept,
  kScaleByReciprocal,
  kAmaxOfInfinity,
  kTinyScale,
  kScaleOf448,
  kTouchesNeighbour,
  kStoresPaddingSlots,
  // merge.
  kMergeUnguarded,
  kMergeSinkPerPartial,
  kMergeLseBase2,
  // Copies.
  kCopyForgetsScales,
  kCopyFirstLayerOnly,
  kRegionIsBlock,
  // Plans.
  kSplitsByBatch,
  kDropsLastSplit,
  kStateNotReset,
  kStalePlan,
  kWorkspaceOverrun,
  kNumBugs,
};

const char* bug_name(Bug bug) noexcept;

// kNone first.
std::vector<Bug> all_bugs();

class MutantBackend final : public HostBackend {
 public:
  explicit MutantBackend(Bug bug) : bug_(bug) {}

  BackendInfo info() const override;

 protected:
  std::unique_ptr<PreparedBatch> do_make_prepared(const AttentionSpec& spec,
                                                  const BatchBounds& bounds,
                                                  const Workspace& workspace) override;
  WorkspaceSize do_workspace(const AttentionSpec& spec, const BatchBounds& bounds) const override;
  void do_prepare(PreparedBatch& prepared, Stream stream) override;
  void do_append(const PreparedBatch& prepared, const NewKv& new_kv, const KvCacheView& cache,
                 Stream stream) override;
  void do_attend(const PreparedBatch& prepared, const AttentionParams& params, const TensorView& q,
                 const KvSource& source, const AttentionOutput& output, Stream stream) override;
  void do_merge(std::span<const Partial> partials, ArrayView<float> sinks,
                const AttentionOutput& output, Stream stream) override;
  void do_copy_blocks(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                      std::span<const BlockCopy> copies, Stream stream) override;
  void do_copy_region(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                      const BlockRegionCopy& copy, Stream stream) override;

 private:
  Bug bug_;
  const PreparedBatch* last_ = nullptr;  // of kStateNotReset
  std::int64_t planned_sequences_ = -1;  // of kStalePlan: those of the batch before
  std::int64_t last_sequences_ = -1;
};

}  // namespace quire::conformance

// SPDX-License-Identifier: Apache-2.0
// Batches to be planned, their plan by the host, and the memory in which the plan kernel makes its
// own on the emulator: what lies outside the declared room is outside every buffer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include "emulated_gpu/emulated_kernels.h"
#include "gpu/emulator/launch.h"
#include "gpu/kernel_args.h"
#include "plan/plan.h"
#include "quire/batch.h"

namespace quire::testing {

inline constexpr std::int32_t kMostKeys = 5000;

// The lengths and block tables of a batch.
struct PlannedBatch {
  std::vector<std::int32_t> begins, ends, lens;  // [num_sequences]
  BlockTables::Kind kind = BlockTables::Kind::kPadded;
  std::int32_t block_size = 16;
  std::int64_t row_stride = 0;             // of ids
  std::vector<std::int32_t> ids;           // [num_sequences, row_stride]
  std::vector<std::int32_t> table_begins;  // [num_sequences + 1], of indexed tables
  std::vector<std::int64_t> rows;          // [num_sequences], of ragged ones

  BatchView view() const;
  PlannedBatch first(std::size_t num_sequences) const;
  // Where the table of a sequence begins, as items say it.
  std::int64_t table_begin(std::int64_t sequence) const;
  // The block of gpu::kKeysPerId keys from `key` on, 0 if they may lie in several.
  std::int32_t id_of_keys(std::int64_t sequence, std::int64_t key) const;
};

enum class Mix : std::uint8_t {
  kEqualDecodes,
  kUnlikeDecodes,
  kShortQueries,  // of few rows and of some more, and empty ones
  kWithPrefill,   // of several row tiles
  kNobody,        // no sequence has queries or keys
};
inline constexpr Mix kEveryMix[] = {Mix::kEqualDecodes, Mix::kUnlikeDecodes, Mix::kShortQueries,
                                    Mix::kWithPrefill, Mix::kNobody};
PlannedBatch make_batch(Mix mix, int num_sequences, std::int32_t block_size = 16,
                        BlockTables::Kind kind = BlockTables::Kind::kPadded);

// Two kv heads with three query heads each.
enum class Splits : std::uint8_t { kUsual, kMany };
PlanSpec tested_plan_spec(Splits splits, const Mask& mask = {.causal = true});

struct HostPlan {
  std::vector<SequencePlan> sequences;           // [num_sequences]
  std::vector<PlanOffsets> offsets;              // [num_sequences + 1]
  std::vector<gpu::Item> lists[gpu::kNumLists];  // in the order of the plan

  PlanOffsets totals() const { return offsets.back(); }
};
HostPlan plan_on_host(const PlanSpec& spec, const PlannedBatch& batch);

class DevicePlan {
 public:
  using NumRuns = std::array<std::int32_t, gpu::kNumRunLists>;

  // All that the kernel writes holds garbage until it does.
  DevicePlan(const PlanSpec& spec, const PlanOffsets& room, const NumRuns& num_runs);

  void run(const PlannedBatch& batch, const EmulatedLaunch& launch);
  // Attention over the items of a list, with nothing to attend to.
  void attend(int list);

  std::vector<gpu::Item> listed(int list) const;
  // Empty if nobody asked for them.
  const std::vector<std::int32_t>& runs(int list) const { return runs_[list]; }
  const gpu::RunStart& start(int list, std::size_t run) const { return starts_[list][run]; }
  const gpu::PlanCounts& counts() const { return counts_[0]; }
  std::uint64_t host_fault() const { return host_fault_[0]; }
  bool counters_are_zero() const;

 private:
  PlanSpec spec_;
  PlanOffsets room_;
  NumRuns num_runs_;
  std::vector<gpu::Item> lists_[gpu::kNumLists];
  std::vector<std::int32_t> runs_[gpu::kNumRunLists];
  std::vector<gpu::RunStart> starts_[gpu::kNumRunLists];
  std::vector<std::int32_t> merge_counters_;
  std::array<gpu::PlanCounts, 1> counts_;
  std::array<std::uint64_t, 1> host_fault_ = {gpu::kNoFault};
  std::list<simt::GlobalBuffer> seen_;
};

}  // namespace quire::testing

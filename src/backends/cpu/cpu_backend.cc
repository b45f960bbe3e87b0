// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/cpu_backend.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

#include "backends/cpu/attend_call.h"
#include "backends/cpu/merge_partials.h"
#include "backends/host_backend.h"
#include "base/check.h"
#include "base/cpu_features.h"
#include "base/float_rows.h"
#include "base/thread_pool.h"
#include "layout/kv_rows.h"
#include "plan/plan.h"
#include "quire/version.h"

namespace quire {
namespace cpu {
namespace {

struct Level {
  const char* name;
  AttendItem attend_item;
  bool (*present)(const CpuFeatures& features);
  bool (*preferred)(const CpuFeatures& features);  // before those that follow
};

#if defined(__x86_64__)
bool has_bf16(const CpuFeatures& cpu) {
  return cpu.avx512 && cpu.avx512_bf16 && cpu.avx512_vbmi;
}
#endif
bool always(const CpuFeatures& /*cpu*/) {
  return true;
}

// Best first.
constexpr Level kLevels[] = {
#if defined(__x86_64__)
    {.name = "amx",
     .attend_item = amx::attend_item,
     .present =
         [](const CpuFeatures& cpu) {
           return cpu.amx_bf16 && has_bf16(cpu) && amx::request_tiles();
         },
     .preferred = always},
    // Intel's cores multiply pairs at half of the rate of two f32 products, AMD's at twice.
    {.name = "avx512_bf16",
     .attend_item = avx512_bf16::attend_item,
     .present = has_bf16,
     .preferred = [](const CpuFeatures& cpu) { return cpu.vendor != "GenuineIntel"; }},
    {.name = "avx512",
     .attend_item = avx512::attend_item,
     .present = [](const CpuFeatures& cpu) { return cpu.avx512; },
     .preferred = always},
    {.name = "avx2",
     .attend_item = avx2::attend_item,
     .present = [](const CpuFeatures& cpu) { return cpu.avx2 && cpu.f16c; },
     .preferred = always},
#endif
    {.name = "scalar", .attend_item = scalar::attend_item, .present = always, .preferred = always},
};

// Those that this machine can run, best first.
std::vector<const Level*> present_levels() {
  const CpuFeatures features = detect_cpu_features();
  std::vector<const Level*> levels;
  for (const bool preferred : {true, false}) {
    for (const Level& level : kLevels) {
      if (level.preferred(features) == preferred && level.present(features)) {
        levels.push_back(&level);
      }
    }
  }
  return levels;
}

const Level& choose_level(const std::string& asked) {
  std::string name = asked;
  if (name.empty()) {
    const char* forced = std::getenv("QUIRE_CPU_ISA");
    if (forced != nullptr) name = forced;
  }
  std::string known;
  for (const Level* level : present_levels()) {
    if (name.empty() || name == level->name) return *level;
    known += concat(known.empty() ? "" : ", ", level->name);
  }
  fail(ErrorCode::kInvalidArgument, "no level of the cpu backend on this machine is named '", name,
       "'; there are: ", known);
}

// An item holds all kv heads of a decode, so that it streams whole blocks, and as many rows of one
// head as a tile in prefill.
PlanParams plan_params() {
  PlanParams params;
  params.kv_heads_per_item = 1 << 20;
  params.row_tile = kRowTile;
  params.key_tile = kChunk;
  params.item_rows = kItemRows;
  return params;
}

// What one prepared batch keeps in its workspace, in this order.
struct WorkspaceLayout {
  std::int64_t plan, pending, partials, scratch, total;
};

WorkspaceLayout workspace_layout(const PlanSpec& plan, const AttentionSpec& spec,
                                 const BatchBounds& bounds, int num_threads) {
  const PlanBounds limits = plan_bounds(plan, bounds);
  std::int64_t used = 0;
  const auto take = [&used](std::int64_t size_bytes) {
    const std::int64_t begin = used;
    used += round_up(size_bytes, 64);
    return begin;
  };
  constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
  WorkspaceLayout layout{};
  layout.plan = take(plan_bytes(bounds.max_sequences));
  layout.pending = take(limits.merges * static_cast<std::int64_t>(sizeof(std::atomic<int>)));
  layout.partials = take(limits.partial_rows * row_state_stride(spec.value_dim) * kFloat);
  layout.scratch = take(num_threads * scratch_floats(spec) * kFloat);
  layout.total = used;
  return layout;
}

// The plan of the batch, and the memory of the calls that follow it.
class CpuPrepared final : public PreparedBatch {
 public:
  CpuPrepared(const AttentionSpec& spec, const BatchBounds& bounds, const Workspace& workspace,
              int num_threads)
      : PreparedBatch(spec, bounds, workspace), plan_spec(make_plan_spec(spec, plan_params())) {
    const WorkspaceLayout layout = workspace_layout(plan_spec, spec, bounds, num_threads);
    char* memory = static_cast<char*>(workspace.host);
    plan = view_plan(memory + layout.plan, bounds.max_sequences);
    pending = reinterpret_cast<std::atomic<int>*>(memory + layout.pending);
    partials = {.data = reinterpret_cast<float*>(memory + layout.partials),
                .value_dim = spec.value_dim,
                .stride = row_state_stride(spec.value_dim)};
    scratch_memory = reinterpret_cast<float*>(memory + layout.scratch);
  }

  Scratch scratch(int thread) const {
    return scratch_at(scratch_memory + thread * scratch_floats(spec()), spec());
  }
  std::int64_t num_items() const { return plan.offsets[plan.num_sequences].items; }
  std::int64_t num_merges() const { return plan.offsets[plan.num_sequences].merges; }

  PlanSpec plan_spec;
  BatchPlan plan;
  std::atomic<int>* pending = nullptr;  // [num_merges] splits not yet done
  RowStates partials;                   // [partial_rows]
  float* scratch_memory = nullptr;      // [num_threads, scratch_floats]
};

const CpuPrepared& self(const PreparedBatch& prepared) {
  return static_cast<const CpuPrepared&>(prepared);
}

// Joins the splits of one unit in their order, whoever finished last.
void merge_unit(const AttendCall& call, const CpuPrepared& prepared, const Merge& merge,
                const RowStates& total) noexcept {
  const std::int64_t num_rows = merge.rows.size();
  for (std::int64_t head = merge.kv_heads.begin; head < merge.kv_heads.end; ++head) {
    for (std::int64_t r = 0; r < num_rows; ++r) {
      total.max(r) = -std::numeric_limits<float>::infinity();
      total.sum(r) = 0.0F;
      std::fill_n(total.o(r), total.value_dim, 0.0F);
    }
    for (std::int64_t split = 0; split < merge.num_splits; ++split) {
      const std::int64_t row = merge.partials.at(split, head, merge.rows.begin);
      merge_states(prepared.partials.from(row), num_rows, total);
    }
    store_rows(call, merge.sequence, head, merge.rows, total);
  }
}

// What follows the keys of an item: its rows are done, or wait for the other splits.
void finish_item(const AttendCall& call, const CpuPrepared& prepared, const WorkItem& item,
                 const Scratch& scratch) noexcept {
  const std::int64_t num_rows = item.rows.size();
  for (std::int64_t head = item.kv_heads.begin; head < item.kv_heads.end; ++head) {
    const RowStates states =
        scratch.states.from((head - item.kv_heads.begin) * head_row_stride(num_rows));
    if (item.num_splits == 1) {
      store_rows(call, item.sequence, head, item.rows, states);
    } else {
      const std::int64_t row = item.partials.at(item.split, head, item.rows.begin);
      std::copy_n(states.data, num_rows * states.stride, prepared.partials.o(row));
    }
  }
  // The last of the splits merges them: its decrement sees the writes of all others.
  if (item.num_splits > 1 &&
      prepared.pending[item.merge].fetch_sub(1, std::memory_order_acq_rel) == 1) {
    merge_unit(call, prepared, merge_at(prepared.plan_spec, prepared.plan, item.merge),
               scratch.states);
  }
}

// What one thread does: takes items until none is left, each before the last is finished, so that
// its first keys can be fetched meanwhile.
void attend_items(const AttendCall& call, const CpuPrepared& prepared, AttendItem attend_item,
                  std::atomic<std::int64_t>& counter, const Scratch& scratch) noexcept {
  const std::int64_t num_items = prepared.num_items();
  std::int64_t index = counter.fetch_add(1, std::memory_order_relaxed);
  if (index >= num_items) return;
  WorkItem item = item_at(prepared.plan_spec, prepared.plan, index);
  for (;;) {
    index = counter.fetch_add(1, std::memory_order_relaxed);
    const bool has_next = index < num_items;
    const WorkItem next = has_next ? item_at(prepared.plan_spec, prepared.plan, index) : WorkItem{};
    attend_item(call, item, has_next ? &next : nullptr, scratch);
    finish_item(call, prepared, item, scratch);
    if (!has_next) return;
    item = next;
  }
}

// Row `row` of new K or V into its slot.
void append_row(const TensorView& rows, const KvCacheView& cache, KvTensor tensor, std::int64_t row,
                std::int64_t slot, float* buffer) noexcept {
  const std::int64_t block = slot / cache.format.block_size;
  const std::int64_t token = slot % cache.format.block_size;
  for (std::int64_t head = 0; head < cache.num_kv_heads; ++head) {
    load_floats(rows.dtype, rows.data, row * rows.strides[0] + head * rows.strides[1],
                row_dims(cache, tensor), buffer);
    store_row(cache, tensor, block, head, token, buffer);
  }
}

class CpuBackend final : public HostBackend {
 public:
  CpuBackend(const Level& level, int num_threads) : level_(level), pool_(num_threads) {}

  BackendInfo info() const override {
    return {.name = "cpu",
            .version = version(),
            .isa = level_.name,
            .device = {},
            .batch_invariant = true};
  }

  // Pairs in tiles are read as they lie; f32 and V in K gain nothing by them.
  KvLayout preferred_layout(const AttentionSpec& spec) const override {
    const bool pays = spec.kv.dtype != DType::kF32 && !spec.kv.v_in_k;
    return pays && pair_tiled_layout_fits(spec) ? pair_tiled_layout(spec) : plain_layout(spec);
  }

 protected:
  WorkspaceSize do_workspace(const AttentionSpec& spec, const BatchBounds& bounds) const override {
    const PlanSpec plan = make_plan_spec(spec, plan_params());
    return {.host_bytes = workspace_layout(plan, spec, bounds, pool_.num_threads()).total,
            .device_bytes = 0};
  }

  std::unique_ptr<PreparedBatch> do_make_prepared(const AttentionSpec& spec,
                                                  const BatchBounds& bounds,
                                                  const Workspace& workspace) override {
    return std::make_unique<CpuPrepared>(spec, bounds, workspace, pool_.num_threads());
  }

  void do_prepare(PreparedBatch& prepared, Stream) override {
    auto& mine = static_cast<CpuPrepared&>(prepared);
    plan_batch(mine.plan_spec, prepared.batch(), mine.plan);
  }

  void do_append(const PreparedBatch& prepared, const NewKv& new_kv, const KvCacheView& cache,
                 Stream) override {
    const CpuPrepared& mine = self(prepared);
    const ArrayView<std::int64_t> slots = prepared.batch().kv.slots;
    constexpr std::int64_t kRowsPerItem = 16;
    pool_.run((slots.size + kRowsPerItem - 1) / kRowsPerItem,
              [&](std::int64_t item, int thread) noexcept {
                float* buffer = mine.scratch(thread).q;
                const std::int64_t end = std::min((item + 1) * kRowsPerItem, slots.size);
                for (std::int64_t row = item * kRowsPerItem; row < end; ++row) {
                  if (slots[row] < 0) continue;
                  append_row(new_kv.k, cache, KvTensor::kK, row, slots[row], buffer);
                  if (cache.format.v_in_k) continue;
                  append_row(new_kv.v, cache, KvTensor::kV, row, slots[row], buffer);
                }
              });
  }

  void do_attend(const PreparedBatch& prepared, const AttentionParams& params, const TensorView& q,
                 const KvSource& source, const AttentionOutput& output, Stream) override {
    const CpuPrepared& mine = self(prepared);
    const AttendCall call{.spec = prepared.spec(),
                          .params = params,
                          .q = q,
                          .cache = source.cache,
                          .output = output,
                          .batch = prepared.batch()};
    for (std::int64_t i = 0; i < mine.num_merges(); ++i) {
      const Merge merge = merge_at(mine.plan_spec, mine.plan, i);
      new (&mine.pending[i]) std::atomic<int>(static_cast<int>(merge.num_splits));
    }
    std::atomic<std::int64_t> next_item{0};
    const std::int64_t num_workers = std::min<std::int64_t>(pool_.num_threads(), mine.num_items());
    pool_.run(num_workers, [&](std::int64_t, int thread) noexcept {
      attend_items(call, mine, level_.attend_item, next_item, mine.scratch(thread));
    });
  }

  void do_merge(std::span<const Partial> partials, ArrayView<float> sinks,
                const AttentionOutput& output, Stream) override {
    const std::int64_t num_heads = output.out.shape[1];
    pool_.run(output.out.shape[0], [&](std::int64_t row, int) noexcept {
      for (std::int64_t head = 0; head < num_heads; ++head) {
        merge_partials_row(partials, sinks, output, row, head);
      }
    });
  }

 private:
  const Level& level_;
  ThreadPool pool_;
};

}  // namespace
}  // namespace cpu

std::unique_ptr<AttentionBackend> make_cpu_backend(const BackendOptions& options) {
  const cpu::Level& level = cpu::choose_level(options.isa);
  const int num_threads =
      options.num_threads > 0 ? options.num_threads : detect_cpu_features().num_cpus;
  return std::make_unique<cpu::CpuBackend>(level, num_threads);
}

std::vector<std::string> cpu_isa_levels() {
  std::vector<std::string> names;
  for (const cpu::Level* level : cpu::present_levels()) names.emplace_back(level->name);
  return names;
}

}  // namespace quire

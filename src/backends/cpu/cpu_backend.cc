// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/cpu_backend.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <initializer_list>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "backends/cpu/append_call.h"
#include "backends/cpu/attend_call.h"
#include "backends/cpu/merge_partials.h"
#include "backends/cpu/work_order.h"
#include "backends/host_backend.h"
#include "base/check.h"
#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "plan/plan.h"
#include "quire/version.h"

namespace quire {
namespace cpu {
namespace {

struct Level {
  const char* name;
  AttendItems* attend_items;
  AppendRows* append_rows;
  StoreRows* store_rows;
  MergeStates* merge_states;
  // What the level needs and the machine lacks; empty if it can run.
  std::string (*missing)(const CpuFeatures& features);
  bool (*preferred)(const CpuFeatures& features);  // before those that follow
};

struct Need {
  bool present;
  const char* name;
};
std::string missing_of(std::initializer_list<Need> needs) {
  std::string missing;
  for (const Need& need : needs) {
    if (!need.present) missing += concat(missing.empty() ? "" : ", ", need.name);
  }
  return missing;
}

bool always(const CpuFeatures& /*cpu*/) {
  return true;
}

// Best first.
constexpr Level kLevels[] = {
#if defined(__x86_64__)
    {.name = "amx",
     .attend_items = amx::attend_items,
     .append_rows = avx512::append_rows,
     .store_rows = avx512::store_rows,
     .merge_states = avx512::merge_states,
     .missing =
         [](const CpuFeatures& cpu) {
           std::string missing = missing_of({{cpu.amx_bf16, "amx_bf16"},
                                             {cpu.avx512, "avx512"},
                                             {cpu.avx512_bf16, "avx512_bf16"},
                                             {cpu.avx512_fp16, "avx512_fp16"},
                                             {cpu.avx512_vbmi, "avx512_vbmi"}});
           if (!missing.empty() || amx::request_tiles()) return missing;
           return std::string("the system's permission to use tile registers");
         },
     .preferred = always},
    // Intel's cores multiply pairs at half of the rate of two f32 products, AMD's at twice.
    {.name = "avx512_bf16",
     .attend_items = avx512_bf16::attend_items,
     .append_rows = avx512::append_rows,
     .store_rows = avx512::store_rows,
     .merge_states = avx512::merge_states,
     .missing =
         [](const CpuFeatures& cpu) {
           return missing_of({{cpu.avx512, "avx512"},
                              {cpu.avx512_bf16, "avx512_bf16"},
                              {cpu.avx512_vbmi, "avx512_vbmi"},
                              {cpu.avx512_vnni, "avx512_vnni"}});
         },
     .preferred = [](const CpuFeatures& cpu) { return cpu.vendor != "GenuineIntel"; }},
    {.name = "avx512",
     .attend_items = avx512::attend_items,
     .append_rows = avx512::append_rows,
     .store_rows = avx512::store_rows,
     .merge_states = avx512::merge_states,
     .missing =
         [](const CpuFeatures& cpu) {
           return missing_of({{cpu.avx512, "avx512"}});
         },
     .preferred = always},
    {.name = "avx2",
     .attend_items = avx2::attend_items,
     .append_rows = avx2::append_rows,
     .store_rows = avx2::store_rows,
     .merge_states = avx2::merge_states,
     .missing =
         [](const CpuFeatures& cpu) {
           return missing_of({{cpu.avx2, "avx2"}, {cpu.f16c, "f16c"}});
         },
     .preferred = always},
#endif
    {.name = "scalar",
     .attend_items = scalar::attend_items,
     .append_rows = scalar::append_rows,
     .store_rows = scalar::store_rows,
     .merge_states = scalar::merge_states,
     .missing = [](const CpuFeatures&) { return std::string(); },
     .preferred = always},
};

// Those that this machine can run, best first.
std::vector<const Level*> present_levels() {
  const CpuFeatures features = detect_cpu_features();
  std::vector<const Level*> levels;
  for (const bool preferred : {true, false}) {
    for (const Level& level : kLevels) {
      if (level.preferred(features) == preferred && level.missing(features).empty()) {
        levels.push_back(&level);
      }
    }
  }
  return levels;
}

const Level& choose_level(const std::string& asked) {
  std::string name = asked;
  const char* source = "";
  if (name.empty()) {
    const char* forced = std::getenv("QUIRE_CPU_ISA");
    if (forced != nullptr && *forced != '\0') {
      name = forced;
      source = "QUIRE_CPU_ISA: ";
    }
  }
  std::string known;
  for (const Level* level : present_levels()) {
    if (name.empty() || name == level->name) return *level;
    known += concat(known.empty() ? "" : ", ", level->name);
  }
  const std::string missing = missing_for_cpu_level(name, detect_cpu_features());
  fail(ErrorCode::kInvalidArgument, source, "level '", name, "' of the cpu backend ", missing,
       "; this machine has: ", known);
}

// Where several processes share all CPUs, their user may want none of them to keep threads apart.
bool keeps_threads_apart() {
  const char* pin = std::getenv("QUIRE_CPU_PIN");
  const std::string_view value = pin != nullptr ? pin : "";
  require(value.empty() || value == "0" || value == "1", "QUIRE_CPU_PIN: must be 0 or 1, got '",
          value, "'");
  return value != "0";
}

// An item holds all kv heads of a decode, so that it streams whole blocks, and as many rows of one
// head as a tile in prefill.
PlanParams plan_params() {
  PlanParams params;
  params.kv_heads_per_item = 1 << 20;
  params.row_tile = kRowTile;
  params.key_tile = kChunk;
  params.item_rows = kItemRows;
  // Reading a key in bf16 takes as long as the arithmetic of some 13 rows with AVX-512.
  params.rows_per_key_read = 13;
  // A split of 512 keys of 8 heads reads 2 MB and leaves 18 KB of partial results: writing and
  // reading them again costs as much as some 8 keys, and every kv head is merged by a thread of its
  // own. 32768 keys give 64 splits, four for each of 16 cores; fewer keys than 512 stop the stream
  // of reads too often, and short sequences are cut by kv heads instead (work_order.h).
  params.split.min_keys = 512;
  params.split.merge_keys = 8;
  return params;
}

// What one prepared batch keeps in its workspace, in this order.
struct WorkspaceLayout {
  std::int64_t plan, order, done, partials, scratch, total;
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
  layout.order = take(order_bytes(bounds.max_sequences));
  layout.done = take(limits.merges * static_cast<std::int64_t>(sizeof(std::atomic<int>)));
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
    order = view_order(memory + layout.order, bounds.max_sequences);
    done = reinterpret_cast<std::atomic<int>*>(memory + layout.done);
    partials = {.data = reinterpret_cast<float*>(memory + layout.partials),
                .value_dim = spec.value_dim,
                .stride = row_state_stride(spec.value_dim)};
    scratch_memory = reinterpret_cast<float*>(memory + layout.scratch);
  }

  Scratch scratch(int thread) const {
    return scratch_at(scratch_memory + thread * scratch_floats(spec()), spec());
  }
  std::int64_t num_merges() const { return plan.offsets[plan.num_sequences].merges; }

  PlanSpec plan_spec;
  BatchPlan plan;
  WorkOrder order;
  std::atomic<int>* done = nullptr;  // [num_merges] parts of items that are done
  RowStates partials;                // [partial_rows]
  float* scratch_memory = nullptr;   // [num_threads, scratch_floats]
};

const CpuPrepared& self(const PreparedBatch& prepared) {
  return static_cast<const CpuPrepared&>(prepared);
}

// Returns when `count` has reached `target`. Those who count are at work already and wait for
// nobody, so it ends; after a while they may need this core to get there.
void wait_for_count(const std::atomic<int>& count, std::int64_t target) noexcept {
  constexpr int kSpins = 1000;
  for (int i = 0; count.load(std::memory_order_acquire) != target; ++i) {
    if (i >= kSpins) {
      std::this_thread::yield();
    } else {
      spin_pause();
    }
  }
}

// Joins the splits of one unit and kv head in their order, once all are there.
void merge_part(const Level& level, const AttendCall& call, const CpuPrepared& prepared,
                std::int64_t index, const RowStates& total) noexcept {
  const MergePart part = merge_part_at(prepared.plan_spec, prepared.plan, prepared.order, index);
  const Merge& merge = part.merge;
  wait_for_count(prepared.done[part.index], part.num_feeders);
  const std::int64_t num_rows = merge.rows.size();
  for (std::int64_t head = merge.kv_heads.begin; head < merge.kv_heads.end; ++head) {
    const auto split_states = [&](std::int64_t split) {
      return prepared.partials.from(merge.partials.at(split, head, merge.rows.begin));
    };
    std::copy_n(split_states(0).data, num_rows * total.stride, total.data);
    for (std::int64_t split = 1; split < merge.num_splits; ++split) {
      level.merge_states(split_states(split), num_rows, total);
    }
    level.store_rows(call, merge.sequence, head, merge.rows, total);
  }
}

RowStates head_states(const WorkItem& item, std::int64_t head, const Scratch& scratch) noexcept {
  return scratch.states.from((head - item.kv_heads.begin) * head_row_stride(item.rows.size()));
}

// Of an item with all keys of its rows.
void store_item(const Level& level, const AttendCall& call, const WorkItem& item,
                const Scratch& scratch) noexcept {
  for (std::int64_t head = item.kv_heads.begin; head < item.kv_heads.end; ++head) {
    level.store_rows(call, item.sequence, head, item.rows, head_states(item, head, scratch));
  }
}

// What follows the keys of an item: its rows are done, or wait for the other splits.
void finish_item(const Level& level, const AttendCall& call, const CpuPrepared& prepared,
                 const WorkItem& item, const Scratch& scratch) noexcept {
  if (item.num_splits == 1) {
    store_item(level, call, item, scratch);
    return;
  }
  for (std::int64_t head = item.kv_heads.begin; head < item.kv_heads.end; ++head) {
    const RowStates states = head_states(item, head, scratch);
    const std::int64_t row = item.partials.at(item.split, head, item.rows.begin);
    std::copy_n(states.data, item.rows.size() * states.stride, prepared.partials.o(row));
  }
  prepared.done[item.merge].fetch_add(1, std::memory_order_acq_rel);
}

// A part alone.
void attend_part(const Level& level, const AttendCall& call, const CpuPrepared& prepared,
                 const WorkItem& part, const Scratch& scratch) noexcept {
  if (part.kv_heads.size() > 0) level.attend_items(call, {&part, 1}, nullptr, scratch);
  finish_item(level, call, prepared, part, scratch);
}

// All lines of what another thread has written, at once: one after the other they would take as
// many times as long.
template <class T>
void fetch_lines(const T& object) noexcept {
  const auto* first = reinterpret_cast<const char*>(&object);
  for (std::size_t at = 0; at < sizeof(T); at += 64) __builtin_prefetch(first + at);
}

AttendCall make_attend_call(const PreparedBatch& prepared, const AttentionParams& params,
                            const TensorView& q, const KvSource& source,
                            const AttentionOutput& output, bool drops_prefetches) {
  return {.spec = prepared.spec(),
          .params = params,
          .q = q,
          .cache = source.cache,
          .output = output,
          .batch = prepared.batch(),
          .drops_prefetches = drops_prefetches};
}

// A step of one sequence whose heads are shared out. What threads read of it lies side by side, so
// that they fetch it at once: each line comes from the caller's core. Each stores the new K and V
// of the heads that it reads.
struct alignas(64) ShortStep {
  const Level& level;
  AttendCall call;
  AppendCall append;  // no slots: nothing to store
  WorkItem item;      // all of the sequence
  std::int64_t num_parts;
  float* scratch_memory;  // [num_threads, scratch_floats]

  void operator()(int thread) const noexcept {
    fetch_lines(*this);
    const WorkItem part = part_of_item(item, thread, num_parts);
    const Scratch scratch =
        scratch_at(scratch_memory + thread * scratch_floats(call.spec), call.spec);
    if (append.slots.size > 0) {
      level.append_rows(append, {.rows = {0, append.slots.size}, .heads = part.kv_heads});
    }
    level.attend_items(call, {&part, 1}, nullptr, scratch);
    store_item(level, call, part, scratch);
  }
};

// What one thread does: takes parts of items until none is left, then merges. While there are
// plenty, it takes the next before it begins one, to fetch its first keys meanwhile; the last ones
// are left for whoever is free: more of them where many rows wait for arithmetic, not for keys.
// Where every thread has one part, the parts are shared out already.
void attend_parts(const Level& level, const AttendCall& call, const CpuPrepared& prepared,
                  std::atomic<std::int64_t>& counter, int num_workers, int thread) noexcept {
  const WorkOrder& order = prepared.order;
  const Scratch scratch = prepared.scratch(thread);
  const auto take = [&counter] { return counter.fetch_add(1, std::memory_order_relaxed); };
  if (order.one_each(num_workers)) {
    const WorkItem part = item_part_at(prepared.plan_spec, prepared.plan, order, thread);
    attend_part(level, call, prepared, part, scratch);
    return;
  }
  // What goes together, or nothing.
  struct Parts {
    WorkItem items[kMaxGroup];
    int count = 0;
    bool empty() const noexcept { return count == 0 || items[0].kv_heads.size() == 0; }
  };
  Parts parts[2];
  const auto fill = [&](std::int64_t part_index, Parts& into) {
    into.count = part_index < order.num_parts ? item_parts_at(prepared.plan_spec, prepared.plan,
                                                              order, part_index, into.items)
                                              : 0;
  };
  Parts* now = &parts[0];
  Parts* next = &parts[1];
  std::int64_t index = take();
  fill(index, *now);
  while (index < order.num_parts) {
    const bool many_rows = now->items[0].rows.size() > kChunk / 2;
    const std::int64_t last_parts = num_workers == 1 ? 1 : num_workers * (many_rows ? 3 : 1);
    const bool plenty = counter.load(std::memory_order_relaxed) + last_parts < order.num_parts;
    std::int64_t next_index = plenty ? take() : order.num_parts;
    fill(next_index, *next);
    if (!now->empty()) {
      level.attend_items(call, {now->items, static_cast<std::size_t>(now->count)},
                         next->empty() ? nullptr : &next->items[0], scratch);
    }
    for (int i = 0; i < now->count; ++i) {
      finish_item(level, call, prepared, now->items[i],
                  scratch_of_item(scratch, call.spec, now->items[i], i));
    }
    if (!plenty) {
      next_index = take();
      fill(next_index, *next);
    }
    index = next_index;
    std::swap(now, next);
  }
  for (; index < order.num_parts + order.num_merges; index = take()) {
    merge_part(level, call, prepared, index - order.num_parts, scratch.states);
  }
}

class CpuBackend final : public HostBackend {
 public:
  CpuBackend(const Level& level, int num_threads, std::span<const int> cpus, bool apart)
      : level_(level), pool_(num_threads, cpus, apart) {}
  CpuBackend(const Level& level, Executor& executor, int num_threads)
      : level_(level), pool_(executor, num_threads) {}

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
    const KeyPlaces places = {.tables = prepared.batch().kv.blocks,
                              .block_size = prepared.spec().kv.block_size};
    order_work(mine.plan_spec, mine.plan, pool_.num_threads(), mine.order, &places);
  }

  void do_append(const PreparedBatch& prepared, const NewKv& new_kv, const KvCacheView& cache,
                 Stream) override {
    const AppendCall call = make_append_call(new_kv, cache, prepared.batch().kv.slots);
    AppendShares shares = make_append_shares(call, pool_.num_threads());
    // A sequence alone whose heads are shared out: who reads them has their lines.
    const CpuPrepared& mine = self(prepared);
    if (shares.size() == 1 && mine.order.one_each() && mine.order.num_sequences == 1) {
      // The attend that follows is not another step, so the pool is not asked as for one.
      const WorkerRange range = worker_range(mine.order);
      shares.num_head_groups = std::max(range.least, pool_.threads_awake(range.most));
    }
    pool_.run(shares.size(), [&](std::int64_t index, int) noexcept {
      level_.append_rows(call, append_share(call, shares, index));
    });
  }

  void do_attend(const PreparedBatch& prepared, const AttentionParams& params, const TensorView& q,
                 const KvSource& source, const AttentionOutput& output, Stream) override {
    const CpuPrepared& mine = self(prepared);
    const AttendCall call =
        make_attend_call(prepared, params, q, source, output, drops_prefetches_);
    if (is_short_step(mine)) {
      run_short_step(mine, call, {});
      return;
    }
    for (std::int64_t i = 0; i < mine.num_merges(); ++i) new (&mine.done[i]) std::atomic<int>(0);
    alignas(64) std::atomic<std::int64_t> next_part{0};
    const int workers = num_workers(mine.order);
    pool_.run_shares(workers, [&](int thread) noexcept {
      fetch_lines(call);
      fetch_lines(mine);
      attend_parts(level_, call, mine, next_part, workers, thread);
    });
  }

  void do_append_and_attend(const PreparedBatch& prepared, const AttentionParams& params,
                            const TensorView& q, const KvSource& source,
                            const AttentionOutput& output, Stream stream) override {
    const CpuPrepared& mine = self(prepared);
    if (!is_short_step(mine)) {
      HostBackend::do_append_and_attend(prepared, params, q, source, output, stream);
      return;
    }
    run_short_step(mine, make_attend_call(prepared, params, q, source, output, drops_prefetches_),
                   make_append_call(source.new_kv, source.cache, prepared.batch().kv.slots));
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
  static bool is_short_step(const CpuPrepared& prepared) noexcept {
    return prepared.order.one_each() &&
           prepared.plan.offsets[prepared.plan.num_sequences].items == 1;
  }
  void run_short_step(const CpuPrepared& prepared, const AttendCall& call,
                      const AppendCall& append) {
    const int num_parts = num_workers(prepared.order);
    pool_.run_shares(num_parts, ShortStep{.level = level_,
                                          .call = call,
                                          .append = append,
                                          .item = item_at(prepared.plan_spec, prepared.plan, 0),
                                          .num_parts = num_parts,
                                          .scratch_memory = prepared.scratch_memory});
  }
  // How many threads take part: all that are worth waking, more if they are awake.
  struct WorkerRange {
    int least;
    int most;
  };
  static WorkerRange worker_range(const WorkOrder& order) noexcept {
    const std::int64_t most = std::min(order.num_threads, order.num_parts);
    return {.least = static_cast<int>(std::min(most, order.num_worth_waking)),
            .most = static_cast<int>(most)};
  }
  int num_workers(const WorkOrder& order) noexcept {
    const WorkerRange range = worker_range(order);
    return range.least == range.most ? range.most
                                     : std::max(range.least, pool_.threads_at_hand(range.most));
  }

  const Level& level_;
  const bool drops_prefetches_ = detect_cpu_features().drops_prefetches;
  ThreadPool pool_;
};

}  // namespace
}  // namespace cpu

std::unique_ptr<AttentionBackend> make_cpu_backend(const BackendOptions& options) {
  const cpu::Level& level = cpu::choose_level(options.isa);
  require(options.num_threads >= 0, "num_threads must not be negative, got ", options.num_threads);
  if (options.executor != nullptr) {
    require(options.cpus.empty(),
            "cpus: an executor brings its own threads, which stay as they are");
    const int has = options.executor->num_threads();
    require(has >= 1, "executor: num_threads() must be at least 1, got ", has);
    const int num_threads = options.num_threads > 0 ? std::min(options.num_threads, has) : has;
    return std::make_unique<cpu::CpuBackend>(level, *options.executor, num_threads);
  }
  int num_threads = options.num_threads;
  if (num_threads == 0 && !options.cpus.empty())
    num_threads = static_cast<int>(options.cpus.size());
  if (num_threads == 0) num_threads = detect_cpu_features().num_cpus;
  return std::make_unique<cpu::CpuBackend>(level, num_threads, options.cpus,
                                           cpu::keeps_threads_apart());
}

std::string missing_for_cpu_level(std::string_view name, const CpuFeatures& features) {
  for (const cpu::Level& level : cpu::kLevels) {
    if (name != level.name) continue;
    const std::string missing = level.missing(features);
    return missing.empty() ? std::string() : concat("needs ", missing);
  }
  return "does not exist";
}

std::vector<std::string> cpu_isa_levels() {
  std::vector<std::string> names;
  for (const cpu::Level* level : cpu::present_levels()) names.emplace_back(level->name);
  return names;
}

}  // namespace quire

// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/gpu_backend.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "backends/gpu/block_copies.h"
#include "backends/gpu/gpu_metadata.h"
#include "backends/gpu/staging_ring.h"
#include "backends/gpu/transfer_plan.h"
#include "base/check.h"
#include "gpu/transfer_args.h"
#include "layout/kv_extent.h"
#include "plan/plan_spec.h"

namespace quire::gpu {
namespace {

// The longest row of K or V that the portable kernel holds in its registers.
constexpr int kMaxDims = 1024;

// Dims of the instance that holds rows of this spec, or 0 where only the portable kernel does.
int padded_dims(const AttentionSpec& spec) {
  const int dims = std::max(spec.head_dim, spec.value_dim);
  for (const int padded : {64, 128, 256}) {
    if (dims <= padded) return padded;
  }
  return 0;
}

// Rows of 16-bit numbers that can be read and written 16 bytes at a time.
bool lies_in_sixteens(const TensorView& rows, int dims) {
  return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.strides[0] % 8 == 0 &&
         rows.strides[1] % 8 == 0 && rows.strides[2] == 1 && dims % 8 == 0;
}

bool has_simple_tiles(const AttentionSpec& spec, const AttendArgs& args) {
  return args.batch.kv.blocks.kind != BlockTables::Kind::kRagged && args.block_shift >= 4 &&
         args.batch.tree_mask.begins.size == 0 && spec.head_dim == spec.value_dim &&
         spec.head_dim == padded_dims(spec);
}

// K and V of one token and head.
std::int64_t head_bytes(const AttentionSpec& spec) {
  const std::int64_t dims = spec.head_dim + (spec.kv.v_in_k ? 0 : spec.value_dim);
  return dims * dtype_bytes(spec.kv.dtype);
}

PlanParams plan_params(const AttentionSpec& spec) {
  PlanParams params;
  params.kv_heads_per_item = 1;
  params.row_tile = tile_rows(padded_dims(spec));
  params.key_tile = 64;
  params.item_rows = params.row_tile;
  params.rows_per_key_read = 130;
  // Splits as long as those that are best for keys of 512 bytes, in bytes.
  SplitRule& split = params.split;
  const double longer = std::clamp(512.0 / static_cast<double>(head_bytes(spec)), 0.25, 4.0);
  for (std::int64_t* keys : {&split.min_keys, &split.unsplit_keys, &split.merge_keys}) {
    *keys = static_cast<std::int64_t>(static_cast<double>(*keys) * longer);
  }
  split.min_keys = std::max(split.min_keys, params.key_tile);
  return params;
}

std::int64_t value_stride(const AttentionSpec& spec) {
  return (spec.value_dim + 3) / 4 * 4;
}

// Whether there are instances of the kernels over matrix units for a spec.
bool has_matrix_kernels(const AttentionSpec& spec) {
  const bool is_16_bit_q = spec.q_dtype == DType::kBF16 || spec.q_dtype == DType::kF16;
  return is_16_bit_q && padded_dims(spec) != 0 &&
         (spec.kv.dtype == spec.q_dtype || dtype_bytes(spec.kv.dtype) == 1);
}

constexpr KernelKind kListKernels[kNumLists] = {KernelKind::kAttendFew, KernelKind::kAttendStream,
                                                KernelKind::kAttendTile};

// What one prepared batch keeps in the device's memory.
struct DeviceLayout {
  std::int64_t counts, merge_counters, lists[kNumLists], runs[kNumRunLists], starts[kNumRunLists],
      sums, values, metadata, total;
  PlanBounds plan;
  std::int32_t num_runs[kNumRunLists];  // thread blocks of the kernels of few rows
};

DeviceLayout device_layout(GpuRuntime& runtime, const AttentionSpec& spec, const PlanSpec& plan,
                           const BatchBounds& bounds) {
  std::int64_t used = 0;
  const auto take = [&used](std::int64_t count, std::int64_t size) {
    const std::int64_t begin = used;
    used += (count * size + 127) / 128 * 128;
    return begin;
  };
  DeviceLayout layout{};
  layout.plan = plan_bounds(plan, bounds);
  layout.counts = take(1, sizeof(PlanCounts));
  layout.merge_counters = take(layout.plan.merges, sizeof(std::int32_t));
  for (std::int64_t& list : layout.lists) list = take(layout.plan.items, sizeof(Item));
  for (int i = 0; i < kNumRunLists; ++i) {
    const KernelId kernel{kListKernels[i], spec.kv.dtype, padded_dims(spec)};
    const std::int64_t resident =
        has_matrix_kernels(spec) && runtime.fits(kernel)
            ? std::int64_t{runtime.num_processors()} * runtime.blocks_per_processor(kernel)
            : 0;
    layout.num_runs[i] = static_cast<std::int32_t>(std::min(layout.plan.items, resident));
    layout.runs[i] = take(layout.num_runs[i] + 1, sizeof(std::int32_t));
    layout.starts[i] = take(layout.num_runs[i], sizeof(RunStart));
  }
  layout.sums = take(layout.plan.partial_rows, 2 * sizeof(float));
  layout.values = take(layout.plan.partial_rows, value_stride(spec) * std::int64_t{sizeof(float)});
  layout.metadata = take(metadata_layout(spec, bounds).total, 1);
  layout.total = used;
  return layout;
}

// A fault that kernels found, as the caller should read it.
Status fault_status(std::uint64_t code) {
  const auto fault = static_cast<Fault>(code >> 56);
  const auto sequence = static_cast<std::int64_t>(code >> 32 & 0xffffff);
  const auto position = static_cast<std::int32_t>(code & 0xffffffff);
  std::string message;
  switch (fault) {
    case Fault::kQueryRange:
      message = concat("queries: on the device, sequence ", sequence,
                       " has a range outside the "
                       "bounds, ending at row ",
                       position);
      break;
    case Fault::kKvLen:
      message = concat("kv.lens: on the device, sequence ", sequence,
                       " has a length outside the bounds: ", position);
      break;
    case Fault::kTotal:
      message = concat(
          "the batch on the device needs more work items than its bounds allow, from "
          "sequence ",
          sequence, " on: ", position);
      break;
    case Fault::kBlock:
      message = concat("kv.blocks: on the device, sequence ", sequence, " names at position ",
                       position, " a block that the cache does not have");
      break;
    case Fault::kSlot:
      message = concat("kv.slots: on the device, index ", position,
                       " holds a slot that the cache does not have");
      break;
    case Fault::kNone:
      return {};
  }
  return {.code = ErrorCode::kInvalidArgument, .message = message};
}

class GpuPrepared final : public PreparedBatch {
 public:
  GpuPrepared(GpuRuntime& runtime, const AttentionSpec& spec, const BatchBounds& bounds,
              const Workspace& workspace)
      : PreparedBatch(spec, bounds, workspace),
        runtime_(runtime),
        plan_spec(make_plan_spec(spec, plan_params(spec))),
        layout(device_layout(runtime, spec, plan_spec, bounds)),
        metadata(metadata_layout(spec, bounds)) {
    host_fault = static_cast<std::uint64_t*>(runtime.memory().allocate_host(sizeof(std::uint64_t)));
    *host_fault = kNoFault;
    fence = runtime.create_fence();
  }
  ~GpuPrepared() override {
    runtime_.destroy_fence(fence);
    runtime_.memory().free_host(host_fault);
  }
  GpuPrepared(const GpuPrepared&) = delete;
  GpuPrepared& operator=(const GpuPrepared&) = delete;

  template <class T>
  T* at(std::int64_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(workspace().device) + offset);
  }
  PlanCounts* counts() const { return at<PlanCounts>(layout.counts); }

  // The first fault since the last call, if the device has told of one by now.
  Status take_fault() const {
    const std::uint64_t code =
        std::exchange(*static_cast<volatile std::uint64_t*>(host_fault), kNoFault);
    return code == kNoFault ? Status{} : fault_status(code);
  }

 private:
  GpuRuntime& runtime_;

 public:
  PlanSpec plan_spec;
  DeviceLayout layout;
  MetadataLayout metadata;
  BatchView device_batch;               // all arrays on the device
  std::uint64_t* host_fault = nullptr;  // written by kernels
  void* fence = nullptr;                // passed when the staging may be written again
};

const GpuPrepared& self(const PreparedBatch& prepared) {
  return static_cast<const GpuPrepared&>(prepared);
}

bool is_multiple_of_16(std::int64_t bytes) {
  return bytes % 16 == 0;
}

// Rows that asynchronous copies of 16 bytes can fetch.
bool is_aligned_tensor(const void* data, const KvStrides& strides, std::int64_t dims,
                       std::int64_t size) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 &&
         is_multiple_of_16(strides.block * size) && is_multiple_of_16(strides.head * size) &&
         is_multiple_of_16(strides.token * size) && is_multiple_of_16(dims * size);
}

// Whether the kernels over matrix units take this call.
bool takes_matrix_units(const AttentionSpec& spec, const KvCacheView& cache) {
  const std::int64_t size = dtype_bytes(spec.kv.dtype);
  return has_matrix_kernels(spec) && cache.format.layout == KvLayoutId::kPlain &&
         is_aligned_tensor(cache.k, cache.k_strides, cache.head_dim, size) &&
         is_aligned_tensor(cache.v, cache.v_strides, cache.value_dim, size);
}

class GpuBackend final : public AttentionBackend {
 public:
  GpuBackend(std::unique_ptr<GpuRuntime> runtime, const GpuBackendOptions& options)
      : runtime_(std::move(runtime)),
        options_(options),
        staging_(*runtime_),
        copies_(*runtime_, staging_) {}

  BackendInfo info() const override {
    return {.name = options_.name,
            .version = runtime_->version(),
            .isa = runtime_->architecture(),
            .device = runtime_->memory().device(),
            .batch_invariant = true};
  }
  DeviceMemory& memory() override { return runtime_->memory(); }

 protected:
  void collect_reasons(const AttentionSpec& spec, Support& support) const override {
    if (is_opaque(spec.kv.layout)) {
      support.reasons.emplace_back("the layout is private to another backend");
    }
    if (std::max(spec.head_dim, spec.value_dim) > kMaxDims) {
      support.reasons.push_back(concat("head_dim and value_dim go up to ", kMaxDims));
    }
  }

  WorkspaceSize do_workspace(const AttentionSpec& spec, const BatchBounds& bounds) const override {
    const PlanSpec plan = make_plan_spec(spec, plan_params(spec));
    return {.host_bytes = metadata_layout(spec, bounds).total,
            .device_bytes = device_layout(*runtime_, spec, plan, bounds).total};
  }

  std::unique_ptr<PreparedBatch> do_make_prepared(const AttentionSpec& spec,
                                                  const BatchBounds& bounds,
                                                  const Workspace& workspace) override {
    return std::make_unique<GpuPrepared>(*runtime_, spec, bounds, workspace);
  }

  void do_prepare(PreparedBatch& prepared, Stream stream) override {
    auto& mine = static_cast<GpuPrepared&>(prepared);
    raise(mine.take_fault());
    upload(mine, stream);
    PlanArgs args;
    args.spec = mine.plan_spec;
    args.batch = mine.device_batch;
    args.bounds = prepared.bounds();
    args.max_items = mine.layout.plan.items;
    args.max_merges = mine.layout.plan.merges;
    args.max_partial_rows = mine.layout.plan.partial_rows;
    for (int i = 0; i < kNumLists; ++i) args.lists[i] = mine.at<Item>(mine.layout.lists[i]);
    for (int i = 0; i < kNumRunLists; ++i) {
      args.runs[i] = mine.at<std::int32_t>(mine.layout.runs[i]);
      args.starts[i] = mine.at<RunStart>(mine.layout.starts[i]);
      args.num_runs[i] = mine.layout.num_runs[i];
    }
    args.block_size = prepared.spec().kv.block_size;
    args.by_block_size = make_divider(args.block_size);
    args.merge_counters = mine.at<std::int32_t>(mine.layout.merge_counters);
    args.counts = mine.counts();
    args.host_fault = mine.host_fault;
    const std::int64_t blocks =
        ceil_div(std::max<std::int64_t>(args.max_items, 1), kItemsPerPlanner);
    launch({.kind = KernelKind::kPlanItems}, std::min<std::int64_t>(blocks, kMaxPlanners), args,
           stream);
  }

  void do_append(const PreparedBatch& prepared, const NewKv& new_kv, const KvCacheView& cache,
                 Stream stream) override {
    const GpuPrepared& mine = self(prepared);
    raise(mine.take_fault());
    AppendArgs args;
    args.slots = mine.device_batch.kv.slots;
    const std::int64_t rows = args.slots.size * cache.num_kv_heads;
    if (rows == 0) return;
    args.vectors = plan_append(new_kv, cache, args.slots, runtime_->num_processors());
    args.num_slots = cache.num_blocks * cache.format.block_size;
    args.counts = mine.counts();
    args.host_fault = mine.host_fault;
    args.new_kv = new_kv;
    args.cache = cache;
    if (args.vectors.num_items > 0) {
      const KernelId kernel{.kind = args.vectors.sets_scales ? KernelKind::kAppendScaled
                                                             : KernelKind::kAppendVectors};
      if (runtime_->overlaps_grids()) {
        args.num_resident_blocks =
            runtime_->num_processors() * runtime_->blocks_per_processor(kernel);
      }
      launch(kernel, fill_device(args.vectors.num_items, kShortBlocksPerProcessor), args, stream);
    } else {
      launch({.kind = KernelKind::kAppendRows}, fill_device(ceil_div(rows, 8), 8), args, stream);
    }
  }

  void do_attend(const PreparedBatch& prepared, const AttentionParams& params, const TensorView& q,
                 const KvSource& source, const AttentionOutput& output, Stream stream) override {
    const GpuPrepared& mine = self(prepared);
    raise(mine.take_fault());
    const AttentionSpec& spec = prepared.spec();
    if (mine.layout.plan.items == 0) return;
    if (options_.check_blocks) check_blocks(mine, source.cache, stream);
    AttendArgs args;
    args.batch = mine.device_batch;
    args.cache = source.cache;
    args.mask = spec.mask;
    args.alignment = spec.alignment;
    args.group = spec.head_group();
    args.by_group = make_divider(args.group);
    args.num_kv_heads = spec.num_kv_heads;
    const auto block_size = static_cast<unsigned>(spec.kv.block_size);
    if (std::has_single_bit(block_size)) args.block_shift = std::countr_zero(block_size);
    args.params = params;
    args.q = q;
    args.q_in_sixteens = lies_in_sixteens(q, spec.head_dim);
    args.out_in_sixteens =
        dtype_bytes(output.out.dtype) == 2 && lies_in_sixteens(output.out, spec.value_dim);
    args.has_simple_tiles = has_simple_tiles(spec, args);
    args.has_equal_strides = source.cache.k_strides.block == source.cache.v_strides.block &&
                             source.cache.k_strides.token == source.cache.v_strides.token;
    const bool is_captured = runtime_->is_capturing(stream);
    const std::int64_t num_keys =
        is_captured ? prepared.bounds().max_total_kv_len : prepared.facts().total_kv_len;
    args.keys_exceed_cache = num_keys > kept_bytes() / (head_bytes(spec) * spec.num_kv_heads);
    args.output = output;
    args.merge_counters = mine.at<std::int32_t>(mine.layout.merge_counters);
    args.fault = &mine.counts()->fault;
    args.partial_sums = mine.at<float>(mine.layout.sums);
    args.partial_values = mine.at<float>(mine.layout.values);
    args.value_stride = value_stride(spec);

    // A graph may be replayed over any batch within the bounds.
    const std::int64_t longest =
        is_captured ? prepared.bounds().longest_query() : prepared.facts().max_q_len;
    // Lists that no batch within these bounds fills are not looked at.
    attend_lists(mine, args, static_cast<int>(item_list(spec.head_group())),
                 static_cast<int>(item_list(longest * spec.head_group())), stream);
  }

  void do_merge(std::span<const Partial> partials, ArrayView<float> sinks,
                const AttentionOutput& output, Stream stream) override {
    const std::int64_t rows = output.out.shape[0] * output.out.shape[1];
    if (rows == 0) return;
    std::vector<PartialView> views(partials.size());
    for (std::size_t i = 0; i < partials.size(); ++i) {
      const TensorView& out = partials[i].out;
      const TensorView& lse = partials[i].lse;
      views[i] = {.out = out.data,
                  .lse = static_cast<const float*>(lse.data),
                  .out_strides = {out.strides[0], out.strides[1], out.strides[2]},
                  .lse_strides = {lse.strides[0], lse.strides[1]},
                  .dtype = out.dtype};
    }
    MergeArgs args;
    args.num_partials = static_cast<std::int32_t>(views.size());
    args.sinks = sinks;
    args.output = output;
    const KernelId kernel{.kind = KernelKind::kMergePartials};
    const std::int64_t num_blocks = fill_device(ceil_div(rows, 4), 16);
    if (views.size() <= MergeArgs::kFew) {
      std::copy(views.begin(), views.end(), args.few);
      launch(kernel, num_blocks, args, stream);
      return;
    }
    const StagingRing::Slot slot = staging_.acquire(stream);
    args.many = slot.put(views.data(), views.size());
    slot.upload(stream);
    launch(kernel, num_blocks, args, stream);
    slot.release(stream);
  }

  void do_copy_blocks(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                      std::span<const BlockCopy> copies, Stream stream) override {
    if (src.empty()) return;
    copies_.enqueue(src, dst, copies, {0, src[0].format.block_size}, stream);
  }
  void do_copy_region(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                      const BlockRegionCopy& region, Stream stream) override {
    if (src.empty()) return;
    copies_.enqueue(src, dst, {&region.blocks, 1}, {region.first_token, region.num_tokens}, stream);
  }

  Status do_poll(PreparedBatch& prepared) override { return self(prepared).take_fault(); }

 private:
  // Thread blocks of the plan: each plans all sequences, and a few items.
  static constexpr std::int64_t kItemsPerPlanner = 16;
  static constexpr std::int64_t kMaxPlanners = 128;

  static void raise(const Status& status) {
    if (!status.ok()) throw Error(status.code, status.message);
  }

  template <class Args>
  void launch(const KernelId& kernel, std::int64_t num_blocks, const Args& args, Stream stream) {
    runtime_->launch(kernel, static_cast<int>(num_blocks), &args, stream);
  }

  // What the shared cache can be expected to keep from call to call.
  std::int64_t kept_bytes() const { return runtime_->cache_bytes() / 3 * 2; }

  // As many blocks as there is work for, at most `per_processor` on each.
  std::int64_t fill_device(std::int64_t wanted, int per_processor) const {
    return std::min<std::int64_t>(wanted, std::int64_t{runtime_->num_processors()} * per_processor);
  }

  // Where there are few rows and many, half of the thread blocks for many rows are launched first:
  // matrix units and memory are then busy side by side. The other half takes over when the blocks
  // for few rows end.
  void attend_lists(const GpuPrepared& mine, AttendArgs args, int first, int last, Stream stream) {
    if (last < kNumRunLists) {
      for (int i = first; i <= last; ++i) {
        args.ends_call = i == last;
        attend_few(mine, args, i, stream);
      }
      return;
    }
    const ListKernel many = list_kernel(mine, args, kNumRunLists);
    const std::int64_t num_blocks = fill_device(mine.layout.plan.items, many.resident);
    std::int64_t num_early = 0;
    if (first < kNumRunLists && many.is_matrix && runtime_->overlaps_grids()) {
      num_early = fill_device(num_blocks, many.resident / 2);
    }
    if (num_early > 0) {
      use_list(mine, kNumRunLists, num_early, num_blocks, args);
      launch_next(many.id, num_early, args, stream);
    }
    for (int i = first; i < kNumRunLists; ++i) attend_few(mine, args, i, stream);
    use_list(mine, kNumRunLists, num_early > 0 ? num_early : num_blocks, num_blocks, args);
    args.is_first_grid = num_early == 0;
    launch_next(many.id, num_blocks - num_early, args, stream);
  }

  void attend_few(const GpuPrepared& mine, AttendArgs& args, int list, Stream stream) {
    const ListKernel few = list_kernel(mine, args, list);
    const std::int64_t num_blocks = few.is_matrix
                                        ? mine.layout.num_runs[list]
                                        : fill_device(mine.layout.plan.items, few.resident);
    use_list(mine, list, num_blocks, num_blocks, args);
    launch_next(few.id, num_blocks, args, stream);
  }

  // Grids of one call that follow need not wait for it.
  void launch_next(const KernelId& kernel, std::int64_t num_blocks, AttendArgs& args,
                   Stream stream) {
    if (num_blocks == 0) return;
    launch(kernel, num_blocks, args, stream);
    args.joins_last_grid = true;
  }

  struct ListKernel {
    KernelId id;
    bool is_matrix;
    int resident;  // thread blocks on a processor
  };
  ListKernel list_kernel(const GpuPrepared& mine, const AttendArgs& args, int list) const {
    const AttentionSpec& spec = mine.spec();
    KernelId id{kListKernels[list], spec.kv.dtype, padded_dims(spec)};
    const bool is_matrix = takes_matrix_units(spec, args.cache) && runtime_->fits(id);
    if (!is_matrix) id = {.kind = KernelKind::kAttendRows};
    return {id, is_matrix, runtime_->blocks_per_processor(id)};
  }
  // For the first grid of those whose thread blocks share the list.
  static void use_list(const GpuPrepared& mine, int list, std::int64_t num_first_blocks,
                       std::int64_t num_blocks, AttendArgs& args) {
    PlanCounts* counts = mine.counts();
    args.is_first_grid = true;
    args.num_first_blocks = static_cast<std::int32_t>(num_first_blocks);
    args.num_blocks = static_cast<std::int32_t>(num_blocks);
    args.items = mine.at<Item>(mine.layout.lists[list]);
    args.num_items = &counts->items[list];
    args.next_item = &counts->next[list];
    args.done = &counts->done[list];
    if (list >= kNumRunLists) return;
    args.runs = mine.at<std::int32_t>(mine.layout.runs[list]);
    args.starts = mine.at<RunStart>(mine.layout.starts[list]);
  }

  // Brings the metadata of a batch on the host to the workspace.
  void upload(GpuPrepared& mine, Stream stream) {
    const BatchView& batch = mine.batch();
    if (mine.facts().on_device) {
      mine.device_batch = batch;
      return;
    }
    const bool captures = runtime_->is_capturing(stream);
    require(!captures,
            "prepare: a graph cannot capture metadata in host memory; give it in device "
            "memory, or prepare before the capture");
    runtime_->wait_fence(mine.fence);  // the last upload still reads the staging
    char* staging = static_cast<char*>(mine.workspace().host);
    char* region = mine.at<char>(mine.layout.metadata);
    const PackedMetadata packed =
        pack_metadata(mine.spec(), mine.metadata, batch, staging, region, memory().device());
    for (int i = 0; i < packed.num_parts; ++i) {
      const MetadataPart& part = packed.parts[i];
      memory().copy_to_device(region + part.begin, staging + part.begin, part.size_bytes, stream);
    }
    runtime_->record_fence(mine.fence, stream);
    mine.device_batch = packed.batch;
  }

  void check_blocks(const GpuPrepared& mine, const KvCacheView& cache, Stream stream) {
    CheckArgs args;
    args.batch = mine.device_batch;
    args.mask = mine.spec().mask;
    args.alignment = mine.spec().alignment;
    args.block_size = cache.format.block_size;
    args.num_blocks = cache.num_blocks;
    args.bounds = mine.bounds();
    args.counts = mine.counts();
    args.host_fault = mine.host_fault;
    const std::int64_t sequences = std::max<std::int64_t>(mine.batch().num_sequences(), 1);
    launch({.kind = KernelKind::kCheckBlocks}, fill_device(sequences, 8), args, stream);
  }

  std::unique_ptr<GpuRuntime> runtime_;
  GpuBackendOptions options_;
  StagingRing staging_;
  BlockCopies copies_;
};

}  // namespace

std::unique_ptr<AttentionBackend> make_gpu_backend(std::unique_ptr<GpuRuntime> runtime,
                                                   const GpuBackendOptions& options) {
  return std::make_unique<GpuBackend>(std::move(runtime), options);
}

}  // namespace quire::gpu

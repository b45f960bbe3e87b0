// SPDX-License-Identifier: Apache-2.0
#include "backends/onednn/onednn_backend.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "backends/dense/batch_parts.h"
#include "backends/dense/dense_backend.h"
#include "backends/onednn/primitives.h"
#include "backends/onednn/serial_region.h"
#include "backends/onednn/tile.h"
#include "base/check.h"

namespace quire {
namespace onednn {
namespace {

// Of one thread, for all primitives of today's oneDNN; what needs more gets it in prepare.
constexpr std::int64_t kScratchpadBytes = 256 << 10;

// The level of quire's own names that oneDNN runs at: its levels are sets of bits.
const char* isa_name() {
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto has = [isa](dnnl_cpu_isa_t level) {
    return (isa & static_cast<unsigned>(level)) == static_cast<unsigned>(level);
  };
  if (has(dnnl_cpu_isa_avx512_core_amx)) return "amx";
  if (has(dnnl_cpu_isa_avx512_core_bf16)) return "avx512_bf16";
  if (has(dnnl_cpu_isa_avx512_core)) return "avx512";
  return has(dnnl_cpu_isa_avx2) ? "avx2" : "";
}

// The tiles of a batch, their primitives, and the memory of each thread.
class OnednnPrepared final : public PreparedBatch {
 public:
  OnednnPrepared(const AttentionSpec& spec, const BatchBounds& bounds, const Workspace& workspace,
                 DType compute_, int num_threads, const dnnl::engine& engine)
      : PreparedBatch(spec, bounds, workspace), compute(compute_), tiles(workspace.host, bounds) {
    char* memory = static_cast<char*>(workspace.host) + tiles_bytes(bounds);
    const std::int64_t thread_bytes = tile_scratch_bytes(spec, compute, bounds) + kScratchpadBytes;
    for (int i = 0; i < num_threads; ++i, memory += thread_bytes) {
      scratch.push_back(tile_scratch_at(memory, spec, compute, bounds));
      scratch.back().memory.scratchpad = memory + thread_bytes - kScratchpadBytes;
      streams.emplace_back(engine);
    }
  }

  static std::int64_t workspace_bytes(const AttentionSpec& spec, const BatchBounds& bounds,
                                      DType compute, int num_threads) noexcept {
    return tiles_bytes(bounds) +
           num_threads * (tile_scratch_bytes(spec, compute, bounds) + kScratchpadBytes);
  }

  TilePlan plan(const dense::QueryPart& queries) const noexcept {
    return plan_tile(spec(), compute, sequence_view(batch(), queries.sequence), queries);
  }
  const TilePrimitives* find(const TileShape& shape) const noexcept {
    const auto found = place_of(shape);
    return found != primitives.end() && (*found)->shape() == shape ? found->get() : nullptr;
  }
  void insert(std::shared_ptr<const TilePrimitives> made) {
    primitives.insert(place_of(made->shape()), std::move(made));
  }

  DType compute;
  dense::BatchParts tiles;
  std::vector<std::shared_ptr<const TilePrimitives>> primitives;  // by shape, of this batch
  std::vector<TileScratch> scratch;                               // [num_threads]
  std::vector<dnnl::stream> streams;                              // [num_threads]
  std::vector<std::vector<std::byte>> large_scratchpads;  // [num_threads] if they are needed

 private:
  static std::int64_t tiles_bytes(const BatchBounds& bounds) noexcept {
    return (dense::BatchParts::size_bytes(bounds) + 63) / 64 * 64;
  }
  std::vector<std::shared_ptr<const TilePrimitives>>::const_iterator place_of(
      const TileShape& shape) const noexcept {
    return std::lower_bound(
        primitives.begin(), primitives.end(), shape,
        [](const auto& entry, const TileShape& wanted) { return entry->shape() < wanted; });
  }
};

class OnednnBackend final : public dense::DenseBackend {
 public:
  OnednnBackend(const BackendOptions& options, Kernels wanted)
      : DenseBackend(options),
        engine_(dnnl::engine::kind::cpu, 0),
        cache_(engine_),
        multiplies_f16_(multiplies(engine_, DType::kF16, wanted)),
        multiplies_bf16_(multiplies(engine_, DType::kBF16, wanted)) {}

  BackendInfo info() const override {
    return {.name = "onednn",
            .version = onednn_version(),
            .isa = isa_name(),
            .device = {},
            .batch_invariant = true};
  }

 protected:
  WorkspaceSize do_workspace(const AttentionSpec& spec, const BatchBounds& bounds) const override {
    return {.host_bytes =
                OnednnPrepared::workspace_bytes(spec, bounds, compute_type(spec), num_threads()),
            .device_bytes = 0};
  }

  std::unique_ptr<PreparedBatch> do_make_prepared(const AttentionSpec& spec,
                                                  const BatchBounds& bounds,
                                                  const Workspace& workspace) override {
    try {
      return std::make_unique<OnednnPrepared>(spec, bounds, workspace, compute_type(spec),
                                              num_threads(), engine_);
    } catch (const dnnl::error& error) {
      fail(ErrorCode::kDevice, "onednn ", onednn_version(), " failed at ", to_string(spec), ": ",
           error.what());
    }
  }

  // Cuts the batch into tiles and makes the primitives that are missing.
  void do_prepare(PreparedBatch& prepared, Stream) override {
    auto& mine = static_cast<OnednnPrepared&>(prepared);
    // Those of the last batch stay alive until this one has its own, in the cache or not.
    const auto before = std::exchange(mine.primitives, {});
    mine.tiles.cut(mine.batch(), [&](const SequenceView& sequence) {
      return tile_queries(mine.spec(), sequence.kv_len);
    });
    std::int64_t scratchpad_bytes = 0;
    for (std::int64_t i = 0; i < mine.tiles.size(); ++i) {
      const TilePlan plan = mine.plan(mine.tiles.at(mine.batch(), i));
      if (plan.keys.empty() || mine.find(plan.shape) != nullptr) continue;
      std::shared_ptr<const TilePrimitives> made = cache_.find(plan.shape);
      scratchpad_bytes = std::max(scratchpad_bytes, made->scratchpad_bytes());
      mine.insert(std::move(made));
    }
    if (scratchpad_bytes > kScratchpadBytes) enlarge_scratchpads(mine, scratchpad_bytes);
  }

  void do_attend(const PreparedBatch& prepared, const AttentionParams& params, const TensorView& q,
                 const KvSource& source, const AttentionOutput& output, Stream) override {
    const auto& mine = static_cast<const OnednnPrepared&>(prepared);
    const TileCall call{.spec = prepared.spec(),
                        .params = params,
                        .batch = prepared.batch(),
                        .q = q,
                        .cache = source.cache,
                        .output = output};
    const std::int64_t num_heads = call.spec.num_kv_heads;
    const std::int64_t num_items = mine.tiles.size() * num_heads;
    run_items(call.spec, num_items, [&](std::int64_t item, int thread) {
      const SerialRegion serial;
      // The last tiles of a sequence see most: they go first.
      const std::int64_t index = num_items - 1 - item;
      const dense::QueryPart queries = mine.tiles.at(call.batch, index / num_heads);
      const TilePlan plan = mine.plan(queries);
      const auto slot = static_cast<std::size_t>(thread);
      TileScratch scratch = mine.scratch[slot];
      scratch.gather_seconds = gather_seconds_of(thread);
      attend_tile(call, queries, index % num_heads, plan, mine.find(plan.shape), mine.streams[slot],
                  scratch);
    });
  }

 private:
  // Products of formats that oneDNN multiplies on this machine are exact in them; all else is
  // widened or dequantised to f32.
  DType compute_type(const AttentionSpec& spec) const noexcept {
    const bool in_format = (spec.q_dtype == DType::kF16 && multiplies_f16_) ||
                           (spec.q_dtype == DType::kBF16 && multiplies_bf16_);
    return in_format && spec.kv.dtype == spec.q_dtype ? spec.q_dtype : DType::kF32;
  }

  static void enlarge_scratchpads(OnednnPrepared& prepared, std::int64_t size_bytes) {
    constexpr std::size_t kAlignment = 64;
    prepared.large_scratchpads.resize(prepared.scratch.size());
    for (std::size_t i = 0; i < prepared.scratch.size(); ++i) {
      std::vector<std::byte>& memory = prepared.large_scratchpads[i];
      memory.resize(static_cast<std::size_t>(size_bytes) + kAlignment);
      const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
      prepared.scratch[i].memory.scratchpad =
          memory.data() + (kAlignment - address % kAlignment) % kAlignment;
    }
  }

  dnnl::engine engine_;
  PrimitiveCache cache_;
  bool multiplies_f16_;
  bool multiplies_bf16_;
};

}  // namespace
}  // namespace onednn

namespace {

std::unique_ptr<AttentionBackend> make(const BackendOptions& options, onednn::Kernels wanted) {
  try {
    return std::make_unique<onednn::OnednnBackend>(options, wanted);
  } catch (const dnnl::error& error) {
    fail(ErrorCode::kDevice, "onednn ", onednn_version(), ": ", error.what());
  }
}

}  // namespace

std::unique_ptr<AttentionBackend> make_onednn_backend(const BackendOptions& options) {
  return make(options, onednn::Kernels::kBlocked);
}

std::unique_ptr<AttentionBackend> make_onednn_backend_in_format(const BackendOptions& options) {
  return make(options, onednn::Kernels::kAny);
}

std::string onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return concat(version->major, ".", version->minor, ".", version->patch);
}

}  // namespace quire

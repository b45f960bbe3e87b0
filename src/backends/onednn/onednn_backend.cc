// SPDX-License-Identifier: Apache-2.0
#include "backends/onednn/onednn_backend.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <span>
#include <vector>

#include "backends/dense/dense_backend.h"
#include "backends/onednn/primitives.h"
#include "backends/onednn/serial_region.h"
#include "backends/onednn/tile.h"
#include "base/check.h"
#include "base/host_memory.h"
#include "quire/version.h"

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
      : PreparedBatch(spec, bounds, workspace),
        compute(compute_),
        first_tile(static_cast<std::int64_t*>(workspace.host)) {
    char* memory = static_cast<char*>(workspace.host) + begins_bytes(bounds);
    const std::int64_t thread_bytes = tile_scratch_bytes(spec, compute, bounds) + kScratchpadBytes;
    for (int i = 0; i < num_threads; ++i, memory += thread_bytes) {
      scratch.push_back(tile_scratch_at(memory, spec, compute, bounds));
      scratch.back().memory.scratchpad = memory + thread_bytes - kScratchpadBytes;
      streams.emplace_back(engine);
    }
  }

  static std::int64_t begins_bytes(const BatchBounds& bounds) noexcept {
    return ((bounds.max_sequences + 1) * std::int64_t{sizeof(std::int64_t)} + 63) / 64 * 64;
  }
  static std::int64_t workspace_bytes(const AttentionSpec& spec, const BatchBounds& bounds,
                                      DType compute, int num_threads) noexcept {
    return begins_bytes(bounds) +
           num_threads * (tile_scratch_bytes(spec, compute, bounds) + kScratchpadBytes);
  }

  std::int64_t num_sequences() const noexcept { return batch().num_sequences(); }
  TileQueries queries(std::int64_t s, std::int64_t tile) const noexcept {
    const SequenceView sequence = sequence_view(batch(), s);
    const std::int64_t size = tile_queries(spec(), sequence.kv_len);
    return {s, tile * size, std::min((tile + 1) * size, sequence.q_len)};
  }
  TileQueries queries_at(std::int64_t tile) const noexcept {
    const std::int64_t* first = first_tile;
    const std::int64_t s = std::upper_bound(first, first + num_sequences() + 1, tile) - first - 1;
    return queries(s, tile - first_tile[s]);
  }
  TilePlan plan(const TileQueries& q) const noexcept {
    return plan_tile(spec(), compute, sequence_view(batch(), q.sequence), q);
  }
  const TilePrimitives* find(const TileShape& shape) const noexcept {
    const auto found = std::lower_bound(
        primitives.begin(), primitives.end(), shape,
        [](const auto& entry, const TileShape& wanted) { return entry->shape() < wanted; });
    return found != primitives.end() && (*found)->shape() == shape ? found->get() : nullptr;
  }

  DType compute;
  std::int64_t* first_tile;                                       // [num_sequences + 1]
  std::vector<std::shared_ptr<const TilePrimitives>> primitives;  // by shape, of this batch
  std::vector<TileScratch> scratch;                               // [num_threads]
  std::vector<dnnl::stream> streams;                              // [num_threads]
  std::vector<std::vector<std::byte>> large_scratchpads;  // [num_threads] if they are needed
};

// Keeps the first error of the threads.
class FirstError {
 public:
  void set(std::string message) noexcept {
    const std::lock_guard lock(mutex_);
    if (!failed_.exchange(true)) message_ = std::move(message);
  }
  bool failed() const noexcept { return failed_.load(std::memory_order_relaxed); }
  const std::string& message() const noexcept { return message_; }

 private:
  std::mutex mutex_;
  std::atomic<bool> failed_{false};
  std::string message_;
};

class OnednnBackend final : public dense::DenseBackend {
 public:
  explicit OnednnBackend(const BackendOptions& options)
      : DenseBackend(options),
        engine_(dnnl::engine::kind::cpu, 0),
        cache_(engine_),
        native_f16_(multiplies_natively(engine_, DType::kF16)),
        native_bf16_(multiplies_natively(engine_, DType::kBF16)) {}

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
    return std::make_unique<OnednnPrepared>(spec, bounds, workspace, compute_type(spec),
                                            num_threads(), engine_);
  }

  // Cuts the batch into tiles and makes the primitives that are missing.
  void do_prepare(PreparedBatch& prepared, Stream) override {
    auto& mine = static_cast<OnednnPrepared&>(prepared);
    std::vector<std::shared_ptr<const TilePrimitives>> before;
    before.swap(mine.primitives);  // the cache may have dropped some of them
    std::int64_t scratchpad_bytes = 0;
    std::int64_t num_tiles = 0;
    for (std::int64_t s = 0; s < mine.num_sequences(); ++s) {
      mine.first_tile[s] = num_tiles;
      const SequenceView sequence = sequence_view(mine.batch(), s);
      const std::int64_t size = tile_queries(mine.spec(), sequence.kv_len);
      const std::int64_t count = (sequence.q_len + size - 1) / size;
      for (std::int64_t tile = 0; tile < count; ++tile) {
        const TilePlan plan = mine.plan(mine.queries(s, tile));
        if (plan.keys.empty() || mine.find(plan.shape) != nullptr) continue;
        insert(mine, cache_.find(plan.shape));
        scratchpad_bytes = std::max(scratchpad_bytes, mine.find(plan.shape)->scratchpad_bytes());
      }
      num_tiles += count;
    }
    mine.first_tile[mine.num_sequences()] = num_tiles;
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
    const std::int64_t num_tiles = mine.first_tile[mine.num_sequences()];
    const std::int64_t num_heads = call.spec.num_kv_heads;
    FirstError error;
    // The last tiles of a sequence see most: they go first.
    pool().run(num_tiles * num_heads, [&](std::int64_t item, int thread) noexcept {
      if (error.failed()) return;
      try {
        const SerialRegion serial;
        const TileQueries queries = mine.queries_at(num_tiles - 1 - item / num_heads);
        const TilePlan plan = mine.plan(queries);
        const auto slot = static_cast<std::size_t>(thread);
        attend_tile(call, queries, item % num_heads, plan, mine.find(plan.shape),
                    mine.streams[slot], mine.scratch[slot]);
      } catch (const std::exception& caught) {
        error.set(caught.what());
      }
    });
    if (error.failed()) {
      fail(ErrorCode::kDevice, "onednn ", onednn_version(), " failed at ", to_string(call.spec),
           ": ", error.message());
    }
  }

 private:
  // Products of formats that oneDNN multiplies on this machine are exact in them; all else is
  // widened or dequantised to f32.
  DType compute_type(const AttentionSpec& spec) const noexcept {
    const bool native = spec.q_dtype == DType::kF16    ? native_f16_
                        : spec.q_dtype == DType::kBF16 ? native_bf16_
                                                       : false;
    return native && spec.kv.dtype == spec.q_dtype ? spec.q_dtype : DType::kF32;
  }

  static void insert(OnednnPrepared& prepared, std::shared_ptr<const TilePrimitives> made) {
    auto& all = prepared.primitives;
    const auto place = std::lower_bound(
        all.begin(), all.end(), made->shape(),
        [](const auto& entry, const TileShape& shape) { return entry->shape() < shape; });
    all.insert(place, std::move(made));
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
  bool native_f16_;
  bool native_bf16_;
};

}  // namespace
}  // namespace onednn

std::unique_ptr<AttentionBackend> make_onednn_backend(const BackendOptions& options) {
  try {
    return std::make_unique<onednn::OnednnBackend>(options);
  } catch (const dnnl::error& error) {
    fail(ErrorCode::kDevice, "onednn ", onednn_version(), ": ", error.what());
  }
}

std::string onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return concat(version->major, ".", version->minor, ".", version->patch);
}

}  // namespace quire

// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/torch_backend.h"

#include "backends/dense/batch_parts.h"
#include "backends/dense/dense_backend.h"
#include "backends/torch/cuda_probe.h"
#include "backends/torch/device_backend.h"
#include "backends/torch/part.h"
#include "backends/torch/sdpa.h"
#include "base/check.h"

namespace quire {
namespace torch_sdpa {
namespace {

// The parts of a batch, and the memory of each thread.
class TorchPrepared final : public PreparedBatch {
 public:
  TorchPrepared(const AttentionSpec& spec, const BatchBounds& bounds, const Workspace& workspace)
      : PreparedBatch(spec, bounds, workspace), parts(workspace.host, bounds) {}

  static std::int64_t workspace_bytes(const AttentionSpec& spec, const BatchBounds& bounds,
                                      int num_threads) noexcept {
    return parts_bytes(bounds) + num_threads * part_scratch_bytes(spec, bounds);
  }
  PartScratch scratch(int thread) const noexcept {
    char* memory = static_cast<char*>(workspace().host) + parts_bytes(bounds());
    return part_scratch_at(memory + thread * part_scratch_bytes(spec(), bounds()), spec(),
                           bounds());
  }

  dense::BatchParts parts;

 private:
  static std::int64_t parts_bytes(const BatchBounds& bounds) noexcept {
    return (dense::BatchParts::size_bytes(bounds) + 63) / 64 * 64;
  }
};

class TorchBackend final : public dense::DenseBackend {
 public:
  explicit TorchBackend(const BackendOptions& options) : DenseBackend(options) {}

  BackendInfo info() const override {
    return {.name = "torch",
            .version = version(),
            .isa = "cpu",
            .device = {},
            .batch_invariant = false};
  }

 protected:
  void collect_reasons(const AttentionSpec& spec, Support& support) const override {
    DenseBackend::collect_reasons(spec, support);
    if (spec.features.softcap) {
      support.reasons.emplace_back(
          "softcap: scaled_dot_product_attention lets nothing happen between its two products");
    }
  }

  WorkspaceSize do_workspace(const AttentionSpec& spec, const BatchBounds& bounds) const override {
    return {.host_bytes = TorchPrepared::workspace_bytes(spec, bounds, num_threads()),
            .device_bytes = 0};
  }

  std::unique_ptr<PreparedBatch> do_make_prepared(const AttentionSpec& spec,
                                                  const BatchBounds& bounds,
                                                  const Workspace& workspace) override {
    return std::make_unique<TorchPrepared>(spec, bounds, workspace);
  }

  void do_prepare(PreparedBatch& prepared, Stream) override {
    auto& mine = static_cast<TorchPrepared&>(prepared);
    mine.parts.cut(mine.batch(), [&](const SequenceView& sequence) {
      return part_queries(mine.spec(), sequence.kv_len);
    });
  }

  void do_attend(const PreparedBatch& prepared, const AttentionParams& params, const TensorView& q,
                 const KvSource& source, const AttentionOutput& output, Stream) override {
    const auto& mine = static_cast<const TorchPrepared&>(prepared);
    const PartCall call{.spec = prepared.spec(),
                        .params = params,
                        .batch = prepared.batch(),
                        .q = q,
                        .cache = source.cache,
                        .output = output};
    const std::int64_t num_heads = call.spec.num_kv_heads;
    const std::int64_t num_items = mine.parts.size() * num_heads;
    run_items(call.spec, num_items, [&](std::int64_t item, int thread) {
      const SerialRegion serial;
      // The last parts of a sequence see most: they go first.
      const std::int64_t index = num_items - 1 - item;
      PartScratch scratch = mine.scratch(thread);
      scratch.gather_seconds = gather_seconds_of(thread);
      attend_part(call, mine.parts.at(call.batch, index / num_heads), index % num_heads, scratch);
    });
  }
};

}  // namespace
}  // namespace torch_sdpa

std::vector<std::string> torch_levels() {
  if (torch_sdpa::missing_for_cuda().empty()) return {"cuda", "cpu"};
  return {"cpu"};
}

Availability probe_torch() {
  Availability found{.available = false, .version = torch_sdpa::version(), .reasons = {}};
  if (const std::string mismatch = torch_sdpa::version_mismatch(); !mismatch.empty()) {
    found.reasons.push_back(mismatch);
    return found;
  }
  found.available = true;
  if (const std::string missing = torch_sdpa::missing_for_cuda(); !missing.empty()) {
    found.reasons.push_back("no level cuda: " + missing);
  }
  return found;
}

std::unique_ptr<AttentionBackend> make_torch_backend(const BackendOptions& options) {
  require(options.isa.empty() || options.isa == "cpu" || options.isa == "cuda",
          "torch has no level named '", options.isa, "'");
  if (options.isa != "cpu") {
    const std::string missing = torch_sdpa::missing_for_cuda();
    if (missing.empty()) return torch_sdpa::make_cuda_backend();
    if (options.isa == "cuda")
      fail(ErrorCode::kUnsupported, "torch cannot use CUDA here: ", missing);
  }
  return std::make_unique<torch_sdpa::TorchBackend>(options);
}

std::string torch_version() {
  return torch_sdpa::version();
}

}  // namespace quire

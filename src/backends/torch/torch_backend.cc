// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/torch_backend.h"

#include "backends/dense/dense_backend.h"
#include "backends/torch/sdpa.h"
#include "backends/torch/sequence.h"
#include "base/check.h"

namespace quire {
namespace torch_sdpa {
namespace {

class TorchBackend final : public dense::DenseBackend {
 public:
  TorchBackend(const BackendOptions& options, Where where) : DenseBackend(options), where_(where) {}

  BackendInfo info() const override {
    return {.name = "torch",
            .version = version(),
            .isa = where_ == Where::kCpu ? "cpu" : "cuda",
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
    if (where_ == Where::kCpu) return;
    if (spec.features.lse || spec.features.sinks) {
      support.reasons.emplace_back(
          "lse and sinks on CUDA: only the CPU's kernel gives the log-sum-exp under a mask");
    }
  }

  WorkspaceSize do_workspace(const AttentionSpec& spec, const BatchBounds& bounds) const override {
    return {.host_bytes = scratch_bytes(spec, bounds), .device_bytes = 0};
  }

  void do_attend(const PreparedBatch& prepared, const AttentionParams& params, const TensorView& q,
                 const KvSource& source, const AttentionOutput& output, Stream) override {
    const SequenceCall call{.spec = prepared.spec(),
                            .params = params,
                            .batch = prepared.batch(),
                            .q = q,
                            .cache = source.cache,
                            .output = output,
                            .where = where_};
    const SequenceScratch scratch =
        scratch_at(prepared.workspace().host, prepared.spec(), prepared.bounds());
    const ThreadLimit limit(num_threads());
    for (std::int64_t s = 0; s < call.batch.num_sequences(); ++s) {
      try {
        attend_sequence(call, s, scratch);
      } catch (const Error& error) {
        fail(error.code(), error.what(), " (sequence ", s, " of ", to_string(call.spec), ")");
      }
    }
  }

 private:
  Where where_;
};

}  // namespace
}  // namespace torch_sdpa

std::vector<std::string> torch_levels() {
  std::vector<std::string> levels = {"cpu"};
  if (torch_sdpa::missing_for_cuda().empty()) levels.emplace_back("cuda");
  return levels;
}

std::unique_ptr<AttentionBackend> make_torch_backend(const BackendOptions& options) {
  if (!options.cpus.empty() || options.executor != nullptr) {
    fail(ErrorCode::kUnsupported,
         "torch runs on OpenMP threads of its own: it takes num_threads, neither cpus nor an "
         "executor");
  }
  require(options.isa.empty() || options.isa == "cpu" || options.isa == "cuda",
          "torch has no level named '", options.isa, "'");
  if (options.isa == "cuda") {
    const std::string missing = torch_sdpa::missing_for_cuda();
    if (!missing.empty()) fail(ErrorCode::kUnsupported, "torch cannot use CUDA here: ", missing);
  }
  const bool cuda = options.isa == "cuda";
  return std::make_unique<torch_sdpa::TorchBackend>(
      options, cuda ? torch_sdpa::Where::kCuda : torch_sdpa::Where::kCpu);
}

std::string torch_version() {
  return torch_sdpa::version();
}

}  // namespace quire

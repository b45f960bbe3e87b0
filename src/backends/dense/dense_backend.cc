// SPDX-License-Identifier: Apache-2.0
#include "backends/dense/dense_backend.h"

#include <algorithm>
#include <exception>
#include <new>

#include "backends/cpu/append_call.h"
#include "backends/cpu/merge_partials.h"
#include "base/check.h"
#include "base/cpu_features.h"

namespace quire::dense {
namespace {

std::unique_ptr<ThreadPool> make_pool(const BackendOptions& options) {
  require(options.num_threads >= 0, "num_threads must not be negative, got ", options.num_threads);
  if (options.executor != nullptr) {
    require(options.cpus.empty(),
            "cpus: an executor brings its own threads, which stay as they are");
    const int has = options.executor->num_threads();
    require(has >= 1, "executor: num_threads() must be at least 1, got ", has);
    return std::make_unique<ThreadPool>(
        *options.executor, options.num_threads > 0 ? std::min(options.num_threads, has) : has);
  }
  int num_threads = options.num_threads;
  if (num_threads == 0) num_threads = static_cast<int>(options.cpus.size());
  if (num_threads == 0) num_threads = detect_cpu_features().num_cpus;
  return std::make_unique<ThreadPool>(num_threads, options.cpus);
}

}  // namespace

void FirstError::rethrow(const BackendInfo& info, const AttentionSpec& spec) const {
  if (!failed()) return;
  const auto fail_with = [&](ErrorCode code, const char* message) {
    fail(code, info.name, " ", info.version, " failed at ", to_string(spec), ": ", message);
  };
  try {
    std::rethrow_exception(thrown_);
  } catch (const Error& error) {
    fail_with(error.code(), error.what());
  } catch (const std::bad_alloc& error) {
    fail_with(ErrorCode::kOutOfMemory, error.what());
  } catch (const std::exception& error) {
    fail_with(ErrorCode::kDevice, error.what());
  } catch (...) {
    fail_with(ErrorCode::kDevice, "something that is no exception was thrown");
  }
}

DenseBackend::DenseBackend(const BackendOptions& options)
    : pool_(make_pool(options)), gather_times_(static_cast<std::size_t>(num_threads())) {}

void DenseBackend::time_gather(bool on) {
  times_gather_ = on;
  if (on) std::fill(gather_times_.begin(), gather_times_.end(), ThreadTime{});
}

double DenseBackend::gather_seconds() const {
  double longest = 0;
  for (const ThreadTime& time : gather_times_) longest = std::max(longest, time.seconds);
  return longest;
}

void DenseBackend::do_append(const PreparedBatch& prepared, const NewKv& new_kv,
                             const KvCacheView& cache, Stream /*stream*/) {
  const cpu::AppendCall call = cpu::make_append_call(new_kv, cache, prepared.batch().kv.slots);
  const cpu::AppendShares shares = cpu::make_append_shares(call, num_threads());
  pool_->run(shares.size(), [&](std::int64_t index, int) noexcept {
    cpu::scalar::append_rows(call, cpu::append_share(call, shares, index));
  });
}

void DenseBackend::do_merge(std::span<const Partial> partials, ArrayView<float> sinks,
                            const AttentionOutput& output, Stream /*stream*/) {
  const std::int64_t num_heads = output.out.shape[1];
  pool_->run(output.out.shape[0], [&](std::int64_t row, int) noexcept {
    for (std::int64_t head = 0; head < num_heads; ++head) {
      cpu::merge_partials_row(partials, sinks, output, row, head);
    }
  });
}

}  // namespace quire::dense

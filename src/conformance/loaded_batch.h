// SPDX-License-Identifier: Apache-2.0
// A problem in one arrangement, in the memory of one backend, ready to run: the calls of a step,
// and what they left behind. Used by every check and by benchmarks. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "conformance/arrangement.h"
#include "conformance/batch_arrays.h"
#include "conformance/cache_memory.h"
#include "conformance/problem.h"
#include "conformance/tensor_image.h"
#include "quire/backend.h"

namespace quire::conformance {

// Results by token of the problem; rows of sequences that did not run hold NaN.
struct OutputData {
  std::vector<float> out;               // [num_tokens, num_q_heads, value_dim]
  std::vector<float> lse;               // [num_tokens, num_q_heads], or empty
  std::vector<std::uint32_t> out_bits;  // as out
  std::vector<std::uint32_t> lse_bits;  // as lse
};

struct LoadOptions {
  AttentionSpec spec;  // of the problem, with the layout of its cache
  Arrival arrival = Arrival::kStored;
  bool metadata_on_device = false;
  std::int64_t extra_bounds = 0;  // how much larger than the batch the bounds are
  Stream stream;
};

// The spec of a case for a backend: with the layout that the case's cache has there.
AttentionSpec spec_for(const AttentionBackend& backend, const Problem& problem);

class LoadedBatch {
 public:
  // All must outlive it.
  LoadedBatch(AttentionBackend& backend, const Problem& problem, const Arrangement& arrangement,
              const LoadOptions& options);

  // Each one call of the backend, so that a benchmark may time it.
  void prepare();
  void append();
  void attend();
  void wait();  // throws what poll reports
  // Another batch of the same problem on the same PreparedBatch; the next run prepares this one
  // anew.
  void prepare_other(const Arrangement& other);
  // All of a step, as the arrival says; returns when it is done. Throws what the backend throws.
  void run();

  OutputData output() const;
  // The first byte that a call changed and should not have, by name. After append the cache must
  // hold the new tokens.
  std::optional<std::string> side_effects() const;

  CacheMemory& cache() noexcept { return cache_; }
  Partial partial() const { return {out_.view(), lse_->view()}; }
  const BatchBounds& bounds() const noexcept { return bounds_; }

 private:
  void fill_cache();
  void fill_new_kv();
  void fill_queries();
  void fill_bias();
  void expect_new_tokens();
  void forget_tails();
  NewKv new_kv() const;
  AttentionParams params() const;

  AttentionBackend& backend_;
  const Problem& problem_;
  const Arrangement& arrangement_;
  LoadOptions options_;
  Support support_;
  BatchBounds bounds_;
  BatchArrays arrays_;
  CacheMemory cache_;
  TensorImage q_;
  TensorImage out_;
  std::unique_ptr<TensorImage> lse_;    // if the spec declares it
  std::unique_ptr<TensorImage> new_k_;  // if something arrives
  std::unique_ptr<TensorImage> new_v_;
  std::unique_ptr<TensorImage> bias_;
  ArrayImage<float> alibi_slopes_;
  ArrayImage<float> sinks_;
  std::unique_ptr<DeviceBuffer> host_workspace_;  // exactly as large as asked for
  std::unique_ptr<DeviceBuffer> device_workspace_;
  std::unique_ptr<PreparedBatch> prepared_;
  bool has_new_tokens_ = false;  // the image of the cache holds what arrives
};

}  // namespace quire::conformance

// SPDX-License-Identifier: Apache-2.0
// Calls of a GPU backend over ragged batches of given sequences, whose metadata lies on the host,
// on the device, or on the device under a recording; and a cache that holds every block twice.
// One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "conformance/device_buffer.h"
#include "gpu/tested_gpu.h"
#include "quire/backend.h"

namespace quire::testing {

inline constexpr int kBlockSize = 16;

// Keys lie in the blocks [first_block, ...) of the pool; sequences may share them. Equal seeds have
// equal queries.
struct Sequence {
  int q_len = 0;
  int kv_len = 0;
  int first_block = 0;
  std::uint64_t seed = 0;
  int rows_before = 0;  // padding rows that belong to nobody, in front of it
};

enum class Metadata : std::uint8_t { kOnHost, kOnDevice, kRecorded };
inline constexpr Metadata kEveryMetadata[] = {Metadata::kOnHost, Metadata::kOnDevice,
                                              Metadata::kRecorded};

// Random bf16 keys in the blocks [0, pool), and copies of them in other blocks.
class TwicePlacedCache {
 public:
  // The copies lie in [first_copy, first_copy + pool), in another order.
  TwicePlacedCache(TestedGpu& gpu, int pool, std::int64_t first_copy);

  const AttentionSpec& spec() const noexcept { return spec_; }
  const KvCacheView& view() const { return cache_->layer(0); }
  int pool() const noexcept { return pool_; }
  // Where the copy of a block of the pool lies.
  std::int32_t copy_of(std::int32_t block) const;
  // Overwrites the pool with what the copies hold.
  void copy_back();

  static AttentionSpec make_spec(const TestedGpu& gpu);

 private:
  void copy(bool back);

  AttentionBackend& backend_;
  AttentionSpec spec_;
  int pool_;
  std::int64_t first_copy_;
  std::unique_ptr<KvCache> cache_;
};

// Bytes of all rows, [max_tokens, ...].
struct Output {
  std::vector<std::byte> out;
  std::vector<std::byte> lse;
  friend bool operator==(const Output&, const Output&) = default;
};

class RaggedCalls {
 public:
  // Both must outlive it. What kRecorded replays is recorded here, over a batch of nobody.
  RaggedCalls(TestedGpu& gpu, const TwicePlacedCache& cache, const BatchBounds& bounds);
  ~RaggedCalls();
  RaggedCalls(const RaggedCalls&) = delete;
  RaggedCalls& operator=(const RaggedCalls&) = delete;

  // Rows that are not written stay poison.
  Output run(const std::vector<Sequence>& batch, Metadata metadata, bool in_copies = false);

 private:
  struct Arrays;

  Arrays make_arrays(const std::vector<Sequence>& batch, bool in_copies) const;
  void upload_queries(const std::vector<Sequence>& batch);
  void upload_arrays(const Arrays& arrays);
  BatchView device_batch() const;
  void enqueue(PreparedBatch& prepared, const BatchView& batch);

  TestedGpu& gpu_;
  const TwicePlacedCache& cache_;
  BatchBounds bounds_;
  std::int64_t row_stride_;  // of tables
  conformance::DeviceBuffer begins_, ends_, lens_, indices_, q_, out_, lse_;
  WorkspaceBuffer plain_workspace_, recorded_workspace_;
  std::unique_ptr<PreparedBatch> plain_, recorded_;
  Stream stream_;
  std::unique_ptr<DeviceRecording> recording_;
};

// The rows [first, first + count) of an output of max_tokens rows.
Output rows_of(const Output& output, std::int64_t max_tokens, std::int64_t first,
               std::int64_t count);
bool is_poison(const Output& output);

}  // namespace quire::testing

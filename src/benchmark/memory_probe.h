// SPDX-License-Identifier: Apache-2.0
// What the memory of a machine gives at most: plain reads in order, plain reads of pieces in random
// order, and memcpy, on every thread of a pool. A run takes up where the last one ended, so a
// buffer several times the last-level cache is never found in it.
//
// One thread uses a probe at a time; several probes may share a buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"

namespace quire::benchmark {

// Touched memory on huge pages.
class ProbeBuffer {
 public:
  explicit ProbeBuffer(std::int64_t size_bytes);
  ~ProbeBuffer();
  ProbeBuffer(const ProbeBuffer&) = delete;
  ProbeBuffer& operator=(const ProbeBuffer&) = delete;

  std::byte* data() const noexcept { return data_; }
  std::int64_t size_bytes() const noexcept { return size_bytes_; }

 private:
  std::byte* data_;
  std::int64_t size_bytes_;
};

class ReadProbe {
 public:
  // Pieces of `piece_bytes` in random order; 0: the buffer from one end to the other. Tries every
  // prefetch distance and keeps the fastest. Buffer and pool must outlive it.
  ReadProbe(ThreadPool& pool, const ProbeBuffer& buffer, std::int64_t piece_bytes,
            std::int64_t run_bytes);

  double run();  // bytes per second
  std::int64_t prefetch_bytes() const noexcept { return ahead_bytes_; }

 private:
  double read_next(std::int64_t ahead_bytes);

  ThreadPool& pool_;
  const ProbeBuffer& buffer_;
  std::int64_t piece_bytes_;
  std::int64_t pieces_per_run_;
  std::vector<std::int32_t> order_;  // [number of pieces]
  std::int64_t next_ = 0;            // into order_
  std::int64_t ahead_bytes_ = 0;
};

class CopyProbe {
 public:
  // From the first half of the buffer to the second.
  CopyProbe(ThreadPool& pool, const ProbeBuffer& buffer, std::int64_t run_bytes);

  double run();  // bytes copied per second

 private:
  double copy_next(std::int64_t item_bytes);

  ThreadPool& pool_;
  const ProbeBuffer& buffer_;
  std::int64_t run_bytes_;
  std::int64_t next_ = 0;
  std::int64_t item_bytes_;
};

}  // namespace quire::benchmark

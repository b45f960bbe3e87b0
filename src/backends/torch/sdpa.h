// SPDX-License-Identifier: Apache-2.0
// PyTorch's scaled dot product attention on dense memory: the one border to libtorch, free of its
// headers.
//
// Threads: torch runs on OpenMP threads, as many as the setting of the calling thread says. A
// ThreadLimit sets it for this thread's calls and puts it back; the global settings of torch, which
// the program may use too, are not touched.
#pragma once

#include <cstdint>
#include <string>

#include "quire/dtype.h"

namespace quire::torch_sdpa {

enum class Where : std::uint8_t { kCpu, kCuda };

// q [heads, rows, dims], k and v [heads, keys, dims] of `dtype`, each head at its stride, rows
// contiguous. Every row sees every key but for the mask.
struct Problem {
  DType dtype = DType::kF32;  // f32, f16 or bf16
  std::int64_t heads = 0;
  std::int64_t rows = 0;
  std::int64_t keys = 0;
  std::int64_t dims = 0;
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  std::int64_t kv_head_stride = 0;  // elements
  const float* mask = nullptr;      // [mask_heads, rows, keys], added to the scores; or none
  std::int64_t mask_heads = 1;      // 1: all heads share it
  float scale = 1.0F;
  Where where = Where::kCpu;
};

// Writes out [heads, rows, dims] and, unless null, lse [heads, rows] (on the CPU alone). Rows that
// see no key are whatever torch makes of them. Throws Error(kDevice) with torch's words, and
// Error(kUnsupported) if torch would round the scores of a 16-bit problem (its math path).
void run(const Problem& problem, float* out, float* lse);

// f(context, i) for every i of [0, count), on torch's threads. f must not throw.
void parallel_for(std::int64_t count, void (*f)(void* context, std::int64_t i), void* context);

class ThreadLimit {
 public:
  explicit ThreadLimit(int num_threads) noexcept;
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

 private:
  int before_;
};

// "2.15.0".
const char* version() noexcept;

// Empty if torch can compute on a CUDA device here, else why not. Loads torch's CUDA library.
std::string missing_for_cuda();

}  // namespace quire::torch_sdpa

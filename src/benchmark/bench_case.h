// SPDX-License-Identifier: Apache-2.0
// What is measured: a conformance case (the same description that tests and `quire check` use) and
// which call of it, on which data. The list holds the cases that the tables of docs/benchmarks.md
// show; any other comes from a command line (CustomShape).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/case.h"

namespace quire::benchmark {

enum class Operation : std::uint8_t {
  kAttend,   // attend, the batch prepared before
  kStep,     // prepare, append and attend: all that one layer of one step takes
  kAppend,   // append alone
  kCopy,     // copy_blocks of a quarter of the blocks to other ones
  kSwapOut,  // the same to (pinned) host memory
  kSwapIn,   // and from there
};

struct BenchCase {
  std::string suite;    // "decode", "prefill", "mixed", "append", "copy", "gpu" or "custom"
  conformance::Case c;  // values are not drawn from it: only shapes, spec and places
  Operation operation = Operation::kAttend;
  bool hot = false;      // the same memory every time, instead of several times the caches
  bool quick = false;    // part of a short run
  std::string baseline;  // a case that this one is compared with in the same rounds, or empty
};

std::vector<BenchCase> bench_cases();
// The cases of the table for GPUs (gpu_cases.cc), larger than what a host is measured with.
void add_gpu_cases(std::vector<BenchCase>& cases);

// Those of a suite ("all": of every one but "gpu") whose names match, with their baselines.
std::vector<BenchCase> select_cases(const std::vector<BenchCase>& cases, std::string_view suite,
                                    std::string_view filter, bool quick);

// Where K and V of a custom case lie.
enum class CacheChoice : std::uint8_t {
  kPreferred,  // as the backend likes it best
  kPlain,      // the plain record: [head, token, dim]
  kCaller,     // two dense tensors [block, token, head, dim] of the caller
};

struct CustomShape {
  std::string batch = "q1@4096*16";
  int num_q_heads = 32;
  int num_kv_heads = 8;
  int head_dim = 128;
  int value_dim = 0;  // 0: head_dim
  DType q_dtype = DType::kBF16;
  DType kv_dtype = DType::kBF16;
  ScaleGranularity scales = ScaleGranularity::kNone;  // kNone with an 8-bit dtype: per tensor
  int block_size = 32;
  CacheChoice cache = CacheChoice::kPreferred;
  std::int64_t window = 0;         // keys that a query sees, itself included; 0: all
  std::int64_t shared_tokens = 0;  // of a common prefix, rounded down to blocks
  bool hot = false;
};

// Throws Error(kInvalidArgument) naming what contradicts itself.
BenchCase custom_case(const CustomShape& shape);

// `count` key lengths of [low, high], their logarithms evenly distributed; the same every time.
std::vector<std::int64_t> log_uniform_lengths(std::int64_t count, std::int64_t low,
                                              std::int64_t high);

}  // namespace quire::benchmark

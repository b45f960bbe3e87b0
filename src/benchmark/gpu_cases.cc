// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "benchmark/bench_case.h"

namespace quire::benchmark {
namespace {

// Unless a case says otherwise.
constexpr int kBlock = 16;
constexpr const char* kUsualBatch = "q1@8192*32";
constexpr const char* kUsualName = "gpu/decode/32x8192";

class GpuCases {
 public:
  explicit GpuCases(std::vector<BenchCase>& cases) : cases_(cases) {}

  BenchCase& add(const std::string& name, const CustomShape& shape) {
    BenchCase c = custom_case(shape);
    c.suite = "gpu";
    c.c.name = "gpu/" + name;
    cases_.push_back(std::move(c));
    return cases_.back();
  }
  void add_decodes() {
    add("decode/1x8192/hot", {.batch = "q1@8192", .block_size = kBlock, .hot = true}).quick = true;
    struct Shape {
      const char* name;
      const char* batch;
    };
    constexpr Shape kShapes[] = {{"1x8192", "q1@8192"},      {"1x131072", "q1@131072"},
                                 {"8x8192", "q1@8192*8"},    {"32x1024", "q1@1024*32"},
                                 {"32x8192", "q1@8192*32"},  {"128x8192", "q1@8192*128"},
                                 {"256x1024", "q1@1024*256"}};
    for (const Shape& shape : kShapes) {
      add(concat("decode/", shape.name), {.batch = shape.batch, .block_size = kBlock}).quick = true;
    }
    BenchCase& ragged = add("decode/ragged64", {.block_size = kBlock});
    ragged.c.sequences.clear();
    for (const std::int64_t kv_len : log_uniform_lengths(64, 256, 65536)) {
      ragged.c.sequences.push_back({.q_len = 1, .kv_len = kv_len});
    }
  }

  void add_features() {
    for (const int block : {1, 8, 64, 256}) {
      add(concat("decode/32x8192/b", block), {.batch = kUsualBatch, .block_size = block}).baseline =
          kUsualName;
    }
    add("decode/fp8/32x8192",
        {.batch = kUsualBatch, .kv_dtype = DType::kF8E4M3, .block_size = kBlock})
        .baseline = kUsualName;
    add("decode/int8/32x8192", {.batch = kUsualBatch,
                                .kv_dtype = DType::kI8,
                                .scales = ScaleGranularity::kPerTokenHead,
                                .block_size = kBlock})
        .baseline = kUsualName;
    add("decode/verify4/32x8192", {.batch = "q4@8192*32", .block_size = kBlock}).baseline =
        kUsualName;
    add("decode/window1024/32x32768",
        {.batch = "q1@32768*32", .block_size = kBlock, .window = 1024})
        .baseline = "gpu/decode/32x1024";
    add("decode/hd64/32x8192", {.batch = kUsualBatch,
                                .num_q_heads = 64,
                                .num_kv_heads = 8,
                                .head_dim = 64,
                                .block_size = kBlock});
    add("decode/hd256/32x8192", {.batch = kUsualBatch,
                                 .num_q_heads = 16,
                                 .num_kv_heads = 4,
                                 .head_dim = 256,
                                 .block_size = kBlock});
    add("decode/group1/32x8192",
        {.batch = kUsualBatch, .num_q_heads = 8, .num_kv_heads = 8, .block_size = kBlock});
  }

  void add_others() {
    add("mixed/8x512@4096+120x4096", {.batch = "q512@4096*8,q1@4096*120", .block_size = kBlock});
    add("prefill/4x4096", {.batch = "q4096@4096*4", .block_size = kBlock});
    constexpr const char* kNewTokens = "q512@512*16";
    add_operation("append/8192/bf16", Operation::kAppend,
                  {.batch = kNewTokens, .block_size = kBlock});
    add_operation("append/8192/fp8", Operation::kAppend,
                  {.batch = kNewTokens, .kv_dtype = DType::kF8E4M3, .block_size = kBlock});
    add_operation("append/8192/int8", Operation::kAppend,
                  {.batch = kNewTokens,
                   .kv_dtype = DType::kI8,
                   .scales = ScaleGranularity::kPerTokenHead,
                   .block_size = kBlock});
    // A quarter of the 4000 blocks: 1000 of 64 KiB.
    const CustomShape blocks{.batch = "q1@4000*16", .block_size = kBlock};
    add_operation("copy/1000x64K", Operation::kCopy, blocks);
    add_operation("swap_out/1000x64K", Operation::kSwapOut, blocks);
    add_operation("swap_in/1000x64K", Operation::kSwapIn, blocks);
  }

 private:
  void add_operation(const std::string& name, Operation operation, const CustomShape& shape) {
    add(name, shape).operation = operation;
  }

  std::vector<BenchCase>& cases_;
};

}  // namespace

void add_gpu_cases(std::vector<BenchCase>& cases) {
  GpuCases gpu(cases);
  gpu.add_decodes();
  gpu.add_features();
  gpu.add_others();
}

}  // namespace quire::benchmark

// SPDX-License-Identifier: Apache-2.0
#include "benchmark/bench_case.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "benchmark/batch_grammar.h"
#include "conformance/random.h"
#include "conformance/run.h"

namespace quire::benchmark {
namespace {

using conformance::CacheStyle;
using conformance::Case;

// Of the cases that show one feature; all block sizes are shown by the plain ones.
constexpr int kUsualBlock = 32;

BenchCase make_case(std::string suite, const std::string& name, const CustomShape& shape) {
  BenchCase result = custom_case(shape);
  result.suite = std::move(suite);
  result.c.name = name;
  return result;
}

void add_decodes(std::vector<BenchCase>& cases) {
  struct Shape {
    const char* name;
    const char* batch;
  };
  constexpr Shape kShapes[] = {
      {"16x4096", "q1@4096*16"}, {"1x32768", "q1@32768"}, {"64x1024", "q1@1024*64"}};
  for (const Shape& shape : kShapes) {
    for (const int block : {16, 32, 128}) {
      cases.push_back(make_case("decode", concat("decode/", shape.name, "/b", block),
                                {.batch = shape.batch, .block_size = block}));
      cases.back().quick = block == kUsualBlock;
    }
  }
  for (const Shape& shape : kShapes) {
    for (const int block : {16, 1}) {
      cases.push_back(
          make_case("decode", concat("decode/caller/", shape.name, "/b", block),
                    {.batch = shape.batch, .block_size = block, .cache = CacheChoice::kCaller}));
      cases.back().quick = shape.batch == std::string_view("q1@4096*16");
    }
  }
}

void add_decode_features(std::vector<BenchCase>& cases) {
  const std::string plain = concat("decode/16x4096/b", kUsualBlock);
  const auto add = [&](const char* name, const CustomShape& shape) -> BenchCase& {
    cases.push_back(make_case("decode", name, shape));
    return cases.back();
  };
  add("decode/hd64/16x4096", {.head_dim = 64});
  add("decode/hd256/16x4096", {.head_dim = 256});
  add("decode/f16/16x4096", {.q_dtype = DType::kF16, .kv_dtype = DType::kF16});
  add("decode/group1/16x4096", {.num_q_heads = 8});
  add("decode/group8/16x4096", {.num_q_heads = 64});
  BenchCase& fp8 = add("decode/fp8/16x4096", {.kv_dtype = DType::kF8E4M3});
  fp8.baseline = plain;
  fp8.quick = true;
  BenchCase& int8 = add("decode/int8/16x4096",
                        {.kv_dtype = DType::kI8, .scales = ScaleGranularity::kPerTokenHead});
  int8.baseline = plain;
  add("decode/verify4/16x4096", {.batch = "q4@4096*16"}).quick = true;
  add("decode/16x1024/b32", {.batch = "q1@1024*16"});
  add("decode/window1024/16x32768", {.batch = "q1@32768*16", .window = 1024}).baseline =
      "decode/16x1024/b32";
  add("decode/shared3072/16x4096", {.shared_tokens = 3072}).baseline = plain;
  BenchCase& step = add("decode/step/1x128/hot", {.batch = "q1@128", .hot = true});
  step.operation = Operation::kStep;
  step.quick = true;
}

void add_ragged(std::vector<BenchCase>& cases) {
  BenchCase ragged = make_case("decode", "decode/ragged/32x64..16384", {});
  ragged.c.sequences.clear();
  for (const std::int64_t kv_len : log_uniform_lengths(32, 64, 16384)) {
    ragged.c.sequences.push_back({.q_len = 1, .kv_len = kv_len});
  }
  cases.push_back(ragged);
}

void add_others(std::vector<BenchCase>& cases) {
  const auto add = [&](const char* suite, const char* name,
                       const CustomShape& shape) -> BenchCase& {
    cases.push_back(make_case(suite, name, shape));
    return cases.back();
  };
  add("prefill", "prefill/2048/hd128", {.batch = "q2048@2048"}).quick = true;
  add("prefill", "prefill/2048/hd64", {.batch = "q2048@2048", .head_dim = 64});
  add("mixed", "mixed/512@4096+31x2048", {.batch = "q512@4096*1,q1@2048*31"}).quick = true;
  constexpr const char* kAppendBatch = "q512@512*16";
  BenchCase& append = add("append", "append/8192/bf16", {.batch = kAppendBatch});
  append.operation = Operation::kAppend;
  append.quick = true;
  add("append", "append/8192/fp8", {.batch = kAppendBatch, .kv_dtype = DType::kF8E4M3}).operation =
      Operation::kAppend;
  add("append", "append/8192/int8",
      {.batch = kAppendBatch, .kv_dtype = DType::kI8, .scales = ScaleGranularity::kPerTokenHead})
      .operation = Operation::kAppend;
  BenchCase& copy = add("copy", "copy/1024/b16", {.batch = "q1@4096*16", .block_size = 16});
  copy.operation = Operation::kCopy;
  copy.quick = true;
}

}  // namespace

std::vector<std::int64_t> log_uniform_lengths(std::int64_t count, std::int64_t low,
                                              std::int64_t high) {
  conformance::Random random(conformance::seed_of("log-uniform lengths"));
  const double span = std::log2(static_cast<double>(high) / static_cast<double>(low));
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < count; ++i) {
    const double length = static_cast<double>(low) * std::exp2(span * random.uniform());
    lengths.push_back(std::clamp(std::llround(length), static_cast<long long>(low),
                                 static_cast<long long>(high)));
  }
  return lengths;
}

BenchCase custom_case(const CustomShape& shape) {
  BenchCase result;
  result.suite = "custom";
  result.hot = shape.hot;
  Case& c = result.c;
  c.name = concat("custom/", shape.batch);
  c.sequences = parse_batch(shape.batch);
  c.spec.num_q_heads = shape.num_q_heads;
  c.spec.num_kv_heads = shape.num_kv_heads;
  c.spec.head_dim = shape.head_dim;
  c.spec.value_dim = shape.value_dim > 0 ? shape.value_dim : shape.head_dim;
  c.spec.q_dtype = shape.q_dtype;
  c.spec.out_dtype = shape.q_dtype;
  c.spec.kv.dtype = shape.kv_dtype;
  c.spec.kv.block_size = shape.block_size;
  c.spec.kv.scales = shape.scales;
  if (is_quantized(shape.kv_dtype) && shape.scales == ScaleGranularity::kNone) {
    c.spec.kv.scales = ScaleGranularity::kPerTensor;
  }
  if (shape.window > 0) c.spec.mask.window_left = shape.window - 1;
  c.cache = shape.cache == CacheChoice::kPreferred ? CacheStyle::kPreferred
            : shape.cache == CacheChoice::kPlain   ? CacheStyle::kPlainRecord
                                                   : CacheStyle::kSeparate;
  c.order = KvOrder::kBlockTokenHeadDim;
  c.new_kv_dtype = shape.q_dtype;
  validate(c.spec);
  c.shared_blocks = shape.shared_tokens / shape.block_size;
  return result;
}

std::vector<BenchCase> bench_cases() {
  std::vector<BenchCase> cases;
  add_decodes(cases);
  add_decode_features(cases);
  add_ragged(cases);
  add_others(cases);
  add_gpu_cases(cases);
  return cases;
}

std::vector<BenchCase> select_cases(const std::vector<BenchCase>& cases, std::string_view suite,
                                    std::string_view filter, bool quick) {
  const auto is_chosen = [&](const BenchCase& c) {
    return (suite == "all" ? c.suite != "gpu" : c.suite == suite) && (!quick || c.quick) &&
           conformance::matches(c.c.name, filter);
  };
  const auto is_baseline = [&](const BenchCase& c) {
    return std::any_of(cases.begin(), cases.end(), [&](const BenchCase& other) {
      return is_chosen(other) && other.baseline == c.c.name;
    });
  };
  std::vector<BenchCase> chosen;
  for (const BenchCase& c : cases) {
    if (is_chosen(c) || is_baseline(c)) chosen.push_back(c);
  }
  return chosen;
}

}  // namespace quire::benchmark

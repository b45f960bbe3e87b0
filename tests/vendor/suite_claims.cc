// SPDX-License-Identifier: Apache-2.0
#include "vendor/suite_claims.h"

#include <gtest/gtest.h>
#include <algorithm>

#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>

#include "base/check.h"
#include "base/host_memory.h"
#include "base/number_formats.h"
#include "conformance/case_list.h"
#include "layout/kv_rows.h"
#include "quire/registry.h"

namespace quire::testing {
namespace {

using conformance::Case;
using conformance::CaseResult;
using conformance::CaseStatus;

const Refusal* refusal_of(const std::vector<Refusal>& refusals, const Case& c) {
  for (const Refusal& refusal : refusals) {
    if (refusal.covers(c)) return &refusal;
  }
  return nullptr;
}

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Of each sequence.
constexpr std::int32_t kQueries = 5;
constexpr std::int32_t kKeys = 9;
constexpr std::int32_t kBlocks = 3;
constexpr int kDims = 16;
constexpr std::int32_t kTokens = 2 * kQueries;  // of both

AttentionSpec small_spec(DType dtype, bool has_bias) {
  AttentionSpec spec;
  spec.num_q_heads = 4;
  spec.num_kv_heads = 2;
  spec.head_dim = spec.value_dim = kDims;
  spec.q_dtype = spec.out_dtype = dtype;
  spec.kv.dtype = dtype;
  spec.kv.block_size = 4;
  spec.features.bias = has_bias;
  spec.features.lse = true;
  return spec;
}

// Memory where the backend computes, with what the host has.
class Copied {
 public:
  Copied(DeviceMemory& memory, const void* data, std::int64_t size_bytes)
      : memory_(memory), data_(memory.allocate(size_bytes)), size_bytes_(size_bytes) {
    memory_.copy_to_device(data_, data, size_bytes_, Stream{});
    memory_.synchronize(Stream{});
  }
  ~Copied() { memory_.free(data_); }
  Copied(const Copied&) = delete;
  Copied& operator=(const Copied&) = delete;

  void* data() const { return data_; }
  void read(void* to) const {
    memory_.copy_to_host(to, data_, size_bytes_, Stream{});
    memory_.synchronize(Stream{});
  }

 private:
  DeviceMemory& memory_;
  void* data_;
  std::int64_t size_bytes_;
};

// Key 6 is hidden from query 3 and key 2 from all.
bool is_hidden_by_bias(std::int64_t query, std::int64_t key) {
  return key == 2 || (key == 6 && query == 3);
}

float wave(std::int64_t i) {
  return std::sin(static_cast<float>(i) * 1.7F);
}

// Two sequences, of which the first one's cache holds `value` at dim 3 of one key of kv head 0.
struct NotFinite {
  DType dtype;
  KvTensor tensor;
  std::int64_t key;
  float value;
  bool has_bias;

  bool is_seen(std::int64_t token, std::int64_t head) const {
    return token < kQueries && head < 2 && key <= kKeys - kQueries + token &&
           !(has_bias && is_hidden_by_bias(token, key));
  }
};

void fill_cache(const NotFinite& c, const KvCacheView& layer) {
  std::vector<float> row(kDims);
  const std::int64_t slots = kBlocks * layer.format.block_size;  // of a sequence
  for (std::int64_t slot = 0; slot < 2 * slots; ++slot) {
    const std::int64_t j = slot % slots;
    for (const KvTensor part : {KvTensor::kK, KvTensor::kV}) {
      for (std::int64_t head = 0; head < 2; ++head) {
        for (std::int64_t d = 0; d < kDims; ++d) {
          row[static_cast<std::size_t>(d)] =
              j < kKeys ? wave(d + 16 * (slot + 24 * (head + 2 * static_cast<int>(part)))) : kNaN;
        }
        if (part == c.tensor && slot == c.key && head == 0) row[3] = c.value;
        store_row(layer, part, slot / 4, head, slot % 4, row.data());
      }
    }
  }
}

struct Attended {
  std::vector<float> out;  // [tokens, 4, dims]
  std::vector<float> lse;  // [tokens, 4]
};

Attended attend_with(AttentionBackend& backend, const NotFinite& c) {
  const AttentionSpec spec = small_spec(c.dtype, c.has_bias);
  DeviceMemory& memory = backend.memory();
  const KvCache on_host(host_memory(), spec, plain_layout(spec), {.num_blocks = 2 * kBlocks});
  fill_cache(c, on_host.layer(0));
  const KvCache cache(memory, spec, plain_layout(spec), {.num_blocks = 2 * kBlocks});
  memory.copy_to_device(cache.layer(0).k, on_host.layer(0).k, on_host.size_bytes(), Stream{});
  const std::vector<std::int32_t> begins = {0, kQueries};
  const std::vector<std::int32_t> ends = {kQueries, kTokens};
  const std::vector<std::int32_t> lens = {kKeys, kKeys};
  const std::vector<std::int32_t> table = {0, 1, 2, 3, 4, 5};
  BatchView batch;
  batch.queries = {begins, ends};
  batch.kv.lens = lens;
  batch.kv.blocks = BlockTables::padded(table, kBlocks);
  const BatchBounds bounds{2, kTokens, kKeys, 2 * kKeys};
  const WorkspaceBuffer workspace(memory, backend.workspace(spec, bounds));
  const auto prepared = backend.make_prepared(spec, bounds, workspace.view());
  backend.prepare(*prepared, batch);

  constexpr std::int64_t kNumValues = kTokens * 4 * kDims;
  std::vector<float> values(kNumValues);
  for (std::int64_t i = 0; i < kNumValues; ++i) store_float(c.dtype, values.data(), i, wave(3 * i));
  const std::int64_t size_bytes = kNumValues * dtype_bytes(c.dtype);
  const Copied q(memory, values.data(), size_bytes);
  const Copied out(memory, values.data(), size_bytes);
  std::vector<float> bias(kQueries * kKeys, 0.25F);
  for (std::int64_t i = 0; i < kQueries; ++i) {
    for (std::int64_t j = 0; j < kKeys; ++j) {
      if (is_hidden_by_bias(i, j)) bias[static_cast<std::size_t>(i * kKeys + j)] = -kInfinity;
    }
  }
  const Copied bias_there(memory, bias.data(), kQueries * kKeys * std::int64_t{sizeof(float)});
  AttentionParams params;
  params.scale = 0.25F;
  if (c.has_bias) {
    params.bias =
        TensorView(bias_there.data(), DType::kF32, {2, 4, kQueries, kKeys}, memory.device());
    params.bias.strides = {0, 0, kKeys, 1, 0};
  }
  Attended result;
  result.lse.resize(kTokens * 4);
  const Copied lse(memory, result.lse.data(), kTokens * 4 * std::int64_t{sizeof(float)});
  backend.attend(*prepared, params,
                 TensorView(q.data(), c.dtype, {kTokens, 4, kDims}, memory.device()),
                 cache.layer(0),
                 {MutableTensorView(out.data(), c.dtype, {kTokens, 4, kDims}, memory.device()),
                  MutableTensorView(lse.data(), DType::kF32, {kTokens, 4}, memory.device())});
  out.read(values.data());
  lse.read(result.lse.data());
  for (std::int64_t i = 0; i < kNumValues; ++i) {
    result.out.push_back(load_float(c.dtype, values.data(), i));
  }
  return result;
}

void expect_same(float got, float want, float tolerance) {
  if (std::isnan(want) || std::isinf(want)) {
    ASSERT_TRUE(std::isnan(want) ? std::isnan(got) : got == want) << got << ", not " << want;
  } else {
    ASSERT_NEAR(got, want, tolerance);
  }
}

void expect_stays_put(AttentionBackend& reference, AttentionBackend& backend, const NotFinite& c,
                      WhoSees who_sees) {
  SCOPED_TRACE(concat(c.tensor == KvTensor::kK ? "K" : "V", " of key ", c.key, " holds ", c.value,
                      ", ", dtype_name(c.dtype), c.has_bias ? ", with a bias" : ""));
  const Attended want = attend_with(reference, c);
  const Attended got = attend_with(backend, c);
  const float tolerance = c.dtype == DType::kF32 ? 1e-5F : 0.03F;
  for (std::size_t i = 0; i < want.out.size(); ++i) {
    const std::size_t row = i / kDims;
    SCOPED_TRACE(concat("row ", row, " dim ", i % kDims));
    const bool becomes_nan =
        who_sees == WhoSees::kBecomesNaN && c.is_seen(static_cast<std::int64_t>(row / 4), row % 4);
    if (becomes_nan) {
      ASSERT_TRUE(std::isnan(got.out[i])) << got.out[i];
    } else {
      ASSERT_NO_FATAL_FAILURE(expect_same(got.out[i], want.out[i], tolerance));
      ASSERT_NO_FATAL_FAILURE(expect_same(got.lse[row], want.lse[row], tolerance)) << "lse";
    }
  }
}

}  // namespace

conformance::RunSummary expect_claims(AttentionBackend& backend,
                                      const std::vector<Refusal>& refusals,
                                      const std::vector<Inexact>& inexact) {
  conformance::RunSummary summary;
  std::map<std::string, int> reasons;
  for (const Case& c : select(conformance::all_cases(), conformance::Suite::kStandard)) {
    const CaseResult result = run_case(backend, c);
    summary.add(result);
    const bool may_fail = std::any_of(inexact.begin(), inexact.end(),
                                      [&](const Inexact& x) { return x.case_name == c.name; });
    if (may_fail && result.status == CaseStatus::kFailed) {
      std::printf("inexact: %s: %s\n", c.name.c_str(), result.reason.c_str());
      continue;
    }
    const Refusal* refusal = refusal_of(refusals, c);
    EXPECT_EQ(result.status, refusal == nullptr ? CaseStatus::kPassed : CaseStatus::kSkipped)
        << c.name << ": " << result.reason;
    if (result.status != CaseStatus::kSkipped) continue;
    ++reasons[result.reason];
    if (refusal == nullptr) continue;
    EXPECT_NE(result.reason.find(refusal->reason), std::string::npos)
        << c.name << ": " << result.reason;
  }
  std::printf("%s: %lld passed, %lld failed, %lld refused\n", backend.info().name.c_str(),
              static_cast<long long>(summary.num_passed),
              static_cast<long long>(summary.num_failed),
              static_cast<long long>(summary.num_skipped));
  for (const auto& [reason, count] : reasons) std::printf("  %d: %s\n", count, reason.c_str());
  ::testing::Test::RecordProperty("passed", static_cast<int>(summary.num_passed));
  ::testing::Test::RecordProperty("refused", static_cast<int>(summary.num_skipped));
  return summary;
}

void expect_not_finite_stays_put(AttentionBackend& backend, DType dtype, WhoSees who_sees) {
  const std::unique_ptr<AttentionBackend> reference = make_backend("reference");
  for (const bool has_bias : {true, false}) {
    for (const KvTensor tensor : {KvTensor::kK, KvTensor::kV}) {
      for (const float value : {kNaN, kInfinity, -kInfinity}) {
        for (const std::int64_t key : {0, 2, 6, 8}) {
          expect_stays_put(*reference, backend, {dtype, tensor, key, value, has_bias}, who_sees);
        }
      }
    }
  }
}

}  // namespace quire::testing

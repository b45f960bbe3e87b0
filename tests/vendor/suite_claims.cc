// SPDX-License-Identifier: Apache-2.0
#include "vendor/suite_claims.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>

#include "base/check.h"
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

constexpr std::int32_t kQueries = 5;
constexpr std::int32_t kKeys = 9;
constexpr int kDims = 16;

AttentionSpec small_spec(DType dtype) {
  AttentionSpec spec;
  spec.num_q_heads = 4;
  spec.num_kv_heads = 2;
  spec.head_dim = spec.value_dim = kDims;
  spec.q_dtype = spec.out_dtype = dtype;
  spec.kv.dtype = dtype;
  spec.kv.block_size = 4;
  spec.features.bias = true;
  return spec;
}

float wave(std::int64_t i) {
  return std::sin(static_cast<float>(i) * 1.7F);
}

// Out of one sequence whose cache holds `value` at dim 3 of one key of kv head 0.
std::vector<float> attend_with(AttentionBackend& backend, DType dtype, KvTensor tensor,
                               std::int64_t key, float value) {
  const AttentionSpec spec = small_spec(dtype);
  const KvCache cache(backend.memory(), spec, plain_layout(spec), {.num_blocks = 3});
  std::vector<float> row(kDims);
  for (std::int64_t j = 0; j < 3 * spec.kv.block_size; ++j) {
    for (const KvTensor part : {KvTensor::kK, KvTensor::kV}) {
      for (std::int64_t head = 0; head < 2; ++head) {
        for (std::int64_t d = 0; d < kDims; ++d) {
          row[static_cast<std::size_t>(d)] =
              j < kKeys ? wave(d + 16 * (j + 9 * (head + 2 * static_cast<int>(part)))) : kNaN;
        }
        if (part == tensor && j == key && head == 0) row[3] = value;
        store_row(cache.layer(0), part, j / 4, head, j % 4, row.data());
      }
    }
  }
  const std::vector<std::int32_t> begins = {0};
  const std::vector<std::int32_t> ends = {kQueries};
  const std::vector<std::int32_t> lens = {kKeys};
  const std::vector<std::int32_t> table = {0, 1, 2};
  BatchView batch;
  batch.queries = {begins, ends};
  batch.kv.lens = lens;
  batch.kv.blocks = BlockTables::padded(table, 3);
  const BatchBounds bounds{1, kQueries, kKeys, kKeys};
  const WorkspaceBuffer workspace(backend.memory(), backend.workspace(spec, bounds));
  const auto prepared = backend.make_prepared(spec, bounds, workspace.view());
  backend.prepare(*prepared, batch);

  const std::int64_t num_values = kQueries * 4 * kDims;
  std::vector<float> memory(2 * static_cast<std::size_t>(num_values));
  for (std::int64_t i = 0; i < num_values; ++i) store_float(dtype, memory.data(), i, wave(3 * i));
  const TensorView q(memory.data(), dtype, {kQueries, 4, kDims});
  const MutableTensorView out(memory.data() + num_values, dtype, {kQueries, 4, kDims});
  // Key 6 is hidden from query 3 and key 2 from all.
  std::vector<float> bias(kQueries * kKeys, 0.25F);
  for (int i = 0; i < kQueries; ++i) bias[static_cast<std::size_t>(i * kKeys + 2)] = -kInfinity;
  bias[3 * kKeys + 6] = -kInfinity;
  AttentionParams params;
  params.scale = 0.25F;
  params.bias = TensorView(bias.data(), DType::kF32, {1, 4, kQueries, kKeys});
  params.bias.strides = {0, 0, kKeys, 1, 0};
  backend.attend(*prepared, params, q, cache.layer(0), {out, {}});
  std::vector<float> result;
  for (std::int64_t i = 0; i < num_values; ++i) {
    result.push_back(load_float(dtype, memory.data() + num_values, i));
  }
  return result;
}

}  // namespace

conformance::RunSummary expect_claims(AttentionBackend& backend,
                                      const std::vector<Refusal>& refusals) {
  conformance::RunSummary summary;
  std::map<std::string, int> reasons;
  for (const Case& c : select(conformance::all_cases(), conformance::Suite::kStandard)) {
    const CaseResult result = run_case(backend, c);
    summary.add(result);
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

void expect_not_finite_stays_put(AttentionBackend& backend, DType dtype) {
  const std::unique_ptr<AttentionBackend> reference = make_backend("reference");
  for (const KvTensor tensor : {KvTensor::kK, KvTensor::kV}) {
    for (const float value : {kNaN, kInfinity, -kInfinity}) {
      for (const std::int64_t key : {0, 2, 6, 8}) {
        SCOPED_TRACE(concat(tensor == KvTensor::kK ? "K" : "V", " of key ", key, " holds ", value,
                            ", ", dtype_name(dtype)));
        const std::vector<float> want = attend_with(*reference, dtype, tensor, key, value);
        const std::vector<float> got = attend_with(backend, dtype, tensor, key, value);
        const float tolerance = dtype == DType::kF32 ? 1e-5F : 0.03F;
        for (std::size_t i = 0; i < want.size(); ++i) {
          if (std::isnan(want[i]) || std::isinf(want[i])) {
            ASSERT_TRUE(std::isnan(want[i]) ? std::isnan(got[i]) : got[i] == want[i])
                << "row " << i / kDims << " dim " << i % kDims << ": " << got[i] << ", not "
                << want[i];
          } else {
            ASSERT_NEAR(got[i], want[i], tolerance) << "row " << i / kDims << " dim " << i % kDims;
          }
        }
      }
    }
  }
}

}  // namespace quire::testing

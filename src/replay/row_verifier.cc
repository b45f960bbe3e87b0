// SPDX-License-Identifier: Apache-2.0
#include "replay/row_verifier.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "base/float_rows.h"
#include "conformance/oracle.h"
#include "quire/kv_cache.h"
#include "quire/registry.h"

namespace quire::replay {
namespace {

constexpr std::size_t kMaxMessages = 4;

float rounded(DType dtype, float x) {
  alignas(4) std::byte stored[4];
  store_float(dtype, stored, 0, x);
  return load_float(dtype, stored, 0);
}

// The view of keys that lie in a row, as the reference wants it.
AttentionSpec ragged_spec(AttentionSpec spec) {
  spec.kv.block_size = 1;
  spec.kv.layout = KvLayoutId::kPlain;
  spec.out_dtype = DType::kF32;
  return spec;
}

}  // namespace

RowVerifier::RowVerifier(const AttentionSpec& spec, float scale)
    : spec_(spec), scale_(scale), writer_(spec), reference_(make_backend("reference")) {
  require(spec.kv.dtype == spec.q_dtype, "rows are verified where K and V are stored as they come");
  q_.resize(static_cast<std::size_t>(writer_.row_bytes(QkvTensor::kQ)));
  exact_.resize(static_cast<std::size_t>(spec.num_q_heads) *
                static_cast<std::size_t>(spec.value_dim));
  plain_.resize(exact_.size());
}

RowVerifier::~RowVerifier() = default;

void RowVerifier::verify(const RowPlace& place, const TokenChain& chain, const void* out) {
  const std::int64_t num_keys = place.position + 1;
  make_inputs(place, chain);
  run_reference(num_keys);
  run_plain(num_keys);
  double plain_error = 0;
  double error = 0;
  bool is_number = true;
  for (std::size_t i = 0; i < exact_.size(); ++i) {
    const double got = load_float(spec_.out_dtype, out, static_cast<std::int64_t>(i));
    const double plain = rounded(spec_.out_dtype, plain_[i]);
    is_number = is_number && std::isfinite(got);
    error = std::max(error, std::abs(got - static_cast<double>(exact_[i])));
    plain_error = std::max(plain_error, std::abs(plain - static_cast<double>(exact_[i])));
  }
  const double limit =
      2 * plain_error + conformance::output_slack(spec_.q_dtype) * static_cast<double>(max_value_);
  ++result_.num_rows;
  if (is_number) result_.max_error = std::max(result_.max_error, error);
  if (is_number && error <= limit) return;
  ++result_.num_violations;
  if (result_.messages.size() >= kMaxMessages) return;
  result_.messages.push_back(concat(
      "request ", place.request, " position ", place.position, " layer ", place.layer, ": ",
      is_number ? concat("error ", error, ", limit ", limit) : std::string("not a finite number")));
}

void RowVerifier::make_inputs(const RowPlace& place, const TokenChain& chain) {
  const auto num_keys = static_cast<std::size_t>(place.position + 1);
  const auto k_bytes = static_cast<std::size_t>(writer_.row_bytes(QkvTensor::kK));
  const auto v_bytes = static_cast<std::size_t>(writer_.row_bytes(QkvTensor::kV));
  k_.resize(num_keys * k_bytes);
  v_.resize(num_keys * v_bytes);
  for (std::size_t i = 0; i < num_keys; ++i) {
    const std::uint64_t digest = chain.digest(static_cast<std::int64_t>(i));
    writer_.write(digest, place.layer, QkvTensor::kK, k_.data() + i * k_bytes);
    writer_.write(digest, place.layer, QkvTensor::kV, v_.data() + i * v_bytes);
  }
  writer_.write(chain.digest(place.position), place.layer, QkvTensor::kQ, q_.data());
}

void RowVerifier::run_reference(std::int64_t num_keys) {
  const AttentionSpec spec = ragged_spec(spec_);
  const BatchBounds bounds{
      .max_sequences = 1, .max_tokens = 1, .max_kv_len = num_keys, .max_total_kv_len = num_keys};
  const WorkspaceBuffer workspace(reference_->memory(), reference_->workspace(spec, bounds));
  const auto prepared = reference_->make_prepared(spec, bounds, workspace.view());
  const std::int32_t begins[] = {0, 1};
  const auto len = static_cast<std::int32_t>(num_keys);
  const std::int64_t first_row = 0;
  BatchView batch;
  batch.queries = QueryRanges::packed({begins, 2});
  batch.kv.lens = {&len, 1};
  batch.kv.blocks = BlockTables::ragged({&first_row, 1});
  reference_->prepare(*prepared, batch);
  const TensorView q(q_.data(), spec.q_dtype, {1, spec.num_q_heads, spec.head_dim});
  const TensorView k(k_.data(), spec.q_dtype, {num_keys, spec.num_kv_heads, spec.head_dim});
  const TensorView v(v_.data(), spec.q_dtype, {num_keys, spec.num_kv_heads, spec.value_dim});
  AttentionParams params;
  params.scale = scale_;
  AttentionOutput output;
  output.out = MutableTensorView(exact_.data(), DType::kF32, {1, spec.num_q_heads, spec.value_dim});
  reference_->attend(*prepared, params, q, view_ragged(spec, k, v), output);
}

// What rounding must cost: QK and PV in f32, P rounded to the query dtype, the sum of unrounded P.
void RowVerifier::run_plain(std::int64_t num_keys) {
  const auto keys = static_cast<std::size_t>(num_keys);
  const auto dim = static_cast<std::size_t>(spec_.head_dim);
  const auto value_dim = static_cast<std::size_t>(spec_.value_dim);
  const auto num_kv_heads = static_cast<std::size_t>(spec_.num_kv_heads);
  std::vector<float> q(static_cast<std::size_t>(spec_.num_q_heads) * dim);
  std::vector<float> k(keys * num_kv_heads * dim);
  std::vector<float> v(keys * num_kv_heads * value_dim);
  load_floats(spec_.q_dtype, q_.data(), 0, std::ssize(q), q.data());
  load_floats(spec_.q_dtype, k_.data(), 0, std::ssize(k), k.data());
  load_floats(spec_.q_dtype, v_.data(), 0, std::ssize(v), v.data());
  max_value_ = 0;
  for (const float x : v) max_value_ = std::max(max_value_, std::abs(x));
  std::vector<float> weights(keys);
  for (std::size_t head = 0; head < static_cast<std::size_t>(spec_.num_q_heads); ++head) {
    const std::size_t kv_head = head / static_cast<std::size_t>(spec_.head_group());
    for (std::size_t j = 0; j < keys; ++j) {
      float score = 0;
      const float* key = k.data() + (j * num_kv_heads + kv_head) * dim;
      for (std::size_t d = 0; d < dim; ++d) score += q[head * dim + d] * key[d];
      weights[j] = scale_ * score;
    }
    const float largest = *std::ranges::max_element(weights);
    float sum = 0;
    const std::span<float> out = std::span(plain_).subspan(head * value_dim, value_dim);
    std::ranges::fill(out, 0.0F);
    for (std::size_t j = 0; j < keys; ++j) {
      const float weight = std::exp(weights[j] - largest);
      sum += weight;
      const float used = rounded(spec_.q_dtype, weight);
      const float* value = v.data() + (j * num_kv_heads + kv_head) * value_dim;
      for (std::size_t d = 0; d < value_dim; ++d) out[d] += used * value[d];
    }
    for (float& x : out) x /= sum;
  }
}

}  // namespace quire::replay

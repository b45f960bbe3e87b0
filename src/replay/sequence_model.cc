// SPDX-License-Identifier: Apache-2.0
#include "replay/sequence_model.h"

#include <algorithm>
#include <cstddef>

#include "base/float_rows.h"
#include "replay/mix.h"

namespace quire::replay {

void TokenChain::extend(std::span<const Token> tokens) {
  std::uint64_t digest = digests_.empty() ? 0 : digests_.back();
  for (const Token token : tokens) {
    digest = mix(digest ^ (static_cast<std::uint64_t>(token) << 32));
    digests_.push_back(digest);
  }
}

void make_row(std::uint64_t digest, int layer, QkvTensor tensor, std::span<float> row) {
  constexpr float kUnit = 1.7320508F / 32768.0F;  // uniform in (-1.73, 1.73): variance 1
  constexpr std::size_t kPerWord = 4;
  std::uint64_t state =
      mix(digest + 16 * static_cast<std::uint64_t>(layer) + static_cast<std::uint64_t>(tensor));
  for (std::size_t i = 0; i < row.size(); i += kPerWord) {
    state = mix(state);
    const std::size_t end = std::min(i + kPerWord, row.size());
    for (std::size_t j = i; j < end; ++j) {
      row[j] = kUnit * static_cast<float>(static_cast<std::int16_t>(state >> (16 * (j - i))));
    }
  }
}

RowWriter::RowWriter(const AttentionSpec& spec) : spec_(spec) {
  row_.resize(static_cast<std::size_t>(std::max(
      {num_elements(QkvTensor::kQ), num_elements(QkvTensor::kK), num_elements(QkvTensor::kV)})));
}

std::int64_t RowWriter::num_elements(QkvTensor tensor) const noexcept {
  const std::int64_t num_heads = tensor == QkvTensor::kQ ? spec_.num_q_heads : spec_.num_kv_heads;
  return num_heads * (tensor == QkvTensor::kV ? spec_.value_dim : spec_.head_dim);
}

std::int64_t RowWriter::row_bytes(QkvTensor tensor) const noexcept {
  return num_elements(tensor) * dtype_bytes(spec_.q_dtype);
}

void RowWriter::write(std::uint64_t digest, int layer, QkvTensor tensor, void* out) {
  const std::int64_t count = num_elements(tensor);
  make_row(digest, layer, tensor, std::span(row_).first(static_cast<std::size_t>(count)));
  store_floats(spec_.q_dtype, out, 0, count, row_.data());
}

}  // namespace quire::replay

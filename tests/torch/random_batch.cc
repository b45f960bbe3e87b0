// SPDX-License-Identifier: Apache-2.0
#include "random_batch.h"

#include <algorithm>
#include <cstddef>
#include <random>

#include "backends/torch/tensors.h"

namespace quire {
namespace {

// Ancestors of each new token of a random tree, itself included, and how many there are above it.
void grow_tree(std::mt19937& random, TestSequence& sequence) {
  sequence.tree = at::eye(sequence.q_len).to(at::kBool);
  sequence.depths = at::zeros({sequence.q_len}, at::kLong);
  for (std::int64_t i = 1; i < sequence.q_len; ++i) {
    const std::int64_t parent = static_cast<std::int64_t>(random()) % i;
    sequence.tree[i].logical_or_(sequence.tree[parent]);
    sequence.depths[i] = sequence.depths[parent] + 1;
  }
}

// Copies the rows of a stored tensor to slots of the cache, byte for byte.
void scatter(const Stored& rows, const at::Tensor& slots, at::Tensor& bytes, at::Tensor& scales) {
  if (slots.numel() == 0) return;
  bytes.index_copy_(0, slots, rows.codes.contiguous().view(at::kByte).reshape({slots.numel(), -1}));
  scales.index_copy_(0, slots, rows.scales.squeeze(2));
}

void add_tree(const TestSequence& sequence, PagedBatch& paged) {
  if (!sequence.tree.defined()) {
    paged.tree_begins.push_back(-1);
    return;
  }
  const std::size_t begin = paged.tree_bits.size();
  const std::int64_t row_bytes = (sequence.q_len + 7) / 8;
  paged.tree_begins.push_back(static_cast<std::int64_t>(begin));
  paged.tree_bits.resize(begin + static_cast<std::size_t>(sequence.q_len * row_bytes));
  for (std::int64_t i = 0; i < sequence.q_len; ++i) {
    const std::size_t row = static_cast<std::size_t>(sequence.first_row + i);
    paged.depths[row] = sequence.depths[i].item<int>();
    for (std::int64_t j = 0; j < sequence.q_len; ++j) {
      if (!sequence.tree[i][j].item<bool>()) continue;
      const std::size_t byte = begin + static_cast<std::size_t>(i * row_bytes + j / 8);
      paged.tree_bits[byte] = static_cast<std::uint8_t>(paged.tree_bits[byte] | (1 << (j % 8)));
    }
  }
}

}  // namespace

Stored quantize(const KvFormat& format, const at::Tensor& x, const at::Tensor& caller_scales) {
  if (!is_quantized(format.dtype)) {
    return {x.to(torch_sdpa::scalar_type_of(format.dtype)), at::ones({x.size(0), x.size(1), 1})};
  }
  const double limit = format.dtype == DType::kI8       ? 127
                       : format.dtype == DType::kF8E4M3 ? 448
                                                        : 57344;
  at::Tensor scales = caller_scales.expand({x.size(0), x.size(1), 1}).contiguous();
  if (format.scales == ScaleGranularity::kPerTokenHead) {
    const at::Tensor amax = x.abs().masked_fill(x.isinf(), 0).amax(2, /*keepdim=*/true);
    scales = at::where(amax < 0x1p-100, at::ones_like(amax), amax / limit);
  }
  const at::Tensor quotient = x / scales;
  if (format.dtype == DType::kI8) {
    return {quotient.round().clamp(-128, 127).to(at::kChar), scales};
  }
  return {quotient.clamp(-limit, limit).to(torch_sdpa::scalar_type_of(format.dtype)), scales};
}

at::Tensor random_scales(ScaleGranularity granularity, int num_kv_heads) {
  const int num_scales = granularity == ScaleGranularity::kPerHead ? num_kv_heads : 1;
  return (at::rand({num_scales, 1}) * 0.02 + 0.01).expand({num_kv_heads, 1}).contiguous();
}

TestBatch random_batch(const Scenario& scenario) {
  const AttentionSpec& spec = scenario.spec;
  std::mt19937 random(scenario.seed);
  at::manual_seed(scenario.seed);
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random()) % n; };
  TestBatch batch;
  batch.k_scales = random_scales(spec.kv.scales, spec.num_kv_heads);
  batch.v_scales = random_scales(spec.kv.scales, spec.num_kv_heads);
  std::int64_t num_rows = below(3);  // rows of no sequence, here and between sequences
  for (std::int64_t s = 0, num_sequences = 1 + below(4); s < num_sequences; ++s) {
    TestSequence sequence;
    sequence.first_row = num_rows;
    sequence.q_len = below(3) == 0 ? 1 : below(12);
    sequence.kv_len = below(below(3) == 0 ? 10 : 60);  // now and then less than q_len
    if (spec.features.tree_mask) {
      sequence.kv_len += sequence.q_len;
      if (below(4) != 0) grow_tree(random, sequence);
    }
    num_rows += sequence.q_len + below(2);
    const auto stored = [&](int dim, const at::Tensor& scales) {
      return quantize(spec.kv, at::randn({sequence.kv_len, spec.num_kv_heads, dim}), scales);
    };
    sequence.k = stored(spec.head_dim, batch.k_scales);
    sequence.v = spec.kv.v_in_k
                     ? Stored{sequence.k.codes.slice(2, 0, spec.value_dim), sequence.k.scales}
                     : stored(spec.value_dim, batch.v_scales);
    batch.max_q_len = std::max(batch.max_q_len, sequence.q_len);
    batch.max_kv_len = std::max(batch.max_kv_len, sequence.kv_len);
    batch.sequences.push_back(sequence);
  }
  batch.q = at::randn({num_rows, spec.num_q_heads, 2 * spec.head_dim}).slice(2, 0, spec.head_dim);
  batch.slopes = at::rand({spec.num_q_heads});
  batch.sinks = at::randn({spec.num_q_heads}) * 2;
  batch.bias = at::randn(
      {std::ssize(batch.sequences), spec.num_q_heads, batch.max_q_len, batch.max_kv_len + 1});
  batch.bias.masked_fill_(at::rand(batch.bias.sizes()) < 0.1, -kInfinity);
  return batch;
}

PagedBatch scatter_batch(const Scenario& scenario, const TestBatch& batch) {
  const AttentionSpec& spec = scenario.spec;
  const std::int64_t block_size = spec.kv.block_size;
  const std::int64_t num_sequences = std::ssize(batch.sequences);
  PagedBatch paged;
  paged.blocks_per_sequence = (batch.max_kv_len + block_size - 1) / block_size + 1;
  paged.num_blocks = paged.blocks_per_sequence * num_sequences;
  paged.table.assign(static_cast<std::size_t>(paged.num_blocks), -99);
  const std::int64_t num_slots = paged.num_blocks * block_size;
  const std::int64_t row_elements = dtype_bytes(spec.kv.dtype) * spec.num_kv_heads;
  paged.k = at::full({num_slots, row_elements * spec.head_dim}, 0xff, at::kByte);  // mostly NaN
  paged.v = at::full({num_slots, row_elements * spec.value_dim}, 0xff, at::kByte);
  paged.k_scales = at::full({num_slots, spec.num_kv_heads}, kInfinity, at::kFloat);
  paged.v_scales = at::full({num_slots, spec.num_kv_heads}, kInfinity, at::kFloat);
  paged.depths.assign(static_cast<std::size_t>(batch.q.size(0)), -7);
  const at::Tensor order = scenario.ragged ? at::arange(paged.num_blocks, at::kLong)
                                           : at::randperm(paged.num_blocks, at::kLong);
  for (std::int64_t s = 0; s < num_sequences; ++s) {
    const TestSequence& sequence = batch.sequences[static_cast<std::size_t>(s)];
    const std::int64_t first = s * paged.blocks_per_sequence;
    const at::Tensor blocks = order.slice(0, first, first + paged.blocks_per_sequence);
    const at::Tensor all_slots =
        (blocks.unsqueeze(1) * block_size + at::arange(block_size, at::kLong)).flatten();
    const at::Tensor slots = all_slots.slice(0, 0, sequence.kv_len);
    scatter(sequence.k, slots, paged.k, paged.k_scales);
    if (!spec.kv.v_in_k) scatter(sequence.v, slots, paged.v, paged.v_scales);
    for (std::int64_t b = 0; b * block_size < sequence.kv_len; ++b) {
      paged.table[static_cast<std::size_t>(first + b)] = blocks[b].item<int>();
    }
    paged.ragged_rows.push_back(first);
    paged.q_begins.push_back(static_cast<std::int32_t>(sequence.first_row));
    paged.q_ends.push_back(static_cast<std::int32_t>(sequence.first_row + sequence.q_len));
    paged.kv_lens.push_back(static_cast<std::int32_t>(sequence.kv_len));
    add_tree(sequence, paged);
  }
  return paged;
}

KvCacheView view_cache(const AttentionSpec& spec, const TestBatch& batch, PagedBatch& paged) {
  const std::int64_t heads = spec.num_kv_heads;
  const auto tensor = [&](at::Tensor& bytes, std::int64_t dim) {
    return MutableTensorView(bytes.data_ptr(), spec.kv.dtype,
                             {paged.num_blocks, spec.kv.block_size, heads, dim});
  };
  KvCacheView cache = view_kv(spec, KvOrder::kBlockTokenHeadDim, tensor(paged.k, spec.head_dim),
                              tensor(paged.v, spec.value_dim));
  const auto scales = [&](const at::Tensor& callers, at::Tensor& of_tokens) -> KvScales {
    switch (spec.kv.scales) {
      case ScaleGranularity::kNone:
        return {};
      case ScaleGranularity::kPerTensor:
        return {callers.data_ptr<float>(), {0, 0, 0}};
      case ScaleGranularity::kPerHead:
        return {callers.data_ptr<float>(), {0, 1, 0}};
      case ScaleGranularity::kPerTokenHead:
        return {of_tokens.data_ptr<float>(), {spec.kv.block_size * heads, 1, heads}};
    }
    return {};
  };
  cache.k_scales = scales(batch.k_scales, paged.k_scales);
  cache.v_scales = spec.kv.v_in_k ? cache.k_scales : scales(batch.v_scales, paged.v_scales);
  return cache;
}

BatchView view_batch(const Scenario& scenario, const PagedBatch& paged) {
  BatchView view;
  view.queries = {paged.q_begins, paged.q_ends};
  view.kv.lens = paged.kv_lens;
  view.kv.blocks = scenario.ragged ? BlockTables::ragged(paged.ragged_rows)
                                   : BlockTables::padded(paged.table, paged.blocks_per_sequence);
  if (scenario.spec.features.tree_mask) {
    view.tree_mask = {paged.tree_bits, paged.tree_begins, paged.depths};
  }
  return view;
}

MutableTensorView view_tensor(const at::Tensor& tensor) {
  MutableTensorView view;
  view.data = tensor.data_ptr();
  view.rank = static_cast<int>(tensor.dim());
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), view.shape.begin());
  std::copy(tensor.strides().begin(), tensor.strides().end(), view.strides.begin());
  return view;
}

ArrayView<float> view_array(const at::Tensor& tensor) {
  return {tensor.data_ptr<float>(), tensor.numel()};
}

}  // namespace quire

// SPDX-License-Identifier: Apache-2.0
#include "backends/onednn/primitives.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "backends/onednn/serial_region.h"
#include "base/check.h"

namespace quire::onednn {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;

memory::data_type data_type(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return memory::data_type::f16;
    case DType::kBF16:
      return memory::data_type::bf16;
    default:
      return memory::data_type::f32;
  }
}

dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

// The columns of a chunk among those of all keys.
void* column(void* rows, DType dtype, std::int64_t chunk) {
  return static_cast<char*>(rows) + chunk * kChunkKeys * dtype_bytes(dtype);
}

using Arguments = std::unordered_map<int, memory>;

}  // namespace

std::string to_string(const TileShape& shape) {
  return concat(dtype_name(shape.compute), " rows ", shape.num_rows, " keys ", shape.row_keys,
                " dims ", shape.head_dim, "/", shape.value_dim);
}

std::int64_t key_bucket(std::int64_t num_keys) noexcept {
  std::int64_t step = 64;
  for (std::int64_t power = kChunkKeys; power < num_keys; power *= 2) step = power / 4;
  return (num_keys + step - 1) / step * step;
}

TilePrimitives::TilePrimitives(const dnnl::engine& engine, const TileShape& shape)
    : engine_(engine), shape_(shape) {
  const memory::data_type compute = data_type(shape.compute);
  const memory::dim num_rows = shape.num_rows;
  const memory::dims row_strides = {shape.row_keys, 1};
  const std::array<memory::dim, 2> chunk_sizes = {std::min(kChunkKeys, shape.row_keys),
                                                  chunk_keys(num_chunks() - 1)};
  const memory::desc q({num_rows, shape.head_dim}, compute, Tag::ab);
  const memory::desc out({num_rows, shape.value_dim}, memory::data_type::f32, Tag::ab);
  for (std::size_t i = 0; i < chunk_sizes.size(); ++i) {
    if (i == 1 && chunk_sizes[1] == chunk_sizes[0]) {
      scores_[1] = scores_[0];
      first_values_[1] = first_values_[0];
      next_values_[1] = next_values_[0];
      break;
    }
    const memory::dim keys = chunk_sizes[i];
    const memory::desc k({shape.head_dim, keys}, compute, Tag::ba);
    const memory::desc v({keys, shape.value_dim}, compute, Tag::ab);
    const memory::desc s({num_rows, keys}, memory::data_type::f32, row_strides);
    const memory::desc p({num_rows, keys}, compute, row_strides);
    scores_[i] = make_matmul(q, k, s, false);
    // The first chunk is a full one, or the only one.
    if (i == 0) first_values_[i] = make_matmul(p, v, out, false);
    if (num_chunks() > 1) next_values_[i] = make_matmul(p, v, out, true);
  }
  make_softmax();
  if (shape.softcap) make_tanh();
}

std::int64_t TilePrimitives::chunk_keys(std::int64_t chunk) const noexcept {
  return std::min(kChunkKeys, shape_.row_keys - chunk * kChunkKeys);
}

void TilePrimitives::keep(Primitive& primitive) {
  scratchpad_bytes_ =
      std::max(scratchpad_bytes_, static_cast<std::int64_t>(primitive.scratchpad.get_size()));
}

Primitive TilePrimitives::make_matmul(const memory::desc& src, const memory::desc& weights,
                                      const memory::desc& dst, bool adds) {
  dnnl::primitive_attr attr = user_scratchpad();
  if (adds) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attr.set_post_ops(sum);
  }
  const dnnl::matmul::primitive_desc desc(engine_, src, weights, dst, attr);
  Primitive result{dnnl::matmul(desc), src, weights, dst, desc.scratchpad_desc()};
  is_blocked_ = is_blocked_ && std::string_view(desc.impl_info_str()).starts_with("brg");
  keep(result);
  return result;
}

void TilePrimitives::make_softmax() {
  const memory::desc scores({shape_.num_rows, shape_.row_keys}, memory::data_type::f32, Tag::ab);
  const dnnl::softmax_forward::primitive_desc desc(engine_, dnnl::prop_kind::forward_inference,
                                                   dnnl::algorithm::softmax_accurate, scores,
                                                   scores, 1, user_scratchpad());
  softmax_ = {dnnl::softmax_forward(desc), scores, {}, scores, desc.scratchpad_desc()};
  keep(softmax_);
}

void TilePrimitives::make_tanh() {
  const memory::desc scores({shape_.num_rows, shape_.row_keys}, memory::data_type::f32, Tag::ab);
  const dnnl::eltwise_forward::primitive_desc desc(engine_, dnnl::prop_kind::forward_inference,
                                                   dnnl::algorithm::eltwise_tanh, scores, scores,
                                                   0.0F, 0.0F, user_scratchpad());
  tanh_ = {dnnl::eltwise_forward(desc), scores, {}, scores, desc.scratchpad_desc()};
  keep(tanh_);
}

void TilePrimitives::compute_scores(const dnnl::stream& stream, const Memory& m,
                                    std::int64_t chunk) const {
  const Primitive& matmul = scores_[chunk + 1 == num_chunks() ? 1 : 0];
  matmul.run.execute(
      stream,
      Arguments{{DNNL_ARG_SRC, memory(matmul.src, engine_, m.q)},
                {DNNL_ARG_WEIGHTS, memory(matmul.weights, engine_, m.kv)},
                {DNNL_ARG_DST, memory(matmul.dst, engine_, column(m.scores, DType::kF32, chunk))},
                {DNNL_ARG_SCRATCHPAD, memory(matmul.scratchpad, engine_, m.scratchpad)}});
}

void TilePrimitives::apply_tanh(const dnnl::stream& stream, const Memory& m) const {
  tanh_.run.execute(
      stream, Arguments{{DNNL_ARG_SRC, memory(tanh_.src, engine_, m.scores)},
                        {DNNL_ARG_DST, memory(tanh_.dst, engine_, m.scores)},
                        {DNNL_ARG_SCRATCHPAD, memory(tanh_.scratchpad, engine_, m.scratchpad)}});
}

void TilePrimitives::compute_weights(const dnnl::stream& stream, const Memory& m) const {
  softmax_.run.execute(
      stream, Arguments{{DNNL_ARG_SRC, memory(softmax_.src, engine_, m.scores)},
                        {DNNL_ARG_DST, memory(softmax_.dst, engine_, m.scores)},
                        {DNNL_ARG_SCRATCHPAD, memory(softmax_.scratchpad, engine_, m.scratchpad)}});
}

void TilePrimitives::add_values(const dnnl::stream& stream, const Memory& m,
                                std::int64_t chunk) const {
  const std::size_t size = chunk + 1 == num_chunks() ? 1 : 0;
  const Primitive& matmul = chunk == 0 ? first_values_[0] : next_values_[size];
  matmul.run.execute(
      stream, Arguments{{DNNL_ARG_SRC,
                         memory(matmul.src, engine_, column(m.weights, shape_.compute, chunk))},
                        {DNNL_ARG_WEIGHTS, memory(matmul.weights, engine_, m.kv)},
                        {DNNL_ARG_DST, memory(matmul.dst, engine_, m.out)},
                        {DNNL_ARG_SCRATCHPAD, memory(matmul.scratchpad, engine_, m.scratchpad)}});
}

std::shared_ptr<const TilePrimitives> PrimitiveCache::find(const TileShape& shape) {
  const std::lock_guard lock(mutex_);
  if (const auto found = entries_.find(shape); found != entries_.end()) {
    used_.splice(used_.begin(), used_, found->second.used);
    return found->second.primitives;
  }
  std::shared_ptr<const TilePrimitives> made;
  try {
    const SerialRegion serial;
    made = std::make_shared<const TilePrimitives>(engine_, shape);
  } catch (const dnnl::error& error) {
    fail(ErrorCode::kDevice, "onednn: no primitives for ", to_string(shape), ": ", error.what());
  }
  if (entries_.size() >= kMaxShapes) {
    entries_.erase(used_.back());
    used_.pop_back();
  }
  used_.push_front(shape);
  entries_.emplace(shape, Entry{made, used_.begin()});
  return made;
}

std::size_t PrimitiveCache::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

bool multiplies(const dnnl::engine& engine, DType dtype, Kernels wanted) {
  try {
    const SerialRegion serial;
    const TileShape shape{
        .compute = dtype, .head_dim = 64, .value_dim = 64, .num_rows = 16, .row_keys = 64};
    const TilePrimitives primitives(engine, shape);
    return primitives.is_blocked() || wanted == Kernels::kAny;
  } catch (const dnnl::error&) {
    return false;  // not at all
  }
}

}  // namespace quire::onednn

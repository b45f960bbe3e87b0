// SPDX-License-Identifier: Apache-2.0
#include "conformance/loaded_batch.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "conformance/index.h"

namespace quire::conformance {
namespace {

BatchBounds bounds_of(const Arrangement& a, std::int64_t extra) {
  BatchBounds bounds;
  bounds.max_sequences = std::ssize(a.order) + extra;
  bounds.max_tokens = std::max<std::int64_t>(a.num_rows, std::ssize(a.slots)) + extra;
  for (const std::int32_t kv_len : a.kv_lens) {
    bounds.max_kv_len = std::max<std::int64_t>(bounds.max_kv_len, kv_len);
    bounds.max_total_kv_len += kv_len;
  }
  bounds.max_kv_len += extra;
  bounds.max_total_kv_len += extra * (1 + bounds.max_sequences);
  return bounds;
}

CacheMemory::Options cache_options(const Problem& p, const Arrangement& a) {
  CacheMemory::Options options;
  options.style = p.c.cache;
  options.order = p.c.order;
  options.packing = p.c.packing;
  options.num_blocks = a.num_blocks;
  if (p.c.first_block > 0) options.blocks_in_image = a.place;
  return options;
}

TensorImage::Shape bias_shape(const Problem& p, const BatchBounds& bounds, std::int64_t sequences,
                              bool metadata_on_device) {
  const ProblemBias& bias = p.bias;
  TensorImage::Shape shape;
  shape.dtype = p.c.bias_dtype;
  // Of device metadata only the bounds are known, and a full tensor must reach them.
  const std::int64_t queries = metadata_on_device ? bounds.max_tokens : bias.num_queries;
  const std::int64_t keys = metadata_on_device ? bounds.max_kv_len : bias.num_keys;
  shape.extents = {sequences, p.spec.num_q_heads, std::max(queries, bias.num_queries),
                   std::max(keys, bias.num_keys)};
  const std::int64_t key_slack = 3;
  const std::int64_t query = shape.extents[3] + key_slack;
  const std::int64_t head = bias.num_queries == 1 ? query : query * shape.extents[2];
  const std::int64_t sequence = bias.num_heads == 1 ? head : head * p.spec.num_q_heads;
  // A real extent of 1 is a broadcast like any other.
  shape.strides = {bias.num_sequences == 1 ? 0 : sequence, bias.num_heads == 1 ? 0 : head,
                   bias.num_queries == 1 ? 0 : query, 1};
  if (bias.num_queries == 1) shape.extents[2] = std::max(shape.extents[2], bounds.max_tokens);
  return shape;
}

}  // namespace

AttentionSpec spec_for(const AttentionBackend& backend, const Problem& p) {
  AttentionSpec spec = p.spec;
  spec.kv.layout = CacheMemory::layout_of(backend, p.spec, p.c.cache);
  return spec;
}

LoadedBatch::LoadedBatch(AttentionBackend& backend, const Problem& problem,
                         const Arrangement& arrangement, const LoadOptions& options)
    : backend_(backend),
      problem_(problem),
      arrangement_(arrangement),
      options_(options),
      support_(backend.supports(options.spec)),
      bounds_(bounds_of(arrangement, options.extra_bounds)),
      arrays_(backend.memory(), arrangement, options.arrival != Arrival::kStored,
              bounds_.max_tokens, options.metadata_on_device),
      cache_(backend, options.spec, cache_options(problem, arrangement)),
      q_(backend.memory(),
         TensorImage::shape_of(problem.c.tensors, options.spec.q_dtype, bounds_.max_tokens,
                               options.spec.num_q_heads, options.spec.head_dim)),
      out_(backend.memory(),
           TensorImage::shape_of(problem.c.tensors, options.spec.out_dtype, bounds_.max_tokens,
                                 options.spec.num_q_heads, options.spec.value_dim)),
      alibi_slopes_(backend.memory(), problem.alibi_slopes, !backend.memory().device().is_host()),
      sinks_(backend.memory(), problem.sinks, !backend.memory().device().is_host()) {
  if (options.spec.features.lse) {
    lse_ = std::make_unique<TensorImage>(
        backend.memory(),
        TensorImage::lse_shape(problem.c.tensors, bounds_.max_tokens, options.spec.num_q_heads));
  }
  fill_queries();
  fill_cache();
  fill_new_kv();
  if (problem.bias.present()) fill_bias();

  const WorkspaceSize size = backend.workspace(options.spec, bounds_);
  host_workspace_ = std::make_unique<DeviceBuffer>(backend.memory(), size.host_bytes, Place::kHost);
  device_workspace_ = std::make_unique<DeviceBuffer>(backend.memory(), size.device_bytes);
  const Workspace workspace{
      .host = host_workspace_->data(), .device = device_workspace_->data(), .size = size};
  prepared_ = backend.make_prepared(options.spec, bounds_, workspace);
}

void LoadedBatch::fill_queries() {
  const std::int64_t heads = problem_.spec.num_q_heads;
  const std::int64_t dim = problem_.spec.head_dim;
  for (std::size_t n = 0; n < arrangement_.order.size(); ++n) {
    const ProblemSequence& sequence = problem_.sequences[at(arrangement_.order[n])];
    for (std::int64_t i = 0; i < sequence.q_len; ++i) {
      const float* q = problem_.q.data() + (sequence.first_token + i) * heads * dim;
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t d = 0; d < dim; ++d) {
          q_.set({arrangement_.q_begins[n] + i, h, d}, q[h * dim + d]);
        }
      }
    }
  }
  q_.upload();
}

// Everything, or everything but what arrives.
void LoadedBatch::fill_cache() {
  std::vector<std::uint8_t> arrives(at(problem_.num_slots()), 0);
  for (const std::int64_t slot : arrangement_.new_slots) {
    if (slot >= 0 && options_.arrival != Arrival::kStored) arrives[at(slot)] = 1;
  }
  const std::int64_t heads = problem_.spec.num_kv_heads;
  const auto store = [&](KvTensor tensor, const ProblemKv& kv) {
    for (std::int64_t slot = 0; slot < problem_.num_slots(); ++slot) {
      const std::int64_t cache_slot = arrangement_.cache_slot(problem_, slot);
      for (std::int64_t head = 0; head < heads && arrives[at(slot)] == 0; ++head) {
        const std::int64_t row = slot * heads + head;
        cache_.set_row(tensor, cache_slot, head, kv.stored.data() + row * kv.dim,
                       kv.scales[at(row)]);
      }
    }
    const bool by_caller = problem_.spec.kv.scales != ScaleGranularity::kPerTokenHead;
    for (std::int64_t head = 0; by_caller && head < heads; ++head) {
      cache_.set_caller_scale(tensor, head, kv.scales.empty() ? 1.0F : kv.scales[at(head)]);
    }
  };
  store(KvTensor::kK, problem_.k);
  if (!problem_.spec.kv.v_in_k) store(KvTensor::kV, problem_.v);
  cache_.upload();
}

void LoadedBatch::fill_new_kv() {
  if (options_.arrival == Arrival::kStored) return;
  const std::int64_t heads = problem_.spec.num_kv_heads;
  const auto make = [&](const ProblemKv& kv) {
    auto image = std::make_unique<TensorImage>(
        backend_.memory(), TensorImage::shape_of(problem_.c.tensors, problem_.c.new_kv_dtype,
                                                 std::ssize(arrangement_.slots), heads, kv.dim));
    for (std::int64_t n = 0; n < std::ssize(arrangement_.new_slots); ++n) {
      const std::int64_t slot = arrangement_.new_slots[at(n)];
      const float* source = kv.source.data() + slot * heads * kv.dim;
      for (std::int64_t head = 0; slot >= 0 && head < heads; ++head) {
        for (std::int64_t d = 0; d < kv.dim; ++d)
          image->set({n, head, d}, source[head * kv.dim + d]);
      }
    }
    image->upload();
    return image;
  };
  new_k_ = make(problem_.k);
  if (!problem_.spec.kv.v_in_k) new_v_ = make(problem_.v);
}

void LoadedBatch::fill_bias() {
  const ProblemBias& bias = problem_.bias;
  const TensorImage::Shape shape =
      bias_shape(problem_, bounds_, std::ssize(arrangement_.order), options_.metadata_on_device);
  bias_ = std::make_unique<TensorImage>(backend_.memory(), shape);
  const std::int64_t sequences = bias.num_sequences == 1 ? 1 : std::ssize(arrangement_.order);
  for (std::int64_t n = 0; n < sequences; ++n) {
    for (std::int64_t h = 0; h < bias.num_heads; ++h) {
      for (std::int64_t i = 0; i < bias.num_queries; ++i) {
        for (std::int64_t j = 0; j < bias.num_keys; ++j) {
          const std::int64_t index = bias.index(arrangement_.order[at(n)], h, i, j);
          bias_->set({n, h, i, j}, bias.values[at(index)]);
        }
      }
    }
  }
  bias_->upload();
}

NewKv LoadedBatch::new_kv() const {
  NewKv result;
  if (new_k_ != nullptr) result.k = new_k_->view();
  if (new_v_ != nullptr) result.v = new_v_->view();
  return result;
}

AttentionParams LoadedBatch::params() const {
  AttentionParams params;
  params.scale = problem_.scale;
  params.softcap = problem_.softcap;
  params.alibi_slopes = alibi_slopes_.view();
  params.sinks = sinks_.view();
  if (bias_ != nullptr) params.bias = bias_->view();
  return params;
}

void LoadedBatch::wait() {
  backend_.memory().synchronize(options_.stream);
  const Status status = backend_.poll(*prepared_);
  if (!status.ok()) throw Error(status.code, status.message);
}

// From here on the cache must hold what was stored.
void LoadedBatch::expect_new_tokens() {
  if (has_new_tokens_) return;
  has_new_tokens_ = true;
  if (support_.clears_tails) forget_tails();
  const std::int64_t heads = problem_.spec.num_kv_heads;
  for (const std::int64_t slot : arrangement_.new_slots) {
    if (slot < 0) continue;
    const std::int64_t cache_slot = arrangement_.cache_slot(problem_, slot);
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t row = slot * heads + head;
      const auto store = [&](KvTensor tensor, const ProblemKv& kv) {
        cache_.set_row(tensor, cache_slot, head, kv.stored.data() + row * kv.dim,
                       kv.scales[at(row)]);
      };
      store(KvTensor::kK, problem_.k);
      if (!problem_.spec.kv.v_in_k) store(KvTensor::kV, problem_.v);
    }
  }
}

// Slots behind the last token of a sequence, in its block.
void LoadedBatch::forget_tails() {
  const std::int64_t block_size = problem_.spec.kv.block_size;
  for (const std::int64_t s : arrangement_.order) {
    const ProblemSequence& sequence = problem_.sequences[at(s)];
    if (sequence.q_len == 0) continue;
    for (std::int64_t key = sequence.kv_len; key % block_size != 0; ++key) {
      cache_.forget(arrangement_.cache_slot(problem_, problem_.slot(s, key)));
    }
  }
}

void LoadedBatch::prepare() {
  backend_.prepare(*prepared_, arrays_.view(), options_.stream);
}

void LoadedBatch::prepare_other(const Arrangement& other) {
  const BatchArrays arrays(backend_.memory(), other, options_.arrival != Arrival::kStored,
                           bounds_.max_tokens, options_.metadata_on_device);
  backend_.prepare(*prepared_, arrays.view(), options_.stream);
  wait();
}

void LoadedBatch::append() {
  backend_.append(*prepared_, new_kv(), cache_.view(), options_.stream);
  expect_new_tokens();
}

void LoadedBatch::attend() {
  AttentionOutput output;
  output.out = out_.view();
  if (lse_ != nullptr) output.lse = lse_->view();
  if (options_.arrival != Arrival::kFused) {
    backend_.attend(*prepared_, params(), q_.view(), cache_.view(), output, options_.stream);
    return;
  }
  backend_.attend(*prepared_, params(), q_.view(), {cache_.view(), new_kv()}, output,
                  options_.stream);
  expect_new_tokens();
}

void LoadedBatch::run() {
  out_.upload();  // poison again: nothing of an earlier run may pass for a result
  if (lse_ != nullptr) lse_->upload();
  prepare();
  if (options_.arrival == Arrival::kAppended) append();
  attend();
  wait();
}

OutputData LoadedBatch::output() const {
  const std::int64_t heads = problem_.spec.num_q_heads;
  const std::int64_t dim = problem_.spec.value_dim;
  const auto tokens = at(problem_.num_tokens * heads);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  OutputData data;
  data.out.assign(tokens * at(dim), nan);
  data.out_bits.assign(tokens * at(dim), 0);
  if (lse_ != nullptr) data.lse.assign(tokens, nan);
  if (lse_ != nullptr) data.lse_bits.assign(tokens, 0);
  const TensorImage::Contents out = out_.download();
  std::optional<TensorImage::Contents> lse;
  if (lse_ != nullptr) lse = lse_->download();
  for (std::size_t n = 0; n < arrangement_.order.size(); ++n) {
    const ProblemSequence& sequence = problem_.sequences[at(arrangement_.order[n])];
    for (std::int64_t i = 0; i < sequence.q_len; ++i) {
      const std::int64_t row = arrangement_.q_begins[n] + i;
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t token = (sequence.first_token + i) * heads + h;
        for (std::int64_t d = 0; d < dim; ++d) {
          data.out[at(token * dim + d)] = out({row, h, d});
          data.out_bits[at(token * dim + d)] = out.bits({row, h, d});
        }
        if (!lse) continue;
        data.lse[at(token)] = (*lse)({row, h});
        data.lse_bits[at(token)] = lse->bits({row, h});
      }
    }
  }
  return data;
}

std::optional<std::string> LoadedBatch::side_effects() const {
  std::vector<std::uint8_t> written(at(bounds_.max_tokens), 0);
  for (std::size_t n = 0; n < arrangement_.order.size(); ++n) {
    std::fill(written.begin() + arrangement_.q_begins[n], written.begin() + arrangement_.q_ends[n],
              std::uint8_t{1});
  }
  if (auto found = out_.changed_outside("out", written)) return found;
  if (lse_ != nullptr) {
    if (auto found = lse_->changed_outside("lse", written)) return found;
  }
  if (auto found = q_.changed("q")) return found;
  if (!support_.own_rounding) {
    if (auto found = cache_.difference("cache")) return found;
  }
  if (new_k_ != nullptr) {
    if (auto found = new_k_->changed("new K")) return found;
  }
  if (new_v_ != nullptr) {
    if (auto found = new_v_->changed("new V")) return found;
  }
  if (bias_ != nullptr) {
    if (auto found = bias_->changed("bias")) return found;
  }
  if (alibi_slopes_.is_changed() || sinks_.is_changed())
    return "ALiBi slopes or sinks were written";
  if (!host_workspace_->guards_are_intact() || !device_workspace_->guards_are_intact()) {
    return "bytes next to the workspace were written";
  }
  return arrays_.changed();
}

}  // namespace quire::conformance

// SPDX-License-Identifier: Apache-2.0
#include "benchmark/loaded_case.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <span>

#include "attention/mask.h"
#include "base/number_formats.h"
#include "benchmark/roof.h"

namespace quire::benchmark {
namespace {

using conformance::Arrangement;
using conformance::Problem;
using conformance::ProblemSequence;

BatchBounds bounds_of(const Arrangement& arrangement) {
  BatchBounds bounds;
  bounds.max_sequences = std::ssize(arrangement.order);
  bounds.max_tokens = std::max<std::int64_t>(arrangement.num_rows, std::ssize(arrangement.slots));
  for (const std::int32_t kv_len : arrangement.kv_lens) {
    bounds.max_kv_len = std::max<std::int64_t>(bounds.max_kv_len, kv_len);
    bounds.max_total_kv_len += kv_len;
  }
  for (std::size_t i = 0; i < arrangement.q_begins.size(); ++i) {
    bounds.max_q_len =
        std::max<std::int64_t>(bounds.max_q_len, arrangement.q_ends[i] - arrangement.q_begins[i]);
  }
  return bounds;
}

// Every second block, in random places, to the one after it, until a quarter of all is copied.
std::vector<BlockCopy> make_copies(const Problem& outline, const Arrangement& arrangement) {
  std::vector<BlockCopy> copies;
  const auto num_blocks = static_cast<std::int64_t>(arrangement.place.size());
  for (std::int64_t i = 0; i < num_copies(outline) && 2 * i + 1 < num_blocks; ++i) {
    const auto at = static_cast<std::size_t>(2 * i);
    copies.push_back({.src = arrangement.place[at], .dst = arrangement.place[at + 1]});
  }
  return copies;
}

std::unique_ptr<KvCache> make_host_cache(DeviceMemory& memory, const AttentionSpec& spec,
                                         const KvLayout& layout, std::int64_t num_blocks) {
  auto cache = std::make_unique<KvCache>(
      memory, spec, layout,
      KvCache::Options{.num_layers = 1, .num_blocks = num_blocks, .on_host = true});
  // Pages exist once they are touched.
  std::memset(cache->layer(0).k, 0, static_cast<std::size_t>(num_blocks * layout.block_bytes));
  return cache;
}

}  // namespace

Problem bench_outline(const BenchCase& c) {
  Problem outline = conformance::make_outline(c.c);
  std::vector<std::int32_t> places(static_cast<std::size_t>(outline.num_blocks), -1);
  std::int32_t num_blocks = 1;  // block 0 stands for all that nobody sees
  for (ProblemSequence& sequence : outline.sequences) {
    SequenceView view;
    view.q_len = sequence.q_len;
    view.kv_len = sequence.kv_len;
    const KeyRange seen =
        keys_seen(outline.spec.mask, outline.spec.alignment, view, 0, sequence.q_len);
    const auto first = static_cast<std::size_t>(seen.begin / outline.spec.kv.block_size);
    for (std::size_t n = 0; n < sequence.blocks.size(); ++n) {
      std::int32_t& place = places[static_cast<std::size_t>(sequence.blocks[n])];
      if (place < 0 && n >= first) place = num_blocks++;
      sequence.blocks[n] = std::max(place, 0);
    }
  }
  outline.num_blocks = num_blocks;
  return outline;
}

LoadedCase::LoadedCase(AttentionBackend& backend, const BenchCase& c, const Problem& outline,
                       const Arrangement& arrangement, const AttentionSpec& spec,
                       RotatingCache& cache, const Options& options)
    : backend_(backend), case_(c), options_(options), spec_(spec), cache_(cache) {
  DeviceMemory& memory = backend.memory();
  const bool swaps = c.operation == Operation::kSwapOut || c.operation == Operation::kSwapIn;
  if (c.operation == Operation::kCopy || swaps) {
    copies_ = make_copies(outline, arrangement);
    if (swaps) host_cache_ = make_host_cache(memory, spec, cache.layout(), arrangement.num_blocks);
    return;
  }
  const BatchBounds bounds = bounds_of(arrangement);
  fused_append_ = backend.supports(spec).fused_append;
  const bool stores = fused_append_ || c.operation != Operation::kAttend;
  arrays_ = std::make_unique<conformance::BatchArrays>(
      memory, arrangement, stores, bounds.max_tokens, options.metadata_on_device);
  const auto make = [&](DType dtype, std::int64_t heads, std::int64_t dim) {
    tensors_.emplace_back(memory, bounds.max_tokens * heads * dim * dtype_bytes(dtype));
    fill_random(memory, tensors_.back().data(), tensors_.back().size_bytes(), dtype);
    return MutableTensorView(tensors_.back().data(), dtype, {bounds.max_tokens, heads, dim},
                             memory.device());
  };
  q_ = make(spec.q_dtype, spec.num_q_heads, spec.head_dim);
  out_ = make(spec.out_dtype, spec.num_q_heads, spec.value_dim);
  const int num_new = c.operation == Operation::kAppend ? cache.num_layers() : stores ? 1 : 0;
  for (int i = 0; i < num_new; ++i) {
    NewKv new_kv;
    new_kv.k = make(c.c.new_kv_dtype, spec.num_kv_heads, spec.head_dim);
    if (!spec.kv.v_in_k) new_kv.v = make(c.c.new_kv_dtype, spec.num_kv_heads, spec.value_dim);
    new_kv_.push_back(new_kv);
  }
  params_.scale = outline.scale;
  workspace_ = std::make_unique<WorkspaceBuffer>(memory, backend.workspace(spec, bounds));
  const auto start = std::chrono::steady_clock::now();
  prepared_ = backend.make_prepared(spec, bounds, workspace_->view());
  prepare();
  first_prepare_seconds_ =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (options.gathered && c.operation == Operation::kAttend) gather_all();
}

void LoadedCase::gather_all() {
  stages_ = dynamic_cast<DenseStages*>(&backend_);
  if (stages_ == nullptr) return;
  for (int i = 0; i < cache_.num_layers(); ++i) {
    gathered_.push_back(stages_->make_gathered(*prepared_));
  }
  for (int i = 0; i < cache_.num_layers(); ++i) enqueue_gather();
  backend_.memory().synchronize(options_.stream);
}

void LoadedCase::enqueue_gather() {
  stages_->gather(*prepared_, cache_.next(), *gathered_[next_gathered_], options_.stream);
  next_gathered_ = (next_gathered_ + 1) % gathered_.size();
}

void LoadedCase::prepare() {
  backend_.prepare(*prepared_, arrays_->view(), options_.stream);
}

void LoadedCase::rewind() noexcept {
  cache_.rewind();
  next_new_kv_ = 0;
  next_gathered_ = 0;
}

void LoadedCase::raise_faults() {
  if (prepared_ == nullptr) return;
  const Status status = backend_.poll(*prepared_);
  if (!status.ok()) throw Error(status.code, status.message);
}

NewKv LoadedCase::next_new_kv() {
  if (new_kv_.empty()) return {};
  const NewKv new_kv = new_kv_[next_new_kv_];
  next_new_kv_ = (next_new_kv_ + 1) % new_kv_.size();
  return new_kv;
}

void LoadedCase::append(const KvCacheView& cache, const NewKv& new_kv) {
  backend_.append(*prepared_, new_kv, cache, options_.stream);
}

void LoadedCase::attend(const KvCacheView& cache, const NewKv& new_kv) {
  const KvSource source = fused_append_ ? KvSource(cache, new_kv) : KvSource(cache);
  backend_.attend(*prepared_, params_, q_, source, {.out = out_, .lse = {}}, options_.stream);
}

void LoadedCase::enqueue() {
  const KvCacheView& cache = cache_.next();
  switch (case_.operation) {
    case Operation::kAttend:
      if (is_gathered()) {
        stages_->attend_gathered(*prepared_, params_, q_, *gathered_[next_gathered_],
                                 {.out = out_, .lse = {}}, options_.stream);
        next_gathered_ = (next_gathered_ + 1) % gathered_.size();
      } else {
        attend(cache, next_new_kv());
      }
      break;
    case Operation::kStep:
      prepare();
      backend_.attend(*prepared_, params_, q_, KvSource(cache, next_new_kv()),
                      {.out = out_, .lse = {}}, options_.stream);
      break;
    case Operation::kAppend:
      append(cache, next_new_kv());
      break;
    case Operation::kCopy:
      backend_.copy_blocks({&cache, 1}, {&cache, 1}, copies_, options_.stream);
      break;
    case Operation::kSwapOut:
      backend_.copy_blocks({&cache, 1}, host_cache_->layers(), copies_, options_.stream);
      break;
    case Operation::kSwapIn:
      backend_.copy_blocks(host_cache_->layers(), {&cache, 1}, copies_, options_.stream);
      break;
  }
}

void LoadedCase::call() {
  enqueue();
  backend_.memory().synchronize(options_.stream);
}

bool LoadedCase::output_is_finite() const {
  if (!out_.present()) return true;
  const std::int64_t count = out_.shape[0] * out_.shape[1] * out_.shape[2];
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * dtype_bytes(out_.dtype)));
  backend_.memory().copy_to_host(bytes.data(), out_.data, std::ssize(bytes), Stream{});
  backend_.memory().synchronize(Stream{});
  for (std::int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(load_float(out_.dtype, bytes.data(), i))) return false;
  }
  return true;
}

}  // namespace quire::benchmark

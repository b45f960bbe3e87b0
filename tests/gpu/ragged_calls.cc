// SPDX-License-Identifier: Apache-2.0
#include "gpu/ragged_calls.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "conformance/random.h"

namespace quire::testing {
namespace {

using conformance::DeviceBuffer;
using conformance::kPoison;
using conformance::Random;

constexpr std::int64_t kNumHeads = 8;
constexpr std::int32_t kUnusedEntry = -1;  // of tables: whoever follows it leaves the cache

std::uint16_t random_bf16(Random& random) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(random.normal()) >> 16);
}

template <class T>
std::int64_t size_bytes(const std::vector<T>& values) {
  return static_cast<std::int64_t>(values.size() * sizeof(T));
}

template <class T>
ArrayView<T> array_view(const DeviceBuffer& buffer) {
  return {static_cast<const T*>(buffer.data()),
          buffer.size_bytes() / static_cast<std::int64_t>(sizeof(T)), buffer.device()};
}

void poison(DeviceBuffer& buffer) {
  const std::vector<std::byte> bytes(static_cast<std::size_t>(buffer.size_bytes()), kPoison);
  buffer.upload(bytes.data(), 0, buffer.size_bytes());
}

}  // namespace

AttentionSpec TwicePlacedCache::make_spec(const TestedGpu& gpu) {
  AttentionSpec spec;
  spec.num_q_heads = static_cast<int>(kNumHeads);
  spec.num_kv_heads = 2;
  spec.head_dim = gpu.head_dim;
  spec.value_dim = gpu.head_dim;
  spec.kv.block_size = kBlockSize;
  spec.features.lse = true;
  spec.kv.layout = gpu.backend->preferred_layout(spec).id;
  return spec;
}

TwicePlacedCache::TwicePlacedCache(TestedGpu& gpu, int pool, std::int64_t first_copy)
    : backend_(*gpu.backend), spec_(make_spec(gpu)), pool_(pool), first_copy_(first_copy) {
  const KvLayout layout = backend_.preferred_layout(spec_);
  cache_ =
      std::make_unique<KvCache>(backend_.memory(), spec_, layout,
                                KvCache::Options{.num_layers = 1, .num_blocks = first_copy + pool});
  std::vector<std::uint16_t> records(static_cast<std::size_t>(layout.block_bytes * pool / 2));
  Random random(1);
  for (std::uint16_t& element : records) element = random_bf16(random);
  backend_.memory().copy_to_device(view().k, records.data(), size_bytes(records), {});
  backend_.memory().synchronize({});
  copy(/*back=*/false);
}

std::int32_t TwicePlacedCache::copy_of(std::int32_t block) const {
  return static_cast<std::int32_t>(first_copy_ + (pool_ - 1 - block));
}

void TwicePlacedCache::copy(bool back) {
  std::vector<BlockCopy> copies;
  for (std::int32_t block = 0; block < pool_; ++block) {
    if (back) {
      copies.push_back({.src = copy_of(block), .dst = block});
    } else {
      copies.push_back({.src = block, .dst = copy_of(block)});
    }
  }
  backend_.copy_blocks(cache_->layers(), cache_->layers(), copies);
  backend_.memory().synchronize({});
}

void TwicePlacedCache::copy_back() {
  KvLayout layout = backend_.preferred_layout(spec_);
  backend_.memory().fill(view().k, 0, layout.block_bytes * pool_, {});
  backend_.memory().synchronize({});
  copy(/*back=*/true);
}

// The metadata as device_batch() has it: as many sequences as the bounds allow.
struct RaggedCalls::Arrays {
  std::vector<std::int32_t> begins, ends, lens, indices;
};

RaggedCalls::RaggedCalls(TestedGpu& gpu, const TwicePlacedCache& cache, const BatchBounds& bounds)
    : gpu_(gpu),
      cache_(cache),
      bounds_(bounds),
      row_stride_((bounds.max_kv_len + kBlockSize - 1) / kBlockSize),
      begins_(gpu.backend->memory(), bounds.max_sequences * 4),
      ends_(gpu.backend->memory(), bounds.max_sequences * 4),
      lens_(gpu.backend->memory(), bounds.max_sequences * 4),
      indices_(gpu.backend->memory(), bounds.max_sequences * row_stride_ * 4),
      q_(gpu.backend->memory(), bounds.max_tokens * kNumHeads * gpu.head_dim * 2),
      out_(gpu.backend->memory(), bounds.max_tokens * kNumHeads * gpu.head_dim * 2),
      lse_(gpu.backend->memory(), bounds.max_tokens * kNumHeads * 4),
      plain_workspace_(gpu.backend->memory(), gpu.backend->workspace(cache.spec(), bounds)),
      recorded_workspace_(gpu.backend->memory(), gpu.backend->workspace(cache.spec(), bounds)),
      plain_(gpu.backend->make_prepared(cache.spec(), bounds, plain_workspace_.view())),
      recorded_(gpu.backend->make_prepared(cache.spec(), bounds, recorded_workspace_.view())),
      stream_(gpu.backend->memory().create_stream()) {
  // A device may load kernels at their first call, which is none to be recorded.
  run({}, Metadata::kOnDevice);
  recording_ = gpu.meter->record([this] { enqueue(*recorded_, device_batch()); }, stream_);
}

RaggedCalls::~RaggedCalls() {
  recording_.reset();
  gpu_.backend->memory().destroy_stream(stream_);
}

RaggedCalls::Arrays RaggedCalls::make_arrays(const std::vector<Sequence>& batch,
                                             bool in_copies) const {
  const auto capacity = static_cast<std::size_t>(bounds_.max_sequences);
  require(batch.size() <= capacity, "a batch of ", batch.size(), " sequences");
  Arrays arrays;
  arrays.indices.assign(capacity * static_cast<std::size_t>(row_stride_), kUnusedEntry);
  std::int32_t row = 0;
  for (std::size_t s = 0; s < capacity; ++s) {
    const Sequence sequence = s < batch.size() ? batch[s] : Sequence{};
    arrays.begins.push_back(row + sequence.rows_before);
    row += sequence.rows_before + sequence.q_len;
    arrays.ends.push_back(row);
    arrays.lens.push_back(sequence.kv_len);
    for (int i = 0; i * kBlockSize < sequence.kv_len; ++i) {
      const std::int32_t block = sequence.first_block + i;
      require(block < cache_.pool(), "block ", block, " of a pool of ", cache_.pool());
      arrays.indices[s * static_cast<std::size_t>(row_stride_) + static_cast<std::size_t>(i)] =
          in_copies ? cache_.copy_of(block) : block;
    }
  }
  require(row <= bounds_.max_tokens, "a batch of ", row, " rows");
  return arrays;
}

// Rows of nobody hold NaN.
void RaggedCalls::upload_queries(const std::vector<Sequence>& batch) {
  std::vector<std::uint16_t> q(static_cast<std::size_t>(q_.size_bytes() / 2), 0xffff);
  const std::int64_t row_size = kNumHeads * gpu_.head_dim;
  std::int64_t row = 0;
  for (const Sequence& sequence : batch) {
    row += sequence.rows_before;
    Random random(sequence.seed);
    std::generate_n(q.begin() + row * row_size, sequence.q_len * row_size,
                    [&random] { return random_bf16(random); });
    row += sequence.q_len;
  }
  q_.upload(q.data(), 0, size_bytes(q));
}

void RaggedCalls::upload_arrays(const Arrays& arrays) {
  begins_.upload(arrays.begins.data(), 0, size_bytes(arrays.begins));
  ends_.upload(arrays.ends.data(), 0, size_bytes(arrays.ends));
  lens_.upload(arrays.lens.data(), 0, size_bytes(arrays.lens));
  indices_.upload(arrays.indices.data(), 0, size_bytes(arrays.indices));
}

BatchView RaggedCalls::device_batch() const {
  BatchView batch;
  batch.queries = {array_view<std::int32_t>(begins_), array_view<std::int32_t>(ends_)};
  batch.kv.lens = array_view<std::int32_t>(lens_);
  batch.kv.blocks = BlockTables::padded(array_view<std::int32_t>(indices_), row_stride_);
  return batch;
}

void RaggedCalls::enqueue(PreparedBatch& prepared, const BatchView& batch) {
  const std::int64_t rows = bounds_.max_tokens;
  const TensorView q(q_.data(), DType::kBF16, {rows, kNumHeads, gpu_.head_dim}, q_.device());
  const MutableTensorView out(out_.data(), DType::kBF16, {rows, kNumHeads, gpu_.head_dim},
                              out_.device());
  const MutableTensorView lse(lse_.data(), DType::kF32, {rows, kNumHeads}, lse_.device());
  AttentionParams params;
  params.scale = 1.0F / std::sqrt(static_cast<float>(gpu_.head_dim));
  gpu_.backend->prepare(prepared, batch, stream_);
  gpu_.backend->attend(prepared, params, q, cache_.view(), {out, lse}, stream_);
}

Output RaggedCalls::run(const std::vector<Sequence>& batch, Metadata metadata, bool in_copies) {
  const Arrays arrays = make_arrays(batch, in_copies);
  upload_queries(batch);
  poison(out_);
  poison(lse_);
  PreparedBatch& prepared = metadata == Metadata::kRecorded ? *recorded_ : *plain_;
  if (metadata == Metadata::kOnHost) {
    // Only the sequences that there are.
    const auto count = static_cast<std::int64_t>(batch.size());
    BatchView view;
    view.queries = {ArrayView(arrays.begins).subview(0, count),
                    ArrayView(arrays.ends).subview(0, count)};
    view.kv.lens = ArrayView(arrays.lens).subview(0, count);
    view.kv.blocks =
        BlockTables::padded(ArrayView(arrays.indices).subview(0, count * row_stride_), row_stride_);
    enqueue(prepared, view);
  } else {
    upload_arrays(arrays);
    if (metadata == Metadata::kOnDevice) {
      enqueue(prepared, device_batch());
    } else {
      recording_->replay(stream_);
    }
  }
  gpu_.backend->memory().synchronize(stream_);
  const Status status = gpu_.backend->poll(prepared);
  require(status.ok(), "the device found: ", status.message);
  require(out_.guards_are_intact() && lse_.guards_are_intact(), "written beside the output");
  return {out_.download(), lse_.download()};
}

Output rows_of(const Output& output, std::int64_t max_tokens, std::int64_t first,
               std::int64_t count) {
  const auto slice = [&](const std::vector<std::byte>& bytes) {
    const std::int64_t row_bytes = static_cast<std::int64_t>(bytes.size()) / max_tokens;
    return std::vector<std::byte>(bytes.begin() + first * row_bytes,
                                  bytes.begin() + (first + count) * row_bytes);
  };
  return {slice(output.out), slice(output.lse)};
}

bool is_poison(const Output& output) {
  const auto all = [](const std::vector<std::byte>& bytes) {
    return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == kPoison; });
  };
  return all(output.out) && all(output.lse);
}

}  // namespace quire::testing

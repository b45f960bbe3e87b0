// SPDX-License-Identifier: Apache-2.0
// Append on the emulated GPU against rows that the host stores: the bytes of the cache must be
// equal, whatever the numbers, whichever kernel took them. And copies of blocks with gaps, without
// gaps, and more of them than travel with a launch.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/number_formats.h"
#include "emulated_gpu/emulated_gpu.h"
#include "gpu/transfer_args.h"
#include "layout/kv_rows.h"
#include "quire/backend.h"
#include "quire/kv_cache.h"
#include "quire/prepared_batch.h"

namespace quire::testing {
namespace {

struct AppendCase {
  DType source = DType::kBF16;
  DType stored = DType::kBF16;
  ScaleGranularity scales = ScaleGranularity::kNone;
  int num_heads = 2;
  int head_dim = 64;
  int value_dim = 64;
  int block_size = 16;
  bool v_in_k = false;
  std::int64_t row_gap = 0;  // elements between the rows of two tokens
};

constexpr int kNumTokens = 70;

AttentionSpec spec_of(const AppendCase& c) {
  AttentionSpec spec;
  spec.num_q_heads = c.num_heads;
  spec.num_kv_heads = c.num_heads;
  spec.head_dim = c.head_dim;
  spec.value_dim = c.value_dim;
  spec.kv.dtype = c.stored;
  spec.kv.scales = c.scales;
  spec.kv.block_size = c.block_size;
  spec.kv.v_in_k = c.v_in_k;
  return spec;
}

// Every third token holds any bits at all, the others numbers around 1 and around 2^-70 (in f16:
// the least ones).
std::uint16_t source_bits(DType dtype, std::int64_t token, std::int64_t index) {
  auto bits = static_cast<std::uint32_t>(token * 7919 + index + 1) * 0x9e3779b9U;
  bits = (bits ^ bits >> 15) * 0x85ebca6bU >> 16;
  const bool bf16 = dtype == DType::kBF16;
  if (token % 3 == 1) bits = (bits & 0x83ffU) | (bf16 ? 0x3c00U : 0x3800U);
  if (token % 3 == 2) bits = (bits & 0x81ffU) | (bf16 ? 0x1c00U : 0U);
  return static_cast<std::uint16_t>(bits);
}

// One new tensor in memory of the device.
class Rows {
 public:
  Rows(DeviceMemory& memory, const AppendCase& c, int dims, std::int64_t salt) : memory_(memory) {
    const std::int64_t row = std::int64_t{c.num_heads} * dims + c.row_gap;
    const std::int64_t count = kNumTokens * row;
    const std::int64_t size = dtype_bytes(c.source);
    data_ = static_cast<char*>(memory.allocate(count * size));
    view_ = TensorView(data_, c.source, {kNumTokens, c.num_heads, dims}, memory.device());
    view_.strides = {row, dims, 1};
    for (std::int64_t token = 0; token < kNumTokens; ++token) {
      for (std::int64_t i = 0; i < row; ++i) {
        const std::uint16_t bits = source_bits(c.source, token + salt, i);
        std::memcpy(data_ + (token * row + i) * size, &bits, sizeof(bits));
      }
    }
  }
  ~Rows() { memory_.free(data_); }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  const TensorView& view() const { return view_; }
  std::vector<float> row(std::int64_t token, std::int64_t head) const {
    std::vector<float> x(static_cast<std::size_t>(view_.shape[2]));
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = load_float(
          view_.dtype, data_,
          token * view_.strides[0] + head * view_.strides[1] + static_cast<std::int64_t>(i));
    }
    return x;
  }

 private:
  DeviceMemory& memory_;
  char* data_ = nullptr;
  TensorView view_;
};

// Backwards through the cache, with holes and two tokens that are not stored.
std::vector<std::int64_t> make_slots(std::int64_t num_slots) {
  std::vector<std::int64_t> slots;
  for (int i = 0; i < kNumTokens; ++i) slots.push_back(num_slots - 1 - i - i / 5);
  slots[3] = -1;
  slots[kNumTokens - 1] = -1;
  return slots;
}

std::int64_t num_scales(const KvCacheView& cache) {
  switch (cache.format.scales) {
    case ScaleGranularity::kNone:
      return 0;
    case ScaleGranularity::kPerTensor:
      return 1;
    case ScaleGranularity::kPerHead:
      return cache.num_kv_heads;
    case ScaleGranularity::kPerTokenHead:
      break;
  }
  return cache.num_blocks * cache.num_kv_heads * cache.format.block_size;
}

// Usual ones, neighbours of 1, and those that are outside of what is usual.
constexpr float kScales[] = {0x1p-7F, 0.013F, 1.0F + 0x1p-23F, 0x1.fffffep-1F,
                             3e-20F,  1e20F,  1e-38F,          0x1.fffffep-61F};

// A cache, and how its bytes and scales begin.
struct Storage {
  Storage(DeviceMemory& memory, const AppendCase& c, std::int64_t num_blocks, float first_scale)
      : cache(memory, spec_of(c), plain_layout(spec_of(c)), {.num_blocks = num_blocks}),
        view(cache.layer(0)),
        record_bytes(num_blocks * plain_layout(spec_of(c)).block_bytes) {
    std::memset(view.k, 0x55, static_cast<std::size_t>(record_bytes));
    for (const KvScales& scales : {view.k_scales, view.v_scales}) {
      for (std::int64_t i = 0; i < num_scales(view); ++i) {
        scales.data[i] = first_scale * static_cast<float>(i % 3 + 1);
      }
    }
  }

  KvCache cache;
  KvCacheView view;
  std::int64_t record_bytes;
};

void expect_equal(const Storage& has, const Storage& needs) {
  EXPECT_EQ(std::memcmp(has.view.k, needs.view.k, static_cast<std::size_t>(needs.record_bytes)), 0);
  const std::size_t bytes = static_cast<std::size_t>(num_scales(needs.view)) * sizeof(float);
  if (bytes == 0) return;
  EXPECT_EQ(std::memcmp(has.view.k_scales.data, needs.view.k_scales.data, bytes), 0);
  EXPECT_EQ(std::memcmp(has.view.v_scales.data, needs.view.v_scales.data, bytes), 0);
}

// One sequence of kNumTokens new tokens, with metadata in memory of the device.
class Prepared {
 public:
  Prepared(AttentionBackend& backend, const AttentionSpec& spec,
           const std::vector<std::int64_t>& slots)
      : memory_(backend.memory()), workspace_(memory_, backend.workspace(spec, bounds())) {
    const std::vector<std::int32_t> none{0};
    const std::vector<std::int32_t> all{kNumTokens};
    const std::vector<std::int32_t> blocks(kNumTokens, 0);
    BatchView batch;
    batch.queries = {on_device(none), on_device(all)};
    batch.kv.lens = on_device(all);
    batch.kv.blocks = BlockTables::padded(on_device(blocks), kNumTokens);
    batch.kv.slots = on_device(slots);
    prepared_ = backend.make_prepared(spec, bounds(), workspace_.view());
    backend.prepare(*prepared_, batch, Stream{});
  }
  ~Prepared() {
    for (void* data : arrays_) memory_.free(data);
  }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

  PreparedBatch& get() const { return *prepared_; }

 private:
  static BatchBounds bounds() {
    return {.max_sequences = 1,
            .max_tokens = kNumTokens,
            .max_kv_len = kNumTokens,
            .max_total_kv_len = kNumTokens};
  }
  template <class T>
  ArrayView<T> on_device(const std::vector<T>& values) {
    const std::size_t bytes = values.size() * sizeof(T);
    arrays_.push_back(memory_.allocate(static_cast<std::int64_t>(bytes)));
    std::memcpy(arrays_.back(), values.data(), bytes);
    return {static_cast<const T*>(arrays_.back()), std::ssize(values), memory_.device()};
  }

  DeviceMemory& memory_;
  WorkspaceBuffer workspace_;
  std::vector<void*> arrays_;
  std::unique_ptr<PreparedBatch> prepared_;
};

void expect_append(AttentionBackend& backend, const AppendCase& c, float scale) {
  SCOPED_TRACE(to_string(spec_of(c)) + ", scale " + std::to_string(scale));
  DeviceMemory& memory = backend.memory();
  const AttentionSpec spec = spec_of(c);
  const std::int64_t num_blocks = 96 / c.block_size + 1;
  Storage has(memory, c, num_blocks, scale);
  Storage needs(memory, c, num_blocks, scale);
  const Rows k(memory, c, c.head_dim, 0);
  const Rows v(memory, c, c.value_dim, 11);

  const std::vector<std::int64_t> slots = make_slots(num_blocks * c.block_size);
  const Prepared prepared(backend, spec, slots);
  NewKv new_kv{k.view(), {}};
  if (!c.v_in_k) new_kv.v = v.view();
  backend.append(prepared.get(), new_kv, has.view, Stream{});

  for (std::int64_t token = 0; token < kNumTokens; ++token) {
    const std::int64_t slot = slots[static_cast<std::size_t>(token)];
    if (slot < 0) continue;
    for (std::int64_t head = 0; head < c.num_heads; ++head) {
      const auto store = [&](KvTensor tensor, const Rows& rows) {
        store_row(needs.view, tensor, slot / c.block_size, head, slot % c.block_size,
                  rows.row(token, head).data());
      };
      store(KvTensor::kK, k);
      if (!c.v_in_k) store(KvTensor::kV, v);
    }
  }
  expect_equal(has, needs);
}

TEST(EmulatedAppend, StoresAnyNumberAsTheHostDoes) {
  const auto backend = make_emulated_gpu({});
  for (const DType source : {DType::kBF16, DType::kF16}) {
    expect_append(*backend, {.source = source, .stored = source}, 1);
    for (const DType stored : {DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
      AppendCase c{.source = source, .stored = stored, .scales = ScaleGranularity::kPerHead};
      for (const float scale : kScales) expect_append(*backend, c, scale);
      c.scales = ScaleGranularity::kPerTokenHead;
      expect_append(*backend, c, 1);
    }
  }
}

// What the quick inverse of such a scale relies on (divide_usual).
TEST(EmulatedAppend, NoScaleOfATokenHasAllOnesInItsMantissa) {
  constexpr std::uint32_t kMantissa = 0x7fffff;
  for (std::uint32_t bits = 0; bits < 0x8000; ++bits) {
    const auto number = static_cast<std::uint16_t>(bits);
    for (const float amax : {to_float(BFloat16{number}), to_float(Float16{number})}) {
      if (!std::isfinite(amax)) continue;
      for (const DType stored : {DType::kI8, DType::kF8E4M3, DType::kF8E5M2}) {
        const float scale = token_head_scale(stored, amax);
        ASSERT_NE(std::bit_cast<std::uint32_t>(scale) & kMantissa, kMantissa) << amax;
      }
    }
  }
}

TEST(EmulatedAppend, TakesRowsOfAnyShape) {
  const auto backend = make_emulated_gpu({.num_processors = 1});
  for (const DType stored : {DType::kBF16, DType::kI8}) {
    AppendCase c{.stored = stored};
    if (stored == DType::kI8) c.scales = ScaleGranularity::kPerTokenHead;
    for (const auto& [head_dim, value_dim] :
         {std::pair{8, 8}, {72, 72}, {128, 128}, {192, 128}, {256, 64}, {576, 512}}) {
      c.head_dim = head_dim;
      c.value_dim = value_dim;
      c.num_heads = 3;
      c.block_size = 7;
      expect_append(*backend, c, 1);
    }
    expect_append(*backend,
                  {.stored = stored,
                   .scales = c.scales,
                   .num_heads = 1,
                   .head_dim = 576,
                   .value_dim = 512,
                   .block_size = 1,
                   .v_in_k = true},
                  1);
    // Rows that begin between borders of 16 bytes.
    expect_append(*backend, {.stored = stored, .scales = c.scales, .row_gap = 3}, 1);
    expect_append(*backend, {.stored = stored, .scales = c.scales, .row_gap = 8}, 1);
  }
}

TEST(EmulatedAppend, TellsOfASlotThatTheCacheDoesNotHave) {
  const auto backend = make_emulated_gpu({});
  DeviceMemory& memory = backend->memory();
  for (const std::int64_t row_gap : {0, 3}) {
    const AppendCase c{.row_gap = row_gap};
    const Storage storage(memory, c, 7, 1);
    const Rows k(memory, c, c.head_dim, 0);
    const Rows v(memory, c, c.value_dim, 11);
    std::vector<std::int64_t> slots = make_slots(7 * c.block_size);
    slots[17] = 7 * c.block_size;
    slots[40] = std::int64_t{1} << 40;
    const Prepared prepared(*backend, spec_of(c), slots);
    backend->append(prepared.get(), {k.view(), v.view()}, storage.view, Stream{});
    const Status status = backend->poll(prepared.get());
    EXPECT_EQ(status.code, ErrorCode::kInvalidArgument);
    EXPECT_NE(status.message.find("index 17"), std::string::npos) << status.message;
  }
}

TEST(EmulatedCopy, CopiesWholeBlocks) {
  const auto backend = make_emulated_gpu({});
  const AppendCase shape{.stored = DType::kI8, .scales = ScaleGranularity::kPerTokenHead};
  for (const std::int64_t count : {1, 5, gpu::CopyRecordArgs::kFewCopies + 1}) {
    AppendCase c = shape;
    if (count > 5) c.block_size = 1;
    Storage has(backend->memory(), c, 2 * count, 1);
    std::vector<BlockCopy> copies;
    auto* bytes = static_cast<unsigned char*>(has.view.k);
    const std::int64_t block_bytes = has.record_bytes / (2 * count);
    const std::int64_t block_scales = std::int64_t{c.num_heads} * c.block_size;
    for (std::int64_t i = 0; i < has.record_bytes; ++i) {
      bytes[i] = static_cast<unsigned char>(i * 31 >> 3);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      copies.push_back({.src = static_cast<std::int32_t>(2 * i),
                        .dst = static_cast<std::int32_t>(2 * (count - i) - 1)});
    }
    for (std::int64_t i = 0; i < num_scales(has.view); ++i) {
      has.view.k_scales.data[i] = static_cast<float>(i);
      has.view.v_scales.data[i] = static_cast<float>(-i);
    }
    backend->copy_blocks({&has.view, 1}, {&has.view, 1}, copies, Stream{});
    for (const BlockCopy& copy : copies) {
      ASSERT_EQ(std::memcmp(bytes + copy.dst * block_bytes, bytes + copy.src * block_bytes,
                            static_cast<std::size_t>(block_bytes)),
                0);
      for (std::int64_t i = 0; i < block_scales; ++i) {
        ASSERT_EQ(has.view.k_scales.data[copy.dst * block_scales + i],
                  static_cast<float>(copy.src * block_scales + i));
        ASSERT_EQ(has.view.v_scales.data[copy.dst * block_scales + i],
                  -static_cast<float>(copy.src * block_scales + i));
      }
    }
  }
}

}  // namespace
}  // namespace quire::testing

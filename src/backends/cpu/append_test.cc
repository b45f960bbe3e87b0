// SPDX-License-Identifier: Apache-2.0
// The append of every level that this machine has, against store_row. Whole images of the cache are
// compared, so that a byte of another slot would show.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backends/cpu/append_call.h"
#include "backends/cpu/cpu_backend.h"
#include "base/check.h"
#include "base/dispatch.h"
#include "base/number_formats.h"
#include "layout/cache_image.h"
#include "layout/kv_rows.h"

namespace quire::cpu {
namespace {

constexpr DType kStored[] = {DType::kF32,    DType::kF16,    DType::kBF16,
                             DType::kF8E4M3, DType::kF8E5M2, DType::kI8};
constexpr DType kSources[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr ScaleGranularity kScales[] = {ScaleGranularity::kNone, ScaleGranularity::kPerTensor,
                                        ScaleGranularity::kPerHead,
                                        ScaleGranularity::kPerTokenHead};

struct NamedLevel {
  std::string name;
  AppendRows* append_rows;
};

std::vector<NamedLevel> levels() {
  std::vector<NamedLevel> found;
  for (const std::string& name : cpu_isa_levels()) {
#if defined(__x86_64__)
    if (name == "avx512") found.push_back({name, avx512::append_rows});
    if (name == "avx2") found.push_back({name, avx2::append_rows});
#endif
    if (name == "scalar") found.push_back({name, scalar::append_rows});
  }
  return found;
}

// New K or V: elements of any bits, in an allocation without room behind the last row.
class SourceRows {
 public:
  enum class Order : std::uint8_t { kRowHead, kHeadRow };

  SourceRows(DType dtype, std::int64_t rows, std::int64_t heads, std::int64_t dims, Order order)
      : bytes_(std::make_unique<unsigned char[]>(
            static_cast<std::size_t>(size(rows, heads, dims) * dtype_bytes(dtype)))),
        view_(bytes_.get(), dtype, {rows, heads, dims}) {
    const std::int64_t step = dims + kGap;
    view_.strides[0] = order == Order::kRowHead ? heads * step : step;
    view_.strides[1] = order == Order::kRowHead ? step : rows * step;
  }

  TensorView view() const { return view_; }
  std::int64_t offset(std::int64_t row, std::int64_t head, std::int64_t dim) const {
    return row * view_.strides[0] + head * view_.strides[1] + dim;
  }
  template <class T>
  T& at(std::int64_t row, std::int64_t head, std::int64_t dim) {
    return reinterpret_cast<T*>(bytes_.get())[offset(row, head, dim)];
  }
  float value(std::int64_t row, std::int64_t head, std::int64_t dim) const {
    return load_float(view_.dtype, bytes_.get(), offset(row, head, dim));
  }

 private:
  static constexpr std::int64_t kGap = 3;
  static std::int64_t size(std::int64_t rows, std::int64_t heads, std::int64_t dims) {
    return rows * heads * (dims + kGap) - kGap;
  }

  std::unique_ptr<unsigned char[]> bytes_;
  MutableTensorView view_;
};

// Numbers of many magnitudes, among them some that formats treat specially.
void fill(SourceRows& rows, std::uint32_t seed) {
  const TensorView view = rows.view();
  std::uint32_t state = seed;
  for (std::int64_t r = 0; r < view.shape[0]; ++r) {
    for (std::int64_t h = 0; h < view.shape[1]; ++h) {
      for (std::int64_t d = 0; d < view.shape[2]; ++d) {
        const std::uint32_t random = scramble(++state);
        const float mantissa = static_cast<float>(random % 2001) / 1000.0F - 1.0F;
        float x = std::ldexp(mantissa, static_cast<int>(random >> 20) % 24 - 12);
        if (random % 61 == 0) x = std::numeric_limits<float>::infinity();
        if (random % 67 == 0) x = std::numeric_limits<float>::quiet_NaN();
        if (random % 59 == 0) x = -x * 65536.0F;
        if (r % 7 == 3) x *= 0x1p-120F;  // rows too small for a scale of their own
        dispatch_dtype(view.dtype, [&]<class T>() { rows.at<T>(r, h, d) = from_float<T>(x); });
      }
    }
  }
}

// What a cache holds. Images differ in their alignment, so that one of them serves all levels.
struct Contents {
  std::vector<unsigned char> bytes;
  std::vector<float> scales;
  friend bool operator==(const Contents&, const Contents&) = default;
};
Contents contents_of(const CacheImage& image) {
  return {image.bytes(), image.scales()};
}
void reset(CacheImage& image, const Contents& contents) {
  std::copy(contents.bytes.begin(), contents.bytes.end(), image.bytes().begin());
  std::copy(contents.scales.begin(), contents.scales.end(), image.scales().begin());
}

// The same by store_row.
void store_rows_plainly(const CacheImage& image, const SourceRows& rows, KvTensor tensor,
                        const std::vector<std::int64_t>& slots) {
  const KvCacheView& cache = image.view();
  std::vector<float> row(static_cast<std::size_t>(row_dims(cache, tensor)));
  for (std::int64_t r = 0; r < std::ssize(slots); ++r) {
    const std::int64_t slot = slots[static_cast<std::size_t>(r)];
    if (slot < 0) continue;
    for (std::int64_t h = 0; h < cache.num_kv_heads; ++h) {
      for (std::size_t d = 0; d < row.size(); ++d) {
        row[d] = rows.value(r, h, static_cast<std::int64_t>(d));
      }
      store_row(cache, tensor, slot / cache.format.block_size, h, slot % cache.format.block_size,
                row.data());
    }
  }
}

// Whole tiles in and out of order, parts of tiles at both ends, single slots, and none.
std::vector<std::int64_t> mixed_slots(std::int64_t num_slots) {
  std::vector<std::int64_t> slots;
  const auto run = [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) slots.push_back(first + i);
  };
  slots.push_back(-1);
  run(num_slots - 16, 16);
  run(5, 43);  // ends of tiles around one whole tile, of two where blocks are larger
  slots.push_back(-1);
  slots.push_back(3);
  slots.push_back(0);
  slots.push_back(1);
  run(64, 14);
  slots.push_back(-1);
  slots.push_back(79);
  slots.push_back(78);
  return slots;
}

struct AppendCase {
  AttentionSpec spec;
  ImageForm form;
  DType source;
  SourceRows::Order order;
};

std::string to_string(const AppendCase& c) {
  return concat(to_string(c.form), " ", dtype_name(c.spec.kv.dtype), " from ", dtype_name(c.source),
                " ", scale_granularity_name(c.spec.kv.scales), " dims ", c.spec.head_dim, "/",
                c.spec.value_dim, " block ", c.spec.kv.block_size,
                c.spec.kv.v_in_k ? " v_in_k" : "");
}

// One case on every level, with and without streaming, in one share and in many.
void check_case(const AppendCase& c) {
  SCOPED_TRACE(to_string(c));
  const bool v_in_k = c.spec.kv.v_in_k;
  const std::int64_t num_blocks = 96 / c.spec.kv.block_size + 1;
  const std::vector<std::int64_t> slots = mixed_slots(96);
  const std::int64_t num_rows = std::ssize(slots);
  SourceRows k(c.source, num_rows, c.spec.num_kv_heads, c.spec.head_dim, c.order);
  SourceRows v(c.source, num_rows, c.spec.num_kv_heads, c.spec.value_dim, c.order);
  fill(k, 1);
  fill(v, 2);
  CacheImage image(c.spec, c.form, num_blocks, 5);
  const Contents before = contents_of(image);
  store_rows_plainly(image, k, KvTensor::kK, slots);
  if (!v_in_k) store_rows_plainly(image, v, KvTensor::kV, slots);
  const Contents expected = contents_of(image);
  for (const NamedLevel& level : levels()) {
    for (const bool streams : {false, true}) {
      reset(image, before);
      AppendCall call =
          make_append_call({k.view(), v_in_k ? TensorView() : v.view()}, image.view(), slots);
      call.streams = streams;
      const AppendShares shares = make_append_shares(call, streams ? 4 : 1);
      for (std::int64_t i = 0; i < shares.size(); ++i) {
        level.append_rows(call, append_share(call, shares, i));
      }
      // Not EXPECT_EQ: it would print all of both.
      EXPECT_TRUE(contents_of(image) == expected) << level.name << " streams " << streams;
    }
  }
}

AttentionSpec make_spec(DType dtype, ScaleGranularity scales, int head_dim, int value_dim,
                        int block_size) {
  AttentionSpec spec;
  spec.num_q_heads = spec.num_kv_heads = 3;
  spec.head_dim = head_dim;
  spec.value_dim = value_dim;
  spec.kv = {dtype, block_size, scales, false, KvLayoutId::kPlain};
  return spec;
}

template <class F>
void for_each_format(F&& f) {
  for (const DType dtype : kStored) {
    for (const ScaleGranularity scales : kScales) {
      if (scales == ScaleGranularity::kNone || is_quantized(dtype)) f(dtype, scales);
      if (testing::Test::HasFailure()) return;
    }
  }
}

class AppendDims : public testing::TestWithParam<int> {};

TEST_P(AppendDims, EveryFormatSourceAndScaleInRecordsAndTiles) {
  const int head_dim = GetParam();
  const int value_dim = head_dim % 16 == 0 ? head_dim : head_dim + 8;  // tiles take whole ones
  for_each_format([&](DType dtype, ScaleGranularity scales) {
    for (const DType source : kSources) {
      for (const ImageForm form : {ImageForm::kRecords, ImageForm::kTiled}) {
        const AttentionSpec spec = make_spec(dtype, scales, head_dim, value_dim, 32);
        ASSERT_TRUE(CacheImage::possible(spec, form));
        check_case({spec, form, source, SourceRows::Order::kRowHead});
      }
    }
  });
}
INSTANTIATE_TEST_SUITE_P(HeadDims, AppendDims, testing::Values(40, 64, 72, 80, 96, 128, 192, 576));

TEST(Append, EveryFormBlockSizeAndShape) {
  struct Dims {
    int head_dim, value_dim;
  };
  for_each_format([&](DType dtype, ScaleGranularity scales) {
    for (const ImageForm form : kImageForms) {
      for (const int block_size : {1, 3, 16, 48}) {
        for (const Dims dims : {Dims{1, 1}, {3, 5}, {34, 16}, {64, 48}}) {
          for (const bool v_in_k : {false, true}) {
            AttentionSpec spec =
                make_spec(dtype, scales, dims.head_dim, dims.value_dim, block_size);
            spec.kv.v_in_k = v_in_k;
            if (v_in_k && dims.value_dim > dims.head_dim) continue;
            if (!CacheImage::possible(spec, form)) continue;
            check_case({spec, form, DType::kBF16, SourceRows::Order::kHeadRow});
          }
        }
      }
    }
  });
}

// Stores `bits`, 64 to a row, in the form and by the scale; every element against quantize().
template <class T, class Bits>
void check_values(const std::vector<Bits>& bits, DType dtype, float scale) {
  constexpr std::int64_t kDims = 64;
  const std::int64_t num_rows = std::ssize(bits) / kDims;
  AttentionSpec spec =
      make_spec(dtype, is_quantized(dtype) ? ScaleGranularity::kPerTensor : ScaleGranularity::kNone,
                kDims, kDims, 16);
  spec.num_q_heads = spec.num_kv_heads = 1;
  SourceRows rows(kDTypeOf<T>, num_rows, 1, kDims, SourceRows::Order::kRowHead);
  std::vector<std::int64_t> slots(static_cast<std::size_t>(num_rows));
  for (std::int64_t r = 0; r < num_rows; ++r) {
    slots[static_cast<std::size_t>(r)] = r;
    for (std::int64_t d = 0; d < kDims; ++d) {
      rows.at<T>(r, 0, d) = std::bit_cast<T>(bits[static_cast<std::size_t>(r * kDims + d)]);
    }
  }
  for (const ImageForm form : {ImageForm::kRecords, ImageForm::kTiled}) {
    CacheImage image(spec, form, (num_rows + 15) / 16, 1);
    std::fill(image.scales().begin(), image.scales().end(), scale);
    const Contents before = contents_of(image);
    store_rows_plainly(image, rows, KvTensor::kK, slots);
    store_rows_plainly(image, rows, KvTensor::kV, slots);
    const Contents expected = contents_of(image);
    for (const NamedLevel& level : levels()) {
      reset(image, before);
      const AppendCall call = make_append_call({rows.view(), rows.view()}, image.view(), slots);
      level.append_rows(call, {{0, num_rows}, {0, 1}});
      EXPECT_TRUE(contents_of(image) == expected)
          << level.name << " " << to_string(form) << " " << dtype_name(dtype) << " from "
          << dtype_name(kDTypeOf<T>) << " by " << scale;
    }
  }
}

constexpr float kDivisors[] = {1.0F, 0.25F, 0.37F, 3.0F, 1.0e-3F, 0x1p-126F, 0x1p126F, 1.0e-38F};

TEST(AppendValues, Every16BitNumberToEveryFormat) {
  std::vector<std::uint16_t> bits(65536);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
  for (const DType dtype : kStored) {
    for (const float scale : kDivisors) {
      if (scale != 1.0F && !is_quantized(dtype)) continue;
      check_values<BFloat16>(bits, dtype, scale);
      check_values<Float16>(bits, dtype, scale);
    }
  }
}

// All numbers of a format, the middles between two neighbours, and what is one bit beside them.
void add_borders(DType dtype, int num_codes, std::vector<std::uint32_t>& bits) {
  for (int code = 0; code < num_codes; ++code) {
    const auto next = static_cast<std::uint16_t>(code + 1);
    const auto now = static_cast<std::uint16_t>(code);
    float a = 0.0F;
    float b = 0.0F;
    if (dtype == DType::kI8) {
      a = static_cast<float>(code - 128);
      b = a + 1.0F;
    } else {
      a = load_float(dtype, &now, 0);  // little endian: a byte is the lower one
      b = load_float(dtype, &next, 0);
    }
    for (const float x : {a, a / 2.0F + b / 2.0F}) {
      const auto at = std::bit_cast<std::uint32_t>(x);
      for (const std::uint32_t y : {at - 1, at, at + 1}) bits.push_back(y);
    }
  }
}

TEST(AppendValues, BordersOfEveryFormatAndRandomBitsOfF32) {
  std::vector<std::uint32_t> bits;
  add_borders(DType::kI8, 256, bits);
  add_borders(DType::kF8E4M3, 256, bits);
  add_borders(DType::kF8E5M2, 256, bits);
  add_borders(DType::kF16, 65535, bits);
  for (std::uint32_t i = 0; i < 60000; ++i) bits.push_back(scramble(i + 1));
  for (const std::uint32_t special :
       {0x7f800000U, 0xff800000U, 0x7f800001U, 0xff800001U, 0x7fbfffffU, 0x7fc00000U, 0xffc12345U,
        0x7fffffffU, 0xffffffffU, 1U, 0x80000001U, 0x007fffffU, 0x00800000U, 0x7f7fffffU, 0U,
        0x80000000U}) {
    bits.push_back(special);
  }
  bits.resize((bits.size() + 63) / 64 * 64, 0x3f800000U);
  for (const DType dtype : kStored) {
    for (const float scale : kDivisors) {
      if (scale != 1.0F && !is_quantized(dtype)) continue;
      check_values<float>(bits, dtype, scale);
    }
  }
}

// A product by the reciprocal of a power of two is the quotient; for others it is not taken.
TEST(AppendValues, DivisorsGiveQuotients) {
  for (int exponent = -149; exponent <= 127; ++exponent) {
    const float scale = std::ldexp(1.0F, exponent);
    const Divisor by = divisor_of(scale);
    EXPECT_EQ(by.divides, exponent < -126 || exponent > 126) << exponent;
    for (std::uint32_t i = 0; i < 2000; ++i) {
      const float x = std::bit_cast<float>(scramble(i));
      if (std::isnan(x) || by.divides) continue;
      EXPECT_EQ(std::bit_cast<std::uint32_t>(x * by.factor),
                std::bit_cast<std::uint32_t>(x / scale));
    }
  }
  for (const float scale : {0.37F, 3.0F, 0x1.000002p0F, 0x1.fffffep-1F}) {
    EXPECT_TRUE(divisor_of(scale).divides) << scale;
    EXPECT_EQ(divisor_of(scale).factor, scale);
  }
}

// Tokens that share words of V, and lines of K, stored by two threads at once.
TEST(AppendThreads, TokensThatShareWordsAreNotLost) {
  for (const DType dtype : kStored) {
    const AttentionSpec spec = make_spec(dtype, ScaleGranularity::kNone, 64, 64, 32);
    constexpr std::int64_t kBlocks = 4;
    const std::int64_t num_slots = kBlocks * spec.kv.block_size;
    std::vector<std::int64_t> slots[2];  // even ones, odd ones
    for (std::int64_t slot = 0; slot < num_slots; ++slot) slots[slot % 2].push_back(slot);
    SourceRows rows(DType::kBF16, num_slots / 2, spec.num_kv_heads, 64,
                    SourceRows::Order::kRowHead);
    fill(rows, 3);
    CacheImage image(spec, ImageForm::kTiled, kBlocks, 1);
    const Contents before = contents_of(image);
    for (const auto& half : slots) {
      store_rows_plainly(image, rows, KvTensor::kK, half);
      store_rows_plainly(image, rows, KvTensor::kV, half);
    }
    const Contents expected = contents_of(image);
    for (const NamedLevel& level : levels()) {
      // Rounds that begin together and store once: what one thread lost, no later round repairs.
      constexpr int kRounds = 40;
      std::atomic<int> arrived{0};
      const auto meet = [&arrived](int meeting) {
        arrived.fetch_add(1);
        while (arrived.load() < 2 * meeting) std::this_thread::yield();
      };
      const auto append_half = [&](const std::vector<std::int64_t>& half) {
        const AppendCall call = make_append_call({rows.view(), rows.view()}, image.view(), half);
        level.append_rows(call, {{0, num_slots / 2}, {0, spec.num_kv_heads}});
      };
      std::thread other([&] {
        for (int round = 0; round < kRounds; ++round) {
          meet(2 * round + 1);
          append_half(slots[1]);
          meet(2 * round + 2);
        }
      });
      int num_wrong = 0;
      for (int round = 0; round < kRounds; ++round) {
        reset(image, before);
        meet(2 * round + 1);
        append_half(slots[0]);
        meet(2 * round + 2);
        if (contents_of(image) != expected) ++num_wrong;
      }
      other.join();
      EXPECT_EQ(num_wrong, 0) << level.name << " " << dtype_name(dtype);
    }
  }
}

AppendCall call_of(const std::vector<std::int64_t>& slots, int num_heads, int dims) {
  AppendCall call;
  call.k.dtype = call.v.dtype = DType::kBF16;
  call.cache.num_kv_heads = num_heads;
  call.cache.head_dim = call.cache.value_dim = dims;
  call.slots = slots;
  return call;
}

TEST(AppendShares, CoverEveryRowAndHeadOnceAndKeepTilesWhole) {
  std::vector<std::int64_t> slots = mixed_slots(96);
  for (std::int64_t i = 0; i < 300; ++i) slots.push_back(1000 + i);
  for (const int num_heads : {1, 8, 30}) {
    for (const int num_threads : {1, 2, 7, 64}) {
      const AppendCall call = call_of(slots, num_heads, 128);
      const AppendShares shares = make_append_shares(call, num_threads);
      std::vector<int> times(slots.size() * static_cast<std::size_t>(num_heads));
      for (std::int64_t i = 0; i < shares.size(); ++i) {
        const AppendShare share = append_share(call, shares, i);
        for (std::int64_t row = share.rows.begin; row < share.rows.end; ++row) {
          for (std::int64_t head = share.heads.begin; head < share.heads.end; ++head) {
            ++times[static_cast<std::size_t>(row * num_heads + head)];
          }
        }
        const std::int64_t begin = share.rows.begin;
        if (share.rows.size() == 0 || begin == 0) continue;
        const std::int64_t slot = slots[static_cast<std::size_t>(begin)];
        EXPECT_TRUE(slot % 16 == 0 || slots[static_cast<std::size_t>(begin - 1)] != slot - 1);
      }
      EXPECT_EQ(std::count(times.begin(), times.end(), 1), std::ssize(times));
    }
  }
}

TEST(AppendShares, OneTokenStaysOnOneThread) {
  std::vector<std::int64_t> slots{32};
  EXPECT_EQ(make_append_shares(call_of(slots, 8, 128), 64).size(), 1);
  slots.push_back(64);
  EXPECT_EQ(make_append_shares(call_of(slots, 8, 128), 64).size(), 8);
  slots.resize(64, 7);
  EXPECT_GT(make_append_shares(call_of(slots, 8, 128), 64).size(), 16);
  EXPECT_EQ(make_append_shares(call_of({}, 8, 128), 64).size(), 0);
}

}  // namespace
}  // namespace quire::cpu

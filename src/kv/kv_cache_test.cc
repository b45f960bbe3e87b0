// SPDX-License-Identifier: Apache-2.0
#include "quire/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/host_memory.h"
#include "kv/recording_memory.h"
#include "layout/kv_extent.h"
#include "layout/kv_offset.h"
#include "layout/kv_rows.h"
#include "quire/error.h"

namespace quire {
namespace {

AttentionSpec make_spec(DType dtype = DType::kBF16,
                        ScaleGranularity scales = ScaleGranularity::kNone) {
  AttentionSpec spec;
  spec.num_q_heads = spec.num_kv_heads = 3;
  spec.head_dim = 34;
  spec.value_dim = 16;
  spec.kv.dtype = dtype;
  spec.kv.block_size = 16;
  spec.kv.scales = scales;
  return spec;
}

template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

// Half-open ranges of addresses.
using Range = std::pair<std::uintptr_t, std::uintptr_t>;

Range tensor_range(const KvCacheView& view, KvTensor tensor) {
  const ElementRange range = element_range(view, tensor);
  const auto base = reinterpret_cast<std::uintptr_t>(tensor == KvTensor::kK ? view.k : view.v);
  const std::int64_t bytes = dtype_bytes(view.format.dtype);
  return {base + static_cast<std::uintptr_t>(range.begin * bytes),
          base + static_cast<std::uintptr_t>(range.end * bytes)};
}

Range scale_range(const KvCacheView& view, const KvScales& scales) {
  const std::int64_t last =
      scale_offset(scales, view.num_blocks - 1, view.num_kv_heads - 1, view.format.block_size - 1);
  return {reinterpret_cast<std::uintptr_t>(scales.data),
          reinterpret_cast<std::uintptr_t>(scales.data + last + 1)};
}

// The records of a layer, and each of its scale arrays, lie inside the one allocation and apart.
void check_parts(const KvCache& cache, const void* data, std::int64_t data_bytes) {
  std::vector<Range> parts;
  for (const KvCacheView& view : cache.layers()) {
    const Range k = tensor_range(view, KvTensor::kK);
    const Range v = tensor_range(view, KvTensor::kV);
    parts.emplace_back(std::min(k.first, v.first), std::max(k.second, v.second));
    if (view.format.scales == ScaleGranularity::kNone) continue;
    parts.push_back(scale_range(view, view.k_scales));
    if (!view.format.v_in_k) parts.push_back(scale_range(view, view.v_scales));
  }
  std::sort(parts.begin(), parts.end());
  std::uintptr_t end = reinterpret_cast<std::uintptr_t>(data);
  for (const Range& part : parts) {
    EXPECT_EQ(part.first % 64, 0U);
    EXPECT_GE(part.first, end);
    end = part.second;
  }
  EXPECT_LE(end, reinterpret_cast<std::uintptr_t>(data) + static_cast<std::uintptr_t>(data_bytes));
}

TEST(KvCache, PartsLieApartInOneAllocation) {
  for (const ScaleGranularity scales :
       {ScaleGranularity::kNone, ScaleGranularity::kPerTensor, ScaleGranularity::kPerHead,
        ScaleGranularity::kPerTokenHead}) {
    for (const bool tiled : {false, true}) {
      for (const bool v_in_k : {false, true}) {
        AttentionSpec spec = make_spec(DType::kI8, scales);
        spec.kv.v_in_k = v_in_k;
        KvLayout layout = tiled ? pair_tiled_layout(spec) : plain_layout(spec);
        RecordingMemory memory;
        const KvCache cache(memory, spec, layout, {.num_layers = 3, .num_blocks = 5});
        ASSERT_EQ(memory.device_live.size(), 1U);
        ASSERT_EQ(cache.layers().size(), 3U);
        EXPECT_EQ(cache.num_blocks(), 5);
        EXPECT_EQ(cache.size_bytes(), memory.last_bytes);
        check_parts(cache, *memory.device_live.begin(), cache.size_bytes());
        for (const KvCacheView& view : cache.layers()) {
          EXPECT_EQ(view.num_blocks, 5);
          EXPECT_EQ(view.device, (Device{DeviceKind::kCustom, 3}));
          EXPECT_EQ(view.format.layout, layout.id);
          EXPECT_EQ(view.format.v_in_k, v_in_k);
          EXPECT_EQ(view.v == view.k, v_in_k);
          EXPECT_EQ(view.k_scales.data != nullptr, scales != ScaleGranularity::kNone);
          if (v_in_k) {
            EXPECT_EQ(view.v_scales.data, view.k_scales.data);
          }
        }
      }
    }
  }
}

TEST(KvCache, CallersScalesStartAtOneAndAreWaitedFor) {
  for (const bool on_host : {false, true}) {
    for (const ScaleGranularity scales :
         {ScaleGranularity::kPerTensor, ScaleGranularity::kPerHead}) {
      const AttentionSpec spec = make_spec(DType::kF8E4M3, scales);
      RecordingMemory memory;
      const KvCache cache(memory, spec, plain_layout(spec),
                          {.num_layers = 2, .num_blocks = 4, .on_host = on_host});
      EXPECT_EQ(memory.num_pending, 0);
      for (const KvCacheView& view : cache.layers()) {
        for (std::int64_t head = 0; head < 3; ++head) {
          EXPECT_EQ(view.k_scales.data[scale_offset(view.k_scales, 3, head, 15)], 1.0F);
          EXPECT_EQ(view.v_scales.data[scale_offset(view.v_scales, 3, head, 15)], 1.0F);
        }
        EXPECT_EQ(view.k_scales.strides.head, scales == ScaleGranularity::kPerHead ? 1 : 0);
        EXPECT_EQ(view.k_scales.strides.block, 0);
        EXPECT_EQ(view.k_scales.strides.token, 0);
      }
    }
  }
}

TEST(KvCache, OnHostIsTheBackendsHostMemory) {
  const AttentionSpec spec = make_spec();
  RecordingMemory memory;
  {
    const KvCache cache(memory, spec, plain_layout(spec), {.num_blocks = 4, .on_host = true});
    EXPECT_EQ(memory.host_live.size(), 1U);
    EXPECT_TRUE(memory.device_live.empty());
    EXPECT_TRUE(cache.layer(0).device.is_host());
  }
  EXPECT_TRUE(memory.host_live.empty());
  EXPECT_EQ(memory.num_bad_frees, 0);
}

TEST(KvCache, PassesThePageHintOn) {
  const AttentionSpec spec = make_spec();
  RecordingMemory memory;
  const KvCache cache(memory, spec, plain_layout(spec),
                      {.num_blocks = 4, .pages = PageHint::kHuge});
  EXPECT_EQ(memory.last_hint, PageHint::kHuge);
}

TEST(KvCache, MovesAndFreesOnce) {
  const AttentionSpec spec = make_spec();
  RecordingMemory memory;
  {
    KvCache a(memory, spec, plain_layout(spec), {.num_blocks = 4});
    KvCache b(memory, spec, plain_layout(spec), {.num_blocks = 7});
    const void* data = a.layer(0).k;
    EXPECT_EQ(memory.device_live.size(), 2U);
    b = std::move(a);
    EXPECT_EQ(memory.device_live.size(), 1U);
    EXPECT_EQ(b.layer(0).k, data);
    EXPECT_EQ(b.num_blocks(), 4);
    const KvCache c(std::move(b));
    EXPECT_EQ(c.layer(0).k, data);
    EXPECT_EQ(b.num_blocks(), 0);  // NOLINT(bugprone-use-after-move): moved from means empty
    EXPECT_EQ(b.size_bytes(), 0);
    EXPECT_TRUE(b.layers().empty());
  }
  EXPECT_TRUE(memory.device_live.empty());
  EXPECT_EQ(memory.num_bad_frees, 0);
}

TEST(KvCache, AFailureLeavesNothingBehind) {
  const AttentionSpec spec = make_spec(DType::kI8, ScaleGranularity::kPerHead);
  RecordingMemory memory;
  memory.fail_copy = true;
  EXPECT_THROW(KvCache(memory, spec, plain_layout(spec), {.num_blocks = 4}), Error);
  EXPECT_TRUE(memory.device_live.empty());
  memory.fail_device = true;
  EXPECT_THROW(KvCache(memory, spec, plain_layout(spec), {.num_blocks = 4}), Error);
  EXPECT_EQ(memory.num_bad_frees, 0);
}

TEST(KvCache, LargerAlignmentIsKept) {
  const AttentionSpec spec = make_spec(DType::kI8);
  KvLayout layout = plain_layout(spec);
  layout.alignment = 4096;
  layout.block_bytes = 4096;
  layout.k_strides.block = layout.v_strides.block = 4096;
  RecordingMemory memory;
  for (int i = 0; i < 4; ++i) {
    const KvCache cache(memory, spec, layout, {.num_layers = 3, .num_blocks = 2});
    const auto* data = static_cast<const char*>(*memory.device_live.begin());
    check_parts(cache, data, cache.size_bytes());
    for (const KvCacheView& view : cache.layers()) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.k) % 4096, 0U);
      EXPECT_LE(static_cast<const char*>(view.k) + 2 * 4096, data + cache.size_bytes());
    }
  }
}

TEST(KvCache, OpaqueRecords) {
  // Scales per (token, head) are inside the record.
  const AttentionSpec spec = make_spec(DType::kI8, ScaleGranularity::kPerTokenHead);
  KvLayout layout;
  layout.id = KvLayoutId::kFirstPrivate;
  layout.block_bytes = 256;
  layout.v_offset_bytes = 128;
  layout.opaque_k_bytes = 100;
  layout.opaque_v_bytes = 128;
  layout.k_strides.block = layout.v_strides.block = 256;
  RecordingMemory memory;
  const KvCache cache(memory, spec, layout, {.num_layers = 2, .num_blocks = 3});
  EXPECT_EQ(cache.size_bytes(), 2 * 3 * 256);
  EXPECT_EQ(static_cast<char*>(cache.layer(1).v) - static_cast<char*>(cache.layer(0).k),
            3 * 256 + 128);
  EXPECT_EQ(cache.layer(0).k_scales.data, nullptr);
  EXPECT_EQ(cache.layer(0).opaque_k_bytes, 100);
  EXPECT_EQ(cache.layer(0).opaque_v_bytes, 128);
  layout.opaque_v_bytes = 129;
  EXPECT_NE(refusal([&] { KvCache(memory, spec, layout, {.num_blocks = 3}); }).find("257"),
            std::string::npos);
  layout.opaque_v_bytes = 128;
  layout.opaque_k_bytes = 129;
  EXPECT_NE(refusal([&] { KvCache(memory, spec, layout, {.num_blocks = 3}); }).find("129"),
            std::string::npos);
  layout.opaque_k_bytes = 128;
  AttentionSpec v_in_k = spec;
  v_in_k.kv.v_in_k = true;
  v_in_k.value_dim = v_in_k.head_dim;
  EXPECT_NE(refusal([&] { KvCache(memory, v_in_k, layout, {.num_blocks = 3}); }).find("v_in_k"),
            std::string::npos);
  layout.opaque_v_bytes = 0;
  EXPECT_EQ(refusal([&] { KvCache(memory, v_in_k, layout, {.num_blocks = 3}); }), "accepted");
  layout.opaque_v_bytes = 128;
  layout.v_strides.block = 255;
  EXPECT_NE(refusal([&] { KvCache(memory, spec, layout, {.num_blocks = 3}); }).find("255"),
            std::string::npos);
}

TEST(KvCache, OpaqueAreas) {
  const AttentionSpec spec = make_spec();
  KvLayout layout;
  layout.id = KvLayoutId::kFirstPrivate;
  layout.v_apart = true;
  layout.opaque_k_bytes = layout.k_strides.block = 100;
  layout.opaque_v_bytes = layout.v_strides.block = 30;
  layout.block_bytes = 192;
  RecordingMemory memory;
  const KvCache cache(memory, spec, layout, {.num_layers = 2, .num_blocks = 5});
  EXPECT_EQ(cache.size_bytes(), 2 * (512 + 192));  // 5 * 100 and 5 * 30 in multiples of 64
  const auto* data = static_cast<const char*>(*memory.device_live.begin());
  EXPECT_EQ(static_cast<const char*>(cache.layer(0).v) - data, 512);
  EXPECT_EQ(static_cast<const char*>(cache.layer(1).k) - data, 704);
  EXPECT_EQ(cache.layer(1).k_strides.block, 100);
  EXPECT_EQ(cache.layer(1).v_strides.block, 30);
  const auto refused = [&] {
    return refusal([&] { KvCache(memory, spec, layout, {.num_blocks = 3}); });
  };
  layout.v_offset_bytes = 64;
  EXPECT_NE(refused().find("v_offset_bytes must be 0, is 64"), std::string::npos);
  layout.v_offset_bytes = 0;
  layout.v_strides.block = 29;
  EXPECT_NE(refused().find("are 100 and 29"), std::string::npos);
  layout.v_strides.block = 93;
  EXPECT_NE(refused().find("are 100 and 93"), std::string::npos);
  layout.v_strides.block = 30;
  layout.opaque_v_bytes = 0;
  EXPECT_NE(refused().find("there must be bytes of V"), std::string::npos);
  layout = plain_layout(spec);
  layout.v_apart = true;
  EXPECT_NE(refused().find("only an opaque layout"), std::string::npos);
}

TEST(KvCache, RefusesBadOptions) {
  const AttentionSpec spec = make_spec();
  const KvLayout layout = plain_layout(spec);
  const auto refused = [&](const KvCache::Options& options) {
    return refusal([&] { KvCache(host_memory(), spec, layout, options); });
  };
  EXPECT_NE(refused({.num_layers = 0, .num_blocks = 1}).find("num_layers"), std::string::npos);
  EXPECT_NE(refused({.num_blocks = 0}).find("num_blocks"), std::string::npos);
  EXPECT_NE(refused({.num_blocks = std::int64_t{1} << 31}).find("2147483648"), std::string::npos);
  const KvCache cache(host_memory(), spec, layout, {.num_layers = 2, .num_blocks = 1});
  EXPECT_NE(refusal([&] { cache.layer(2); }).find("layer 2"), std::string::npos);
  EXPECT_NE(refusal([&] { cache.layer(-1); }).find("layer -1"), std::string::npos);
}

TEST(KvCache, RefusesRecordsThatDoNotHoldTheirBlock) {
  const AttentionSpec spec = make_spec();
  const KvLayout good = plain_layout(spec);
  const auto refused = [&](const KvLayout& layout) {
    return refusal([&] { KvCache(host_memory(), spec, layout, {.num_blocks = 2}); });
  };
  EXPECT_EQ(refused(good), "accepted");
  KvLayout bad = good;
  bad.alignment = 96;
  EXPECT_NE(refused(bad).find("alignment"), std::string::npos);
  bad = good;
  bad.block_bytes += 32;
  EXPECT_NE(refused(bad).find("multiple"), std::string::npos);
  bad = good;
  bad.block_bytes -= 64;
  bad.k_strides.block = bad.v_strides.block = bad.block_bytes / 2;
  EXPECT_NE(refused(bad).find("within block_bytes"), std::string::npos);
  bad = good;
  bad.k_strides.block -= 1;
  EXPECT_NE(refused(bad).find("block stride of K"), std::string::npos);
  bad = good;
  bad.v_offset_bytes -= 64;
  EXPECT_NE(refused(bad).find("K and V"), std::string::npos);
  bad = good;
  bad.k_strides.token = 33;
  EXPECT_NE(refused(bad).find("overlap"), std::string::npos);
  bad = good;
  bad.id = static_cast<KvLayoutId>(2);
  EXPECT_NE(refused(bad).find("unknown layout 2"), std::string::npos);
  AttentionSpec odd = spec;
  odd.kv.block_size = 8;
  EXPECT_NE(refusal([&] {
              KvCache(host_memory(), odd, pair_tiled_layout(spec), {.num_blocks = 2});
            }).find("block_size 8"),
            std::string::npos);
}

TEST(KvCache, SizesThatDoNotFitAreRefused) {
  AttentionSpec spec = make_spec();
  spec.num_q_heads = spec.num_kv_heads = 1 << 15;
  spec.head_dim = spec.value_dim = 1 << 15;
  const KvLayout layout = plain_layout(spec);  // 2^36 bytes
  EXPECT_NE(refusal([&] {
              KvCache(host_memory(), spec, layout,
                      {.num_blocks = std::numeric_limits<std::int32_t>::max()});
            }).find("64 bits"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              KvCache(host_memory(), spec, layout, {.num_layers = 1 << 30, .num_blocks = 1 << 20});
            }).find("64 bits"),
            std::string::npos);
}

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t total = 0;
  std::int64_t resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

// Above 2^31 elements in one layer: reserved, not committed, and rows keep apart at every end.
TEST(KvCache, WorksAboveTwoToThe31Elements) {
  for (const bool tiled : {false, true}) {
    AttentionSpec spec = make_spec(DType::kF8E4M3, ScaleGranularity::kPerTokenHead);
    spec.num_q_heads = spec.num_kv_heads = 8;
    spec.head_dim = spec.value_dim = 128;
    const std::int64_t num_blocks = 300000;  // 9.8e9 elements of K and V in a layer
    const std::int64_t before = resident_bytes();
    const KvCache cache(host_memory(), spec, tiled ? pair_tiled_layout(spec) : plain_layout(spec),
                        {.num_layers = 2, .num_blocks = num_blocks});
    const std::int64_t blocks[] = {0, 65535, 65536, 131072, 262144, num_blocks - 1};
    std::vector<float> row(128);
    const auto value = [](std::int64_t layer, std::int64_t block, std::size_t tensor) {
      return static_cast<float>(1 + layer + 2 * (block % 7)) * (tensor == 0 ? 1.0F : -1.0F);
    };
    EXPECT_GT(element_offset(cache.layer(0), KvTensor::kK, num_blocks - 1, 7, 15, 127),
              std::int64_t{1} << 32);
    for (int layer = 0; layer < 2; ++layer) {
      for (const std::int64_t block : blocks) {
        for (const KvTensor tensor : {KvTensor::kK, KvTensor::kV}) {
          row.assign(128, value(layer, block, static_cast<std::size_t>(tensor)));
          store_row(cache.layer(layer), tensor, block, 7, 15, row.data());
        }
      }
    }
    for (int layer = 0; layer < 2; ++layer) {
      for (const std::int64_t block : blocks) {
        for (const KvTensor tensor : {KvTensor::kK, KvTensor::kV}) {
          load_row(cache.layer(layer), tensor, block, 7, 15, row.data());
          const float expected = value(layer, block, static_cast<std::size_t>(tensor));
          for (const float x : row) ASSERT_NEAR(x, expected, 1e-5) << block;
        }
      }
    }
    EXPECT_LT(resident_bytes() - before, std::int64_t{64} << 20);
  }
}

}  // namespace
}  // namespace quire

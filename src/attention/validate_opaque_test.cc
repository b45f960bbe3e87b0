// SPDX-License-Identifier: Apache-2.0
// Views of caches in a private layout: of their blocks only the places are known.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/validate.h"
#include "attention/validate_fixture.h"

namespace quire::testing {
namespace {

std::string message_of(auto&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Records of 128 bytes: K at 0, V at 80.
KvCacheView opaque_cache(std::vector<std::byte>& memory, ScaleGranularity scales) {
  memory.resize(4 * 128);
  KvCacheView cache;
  cache.k = memory.data();
  cache.v = memory.data() + 80;
  cache.k_strides.block = cache.v_strides.block = 128;
  cache.num_blocks = 4;
  cache.num_kv_heads = cache.head_dim = cache.value_dim = 2;
  cache.format = {
      .dtype = DType::kI8, .block_size = 4, .scales = scales, .layout = KvLayoutId::kFirstPrivate};
  cache.opaque_k_bytes = 70;
  cache.opaque_v_bytes = 48;
  return cache;
}

std::string cache_message(const KvCacheView& cache, CacheUse use = CacheUse::kWrite) {
  return message_of([&] { validate_cache(cache, use, "cache"); });
}

TEST(ValidateOpaque, ScalesOfTheCallerAreOutside) {
  std::vector<std::byte> memory;
  std::vector<float> scales(2, 1.0F);
  KvCacheView cache = opaque_cache(memory, ScaleGranularity::kPerHead);
  EXPECT_EQ(cache_message(cache), "cache.k_scales: missing, the format has per-head");
  cache.k_scales = cache.v_scales = {scales.data(), {.head = 1}};
  EXPECT_EQ(cache_message(cache), "");
  AttentionSpec spec;
  spec.num_q_heads = spec.num_kv_heads = spec.head_dim = spec.value_dim = 2;
  spec.kv = cache.format;
  const auto spec_message = [&] {
    return message_of([&] { validate_cache(spec, cache, Device{}, CacheUse::kWrite); });
  };
  EXPECT_EQ(spec_message(), "");
  scales[1] = 0.0F;
  EXPECT_EQ(spec_message(),
            "cache.k_scales: head 1 has a scale that is not finite and positive: 0");
  cache.v_scales = {};
  EXPECT_EQ(cache_message(cache), "cache.v_scales: missing, the format has per-head");
}

TEST(ValidateOpaque, ScalesPerTokenAreInside) {
  std::vector<std::byte> memory;
  std::vector<float> scales(64, 1.0F);
  KvCacheView cache = opaque_cache(memory, ScaleGranularity::kPerTokenHead);
  EXPECT_EQ(cache_message(cache), "");
  cache.v_scales = {scales.data(), {.block = 8, .head = 4, .token = 1}};
  EXPECT_EQ(cache_message(cache), "cache.v_scales: given, but they are in the blocks");
  cache.k_scales = cache.v_scales;
  EXPECT_EQ(cache_message(cache), "cache.k_scales: given, but they are in the blocks");
}

TEST(ValidateOpaque, KAndVAreApart) {
  std::vector<std::byte> memory;
  KvCacheView cache = opaque_cache(memory, ScaleGranularity::kPerTokenHead);
  const auto message = [&](std::int64_t v_offset, CacheUse use = CacheUse::kWrite) {
    cache.v = memory.data() + 128 + v_offset;
    cache.k = memory.data() + 128;
    return cache_message(cache, use);
  };
  EXPECT_EQ(message(70), "");
  EXPECT_EQ(message(69), "cache.v: bytes of K and V overlap, V begins after K: 69");
  EXPECT_EQ(message(69, CacheUse::kRead), "");
  EXPECT_EQ(message(80), "");
  EXPECT_EQ(message(81), "cache.v: bytes of K and V overlap, V begins after K: 81");
  EXPECT_EQ(message(0), "cache.v: bytes of K and V overlap, V begins after K: 0");
  EXPECT_EQ(message(-48), "");
  EXPECT_EQ(message(-47), "cache.v: bytes of K and V overlap, V begins after K: -47");
  EXPECT_EQ(message(3 * 128 + 70), "");
  EXPECT_EQ(message(-3 * 128 - 48), "");
  cache.num_blocks = 1;
  EXPECT_EQ(message(81), "");
  EXPECT_EQ(message(69), "cache.v: bytes of K and V overlap, V begins after K: 69");
  cache.num_blocks = 4;
  cache.v_strides.block = 256;
  EXPECT_EQ(message(80), "cache.v: bytes of K and V overlap, V begins after K: 80");
  EXPECT_EQ(message(3 * 128 + 70), "");
}

TEST(ValidateOpaque, VMayLieInK) {
  std::vector<std::byte> memory;
  KvCacheView cache = opaque_cache(memory, ScaleGranularity::kPerTokenHead);
  cache.opaque_v_bytes = 0;
  cache.v = nullptr;
  cache.v_strides = {};
  EXPECT_EQ(cache_message(cache), "");
  cache.format.v_in_k = true;
  cache.v = cache.k;
  cache.v_strides = cache.k_strides;
  EXPECT_EQ(cache_message(cache), "");
  cache.opaque_v_bytes = 48;
  EXPECT_EQ(cache_message(cache), "cache.opaque_v_bytes: needs 0 with v_in_k, has 48");
}

// Views of one opaque cache may differ in strides that mean nothing to it.
TEST(ValidateOpaque, FindsConflictsByBlocksAlone) {
  std::vector<std::byte> memory;
  const KvCacheView cache = opaque_cache(memory, ScaleGranularity::kPerTokenHead);
  KvCacheView same = cache;
  same.k_strides.head = 7;
  const std::vector<BlockCopy> copies = {{0, 1}, {1, 2}};
  EXPECT_EQ(
      message_of([&] {
        validate_copy_blocks({&cache, 1}, {&same, 1}, copies, CopyKind::kSameLayout, Device{});
      }),
      "copies: source of pair 1 is the destination of pair 0 in the same cache: 1");
}

// Ten records of 256 bytes, V at 128, and what attend writes close to them.
TEST(ValidateOpaque, OutputsMayLieRightBesideTheCache) {
  Step step;
  alignas(64) std::byte memory[8192];
  const auto spoil = [&](std::int64_t out_bytes, std::int64_t lse_bytes, std::int64_t v_bytes) {
    step.spec.kv.layout = step.cache.format.layout = KvLayoutId::kFirstPrivate;
    step.cache.k = memory + 2048;
    step.cache.v = v_bytes == 0 ? nullptr : memory + 2048 + 128;
    step.cache.k_strides = step.cache.v_strides = {.block = 256};
    step.cache.opaque_k_bytes = 100;
    step.cache.opaque_v_bytes = v_bytes;
    step.output.out.data = memory + out_bytes;
    step.output.lse.data = memory + lse_bytes;
    RecordingBackend backend;
    return run_all(backend, step).message;
  };
  // The batch needs 7 * 4 * 6 floats of out and 7 * 4 of lse; nobody writes their last row.
  EXPECT_EQ(spoil(2048 + 2560, 2048 - 112, 96), "");
  EXPECT_EQ(spoil(2048 - 672, 2048 + 2560, 96), "");
  EXPECT_EQ(spoil(2048 - 668, 2048 + 2560, 96), "out: overlaps the cache");
  EXPECT_EQ(spoil(2048 - 768, 2048 + 2556, 96), "lse: overlaps the cache");  // a record's padding
  EXPECT_EQ(spoil(2048 - 768, 2048 + 128, 96), "lse: overlaps the cache");
  EXPECT_EQ(spoil(2048 + 2560, 2048 - 112, 0), "");
  EXPECT_EQ(spoil(2048 + 2556, 2048 - 128, 0), "out: overlaps the cache");
}

}  // namespace
}  // namespace quire::testing

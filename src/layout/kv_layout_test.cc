// SPDX-License-Identifier: Apache-2.0
// Views against the indices of the tensors they are made from, and what they refuse.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/host_memory.h"
#include "layout/kv_extent.h"
#include "layout/kv_offset.h"
#include "quire/kv_cache.h"

namespace quire {
namespace {

constexpr std::int64_t kBlocks = 3;

AttentionSpec make_spec(int head_dim = 8, int value_dim = 8) {
  AttentionSpec spec;
  spec.num_q_heads = 4;
  spec.num_kv_heads = 2;
  spec.head_dim = head_dim;
  spec.value_dim = value_dim;
  spec.kv.dtype = DType::kF32;
  spec.kv.block_size = 5;
  return spec;
}

// A buffer whose element i holds i, so that an address tells the index.
std::vector<float> counting(std::int64_t count) {
  std::vector<float> data(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
  return data;
}

// Flat index of an element in the caller's buffer.
std::int64_t index_of(const KvCacheView& view, const std::vector<float>& buffer, KvTensor tensor,
                      std::int64_t block, std::int64_t head, std::int64_t token, std::int64_t dim) {
  const auto* base = static_cast<const float*>(tensor == KvTensor::kK ? view.k : view.v);
  return base - buffer.data() + element_offset(view, tensor, block, head, token, dim);
}

template <class F>
void for_each_element(const AttentionSpec& spec, std::int64_t dims, F&& f) {
  for (std::int64_t b = 0; b < kBlocks; ++b) {
    for (std::int64_t h = 0; h < spec.num_kv_heads; ++h) {
      for (std::int64_t t = 0; t < spec.kv.block_size; ++t) {
        for (std::int64_t d = 0; d < dims; ++d) f(b, h, t, d);
      }
    }
  }
}

// The message of the Error that f throws; it must be about an argument.
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

#define EXPECT_REFUSED(expression, text)                         \
  do {                                                           \
    const std::string message = refusal([&] { expression; });    \
    EXPECT_NE(message.find(text), std::string::npos) << message; \
  } while (false)

TEST(ViewKv, BothOrders) {
  const AttentionSpec spec = make_spec(8, 6);
  std::vector<float> k = counting(kBlocks * 2 * 5 * 8);
  std::vector<float> v = counting(kBlocks * 2 * 5 * 6);
  const KvCacheView head_token =
      view_kv(spec, KvOrder::kBlockHeadTokenDim, {k.data(), DType::kF32, {kBlocks, 2, 5, 8}},
              {v.data(), DType::kF32, {kBlocks, 2, 5, 6}});
  const KvCacheView token_head =
      view_kv(spec, KvOrder::kBlockTokenHeadDim, {k.data(), DType::kF32, {kBlocks, 5, 2, 8}},
              {v.data(), DType::kF32, {kBlocks, 5, 2, 6}});
  EXPECT_EQ(head_token.num_blocks, kBlocks);
  EXPECT_EQ(head_token.num_kv_heads, 2);
  EXPECT_EQ(head_token.head_dim, 8);
  EXPECT_EQ(head_token.value_dim, 6);
  EXPECT_EQ(head_token.format, spec.kv);
  EXPECT_TRUE(head_token.device.is_host());
  for_each_element(spec, 8, [&](auto b, auto h, auto t, auto d) {
    ASSERT_EQ(index_of(head_token, k, KvTensor::kK, b, h, t, d), ((b * 2 + h) * 5 + t) * 8 + d);
    ASSERT_EQ(index_of(token_head, k, KvTensor::kK, b, h, t, d), ((b * 5 + t) * 2 + h) * 8 + d);
  });
  for_each_element(spec, 6, [&](auto b, auto h, auto t, auto d) {
    ASSERT_EQ(index_of(head_token, v, KvTensor::kV, b, h, t, d), ((b * 2 + h) * 5 + t) * 6 + d);
    ASSERT_EQ(index_of(token_head, v, KvTensor::kV, b, h, t, d), ((b * 5 + t) * 2 + h) * 6 + d);
  });
}

TEST(ViewKv, VInKTakesNoV) {
  AttentionSpec spec = make_spec(8, 5);
  spec.kv.v_in_k = true;
  std::vector<float> k = counting(kBlocks * 2 * 5 * 8);
  const MutableTensorView tensor(k.data(), DType::kF32, {kBlocks, 2, 5, 8});
  for (const MutableTensorView& v :
       {MutableTensorView{}, MutableTensorView(nullptr, DType::kI8, {1})}) {
    const KvCacheView view = view_kv(spec, KvOrder::kBlockHeadTokenDim, tensor, v);
    EXPECT_EQ(view.v, view.k);
    EXPECT_EQ(view.v_strides, view.k_strides);
  }
  spec.value_dim = 9;
  EXPECT_REFUSED(view_kv(spec, KvOrder::kBlockHeadTokenDim, tensor, {}), "value_dim");
}

// All packings hold K and V of each token where the tensor's indices say.
TEST(SplitKv, KvFirstAndPerBlock) {
  const AttentionSpec spec = make_spec();
  std::vector<float> kv = counting(2 * kBlocks * 2 * 5 * 8);
  const KvCacheView first = split_kv(spec, KvOrder::kBlockHeadTokenDim, KvPacking::kKvFirst,
                                     {kv.data(), DType::kF32, {2, kBlocks, 2, 5, 8}});
  const KvCacheView per_block = split_kv(spec, KvOrder::kBlockTokenHeadDim, KvPacking::kKvPerBlock,
                                         {kv.data(), DType::kF32, {kBlocks, 2, 5, 2, 8}});
  for_each_element(spec, 8, [&](auto b, auto h, auto t, auto d) {
    for (const KvTensor tensor : {KvTensor::kK, KvTensor::kV}) {
      const std::int64_t p = tensor == KvTensor::kK ? 0 : 1;
      ASSERT_EQ(index_of(first, kv, tensor, b, h, t, d),
                (((p * kBlocks + b) * 2 + h) * 5 + t) * 8 + d);
      ASSERT_EQ(index_of(per_block, kv, tensor, b, h, t, d),
                (((b * 2 + p) * 5 + t) * 2 + h) * 8 + d);
    }
  });
}

TEST(SplitKv, PerToken) {
  const AttentionSpec spec = make_spec(8, 3);
  std::vector<float> kv = counting(kBlocks * 2 * 5 * 11);
  const KvCacheView view = split_kv(spec, KvOrder::kBlockHeadTokenDim, KvPacking::kKvPerToken,
                                    {kv.data(), DType::kF32, {kBlocks, 2, 5, 11}});
  const KvCacheView other = split_kv(spec, KvOrder::kBlockTokenHeadDim, KvPacking::kKvPerToken,
                                     {kv.data(), DType::kF32, {kBlocks, 5, 2, 11}});
  for_each_element(spec, 8, [&](auto b, auto h, auto t, auto d) {
    ASSERT_EQ(index_of(view, kv, KvTensor::kK, b, h, t, d), ((b * 2 + h) * 5 + t) * 11 + d);
    ASSERT_EQ(index_of(other, kv, KvTensor::kK, b, h, t, d), ((b * 5 + t) * 2 + h) * 11 + d);
  });
  for_each_element(spec, 3, [&](auto b, auto h, auto t, auto d) {
    ASSERT_EQ(index_of(view, kv, KvTensor::kV, b, h, t, d), ((b * 2 + h) * 5 + t) * 11 + 8 + d);
    ASSERT_EQ(index_of(other, kv, KvTensor::kV, b, h, t, d), ((b * 5 + t) * 2 + h) * 11 + 8 + d);
  });
}

// V of one head may reach farther than all of K.
TEST(ViewKv, RecordsOfUnequalDims) {
  for (const auto& [head_dim, value_dim] : {std::pair{64, 256}, {256, 64}, {16, 512}}) {
    AttentionSpec spec;
    spec.num_q_heads = spec.num_kv_heads = 2;
    spec.head_dim = head_dim;
    spec.value_dim = value_dim;
    const KvCache cache(host_memory(), spec, plain_layout(spec), {.num_blocks = 4});
    EXPECT_NO_THROW(require_distinct_elements(cache.layer(0))) << head_dim << ", " << value_dim;
    KvCacheView shifted = cache.layer(0);
    shifted.v = static_cast<char*>(shifted.v) - 2;  // into K
    EXPECT_THROW(require_distinct_elements(shifted), Error) << head_dim << ", " << value_dim;
  }
}

TEST(SplitKv, Refusals) {
  AttentionSpec spec = make_spec(8, 6);
  std::vector<float> kv = counting(4000);
  const KvOrder order = KvOrder::kBlockHeadTokenDim;
  const MutableTensorView rank5(kv.data(), DType::kF32, {2, kBlocks, 2, 5, 8});
  EXPECT_REFUSED(split_kv(spec, order, KvPacking::kKvFirst, rank5), "value_dim 6");
  spec = make_spec();
  EXPECT_REFUSED(split_kv(spec, order, KvPacking::kKvPerToken, rank5), "rank 5, expected 4");
  EXPECT_REFUSED(split_kv(spec, order, KvPacking::kKvPerBlock, rank5),
                 "axis 1 (K and V) has extent 3, expected 2");
  const MutableTensorView bad_token(kv.data(), DType::kF32, {2, kBlocks, 2, 6, 8});
  EXPECT_REFUSED(split_kv(spec, order, KvPacking::kKvFirst, bad_token),
                 "KV axis 3 (token) has extent 6, expected 5");
  const MutableTensorView bad_dims(kv.data(), DType::kF32, {kBlocks, 2, 5, 8});
  EXPECT_REFUSED(split_kv(spec, order, KvPacking::kKvPerToken, bad_dims),
                 "KV axis 3 (dim) has extent 8, expected 16");
  spec.kv.v_in_k = true;
  EXPECT_REFUSED(split_kv(spec, order, KvPacking::kKvFirst, rank5), "v_in_k");
  spec.kv.v_in_k = false;
  MutableTensorView far = rank5;
  far.strides[0] = std::numeric_limits<std::int64_t>::max() / 2;
  EXPECT_REFUSED(split_kv(spec, order, KvPacking::kKvFirst, far), "does not fit in 64 bits");
}

class ViewRefusals : public testing::Test {
 protected:
  std::string refusal_of(const MutableTensorView& k, const MutableTensorView& v) {
    return refusal([&] { view_kv(spec, KvOrder::kBlockHeadTokenDim, k, v); });
  }
  // Refused with `text`, for K and then for V in the same way.
  void expect(const MutableTensorView& bad, const std::string& text) {
    const std::string of_k = refusal_of(bad, good);
    EXPECT_NE(of_k.find("K " + text), std::string::npos) << of_k;
    const std::string of_v = refusal_of(good, bad);
    EXPECT_NE(of_v.find("V " + text), std::string::npos) << of_v;
  }

  AttentionSpec spec = make_spec();
  std::vector<float> data = counting(2000);
  std::vector<float> other = counting(2000);
  MutableTensorView good{data.data(), DType::kF32, {kBlocks, 2, 5, 8}};
};

TEST_F(ViewRefusals, NameTheAxis) {
  float* d = other.data();
  expect({d, DType::kF32, {kBlocks, 2, 5}}, "has rank 3, expected 4");
  expect({d, DType::kF16, {kBlocks, 2, 5, 8}}, "has dtype f16, expected f32");
  expect({d, DType::kF32, {kBlocks, 3, 5, 8}}, "axis 1 (head) has extent 3, expected 2");
  expect({d, DType::kF32, {kBlocks, 2, 4, 8}}, "axis 2 (token) has extent 4, expected 5");
  expect({d, DType::kF32, {kBlocks, 2, 5, 9}}, "axis 3 (dim) has extent 9, expected 8");
  MutableTensorView negative(d, DType::kF32, {1, 2, 5, 8});
  negative.shape[0] = -1;
  expect(negative, "axis 0 (block) has negative extent -1");
  expect({nullptr, DType::kF32, {kBlocks, 2, 5, 8}}, "has a null pointer");
  expect({reinterpret_cast<char*>(d) + 2, DType::kF32, {kBlocks, 2, 5, 8}}, "lies at");
  MutableTensorView strided(d, DType::kF32, {kBlocks, 2, 5, 8});
  strided.strides[3] = 2;
  expect(strided, "axis 3 (dim) has stride 2, expected 1");
  const std::string blocks = refusal_of(good, {d, DType::kF32, {kBlocks + 1, 2, 5, 8}});
  EXPECT_NE(blocks.find("V axis 0 (block) has extent 4, expected 3"), std::string::npos) << blocks;
  const std::string device =
      refusal_of(good, {d, DType::kF32, {kBlocks, 2, 5, 8}, {DeviceKind::kCuda, 1}});
  EXPECT_NE(device.find("host 0 and cuda 1"), std::string::npos) << device;
}

TEST_F(ViewRefusals, TheSpecMustHaveAShapeAndThePlainLayout) {
  const MutableTensorView v(other.data(), DType::kF32, {kBlocks, 2, 5, 8});
  EXPECT_EQ(refusal_of(good, v), "accepted");
  spec.kv.layout = KvLayoutId::kPairTiled;
  EXPECT_NE(refusal_of(good, v).find("layout 1"), std::string::npos);
  spec = make_spec();
  spec.kv.block_size = 0;
  EXPECT_NE(refusal_of(good, v).find("block_size"), std::string::npos);
  spec = make_spec(0, 8);
  EXPECT_NE(refusal_of(good, v).find("head_dim"), std::string::npos);
}

TEST_F(ViewRefusals, OverlappingElements) {
  MutableTensorView v(other.data(), DType::kF32, {kBlocks, 2, 5, 8});
  v.strides[2] = 7;  // the last dim of a token is the first of the next
  EXPECT_NE(refusal_of(good, v).find("V overlap: the stride of token is 7"), std::string::npos);
  v.strides[2] = 0;
  EXPECT_NE(refusal_of(good, v).find("V overlap: the stride of token is 0"), std::string::npos);
  v.strides[2] = 8;
  v.strides[1] = 39;
  EXPECT_NE(refusal_of(good, v).find("V overlap: the stride of head is 39"), std::string::npos);
  v.strides[1] = 40;
  v.strides[0] = -79;
  EXPECT_NE(refusal_of(good, v).find("V overlap: the stride of block is 79"), std::string::npos);
  v.strides[0] = std::numeric_limits<std::int64_t>::min();
  EXPECT_NE(refusal_of(good, v).find("too large"), std::string::npos);
  v.strides[0] = std::numeric_limits<std::int64_t>::max();
  EXPECT_NE(refusal_of(good, v).find("64 bits"), std::string::npos);
  v.strides[0] = std::numeric_limits<std::int64_t>::max() / 4;  // fits in elements, not in bytes
  EXPECT_NE(refusal_of(good, v).find("64 bits"), std::string::npos);
}

// An axis of extent 1 may have any stride: frameworks put anything there.
TEST_F(ViewRefusals, ExtentOneCountsForNothing) {
  spec.num_kv_heads = 1;
  spec.kv.block_size = 1;
  MutableTensorView k(data.data(), DType::kF32, {kBlocks, 1, 1, 8});
  MutableTensorView v(other.data(), DType::kF32, {kBlocks, 1, 1, 8});
  k.strides[1] = 0;
  k.strides[2] = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ(refusal_of(k, v), "accepted");
  spec = make_spec(1, 1);
  MutableTensorView thin(data.data(), DType::kF32, {kBlocks, 2, 5, 1});
  thin.strides = {10, 5, 1, 77};
  EXPECT_EQ(refusal_of(thin, {other.data(), DType::kF32, {kBlocks, 2, 5, 1}}), "accepted");
}

TEST_F(ViewRefusals, KAndVThatShareMemory) {
  EXPECT_NE(refusal_of(good, good).find("K and V overlap"), std::string::npos);
  // Half a token apart.
  MutableTensorView shifted = good;
  shifted.data = data.data() + 4;
  EXPECT_NE(refusal_of(good, shifted).find("K and V overlap"), std::string::npos);
  EXPECT_NE(refusal_of(shifted, good).find("K and V overlap"), std::string::npos);
  // One token apart in a dense tensor: V of one token is K of the next.
  shifted.data = data.data() + 8;
  EXPECT_NE(refusal_of(good, shifted).find("K and V overlap"), std::string::npos);
  // The same bytes with another order of axes: nobody can say who owns what.
  MutableTensorView transposed = good;
  transposed.strides = {80, 8, 16, 1};
  transposed.data = data.data() + 24;
  EXPECT_NE(refusal_of(good, transposed).find("K and V"), std::string::npos);
  // Just behind each other.
  shifted.data = data.data() + kBlocks * 80;
  EXPECT_EQ(refusal_of(good, shifted), "accepted");
  EXPECT_EQ(refusal_of(shifted, good), "accepted");
}

// K and V woven into each other, as slices of one tensor, in every position of the pair axis and
// with V first too; each accepted, and each refused if the two come one element closer.
TEST_F(ViewRefusals, WovenKAndVAreAccepted) {
  struct Weave {
    KvStrides strides;
    std::int64_t distance;
  };
  const Weave weaves[] = {
      {{160, 80, 16}, 8},  // per token
      {{160, 80, 8}, 40},  // per head
      {{160, 40, 8}, 80},  // per block
      {{170, 82, 16}, 8},  // with gaps
  };
  for (const Weave& weave : weaves) {
    for (const std::int64_t sign : {1, -1}) {
      MutableTensorView k = good;
      k.data = data.data() + 500;
      k.strides = {weave.strides.block, weave.strides.head, weave.strides.token, 1};
      MutableTensorView v = k;
      v.data = data.data() + 500 + sign * weave.distance;
      EXPECT_EQ(refusal_of(k, v), "accepted") << weave.distance;
      v.data = data.data() + 500 + sign * (weave.distance - 1);
      EXPECT_NE(refusal_of(k, v).find("K and V"), std::string::npos) << weave.distance;
    }
  }
}

// Each of the two has room, both together have not: V of a token ends in K of the next one.
TEST_F(ViewRefusals, WovenTooTightly) {
  MutableTensorView k = good;
  k.strides = {160, 80, 15, 1};
  MutableTensorView v = k;
  v.data = data.data() + 8;
  EXPECT_NE(refusal_of(k, v).find("the stride of token is 15, what lies inside it covers 16"),
            std::string::npos);
}

TEST_F(ViewRefusals, BackwardsIsAccepted) {
  MutableTensorView k = good;
  k.data = data.data() + 2 * 80 + 4 * 8;
  k.strides = {-80, 40, -8, 1};
  const MutableTensorView v(other.data(), DType::kF32, {kBlocks, 2, 5, 8});
  EXPECT_EQ(refusal_of(k, v), "accepted");
  // V right before the lowest element of K, not before its base.
  MutableTensorView before = good;
  k.data = data.data() + 240 + 2 * 80 + 4 * 8;
  EXPECT_EQ(refusal_of(k, before), "accepted");
  before.data = data.data() + 1;
  EXPECT_NE(refusal_of(k, before).find("K and V"), std::string::npos);
}

TEST_F(ViewRefusals, NoBlocksIsAccepted) {
  const MutableTensorView none(nullptr, DType::kF32, {0, 2, 5, 8});
  EXPECT_EQ(refusal_of(none, none), "accepted");
}

TEST(ViewRagged, RowsAreBlocksOfOneToken) {
  AttentionSpec spec = make_spec(8, 6);
  spec.kv.block_size = 1;
  const std::vector<float> k = counting(7 * 2 * 8);
  const std::vector<float> v = counting(7 * 2 * 6);
  TensorView k_tensor(k.data(), DType::kF32, {7, 2, 8});
  TensorView v_tensor(v.data(), DType::kF32, {7, 2, 6});
  const KvCacheView view = view_ragged(spec, k_tensor, v_tensor);
  EXPECT_EQ(view.num_blocks, 7);
  for (std::int64_t row = 0; row < 7; ++row) {
    for (std::int64_t head = 0; head < 2; ++head) {
      EXPECT_EQ(index_of(view, k, KvTensor::kK, row, head, 0, 3), (row * 2 + head) * 8 + 3);
      EXPECT_EQ(index_of(view, v, KvTensor::kV, row, head, 0, 3), (row * 2 + head) * 6 + 3);
    }
  }
  // Read only: one head for all, and K and V in one place.
  k_tensor.strides[1] = 0;
  EXPECT_EQ(view_ragged(spec, k_tensor, v_tensor).k_strides, (KvStrides{16, 0, 0}));
  AttentionSpec same = make_spec();
  same.kv.block_size = 1;
  EXPECT_EQ(view_ragged(same, k_tensor, k_tensor).v, k.data());

  EXPECT_REFUSED(view_ragged(make_spec(), k_tensor, k_tensor), "block_size 1, the spec has 5");
  EXPECT_REFUSED(view_ragged(spec, k_tensor, k_tensor), "V axis 2 (dim) has extent 8, expected 6");
  EXPECT_REFUSED(view_ragged(spec, v_tensor, v_tensor), "K axis 2 (dim) has extent 6, expected 8");
  v_tensor.shape[0] = 6;
  EXPECT_REFUSED(view_ragged(spec, k_tensor, v_tensor), "V axis 0 (row) has extent 6, expected 7");
  EXPECT_REFUSED(view_ragged(spec, k_tensor, {}), "V has rank 0, expected 3");
  spec.kv.v_in_k = true;
  EXPECT_EQ(view_ragged(spec, k_tensor, {}).v, k.data());
}

}  // namespace
}  // namespace quire

// SPDX-License-Identifier: Apache-2.0
// PyTorch links and computes what it should, on an example small enough for pen and paper.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace {

TEST(Sdpa, OneHeadOneQueryTwoKeys) {
  // q = [1, 0], K = [[0, 0], [ln 3, 0]], V = [[4, 8], [0, 4]], scale 1: scores 0 and ln 3, so the
  // weights are 1/4 and 3/4 and out = [1, 5].
  const at::Tensor q = at::tensor({1.0, 0.0}, at::kDouble).reshape({1, 1, 1, 2});
  const at::Tensor k =
      at::tensor({0.0, 0.0, std::log(3.0), 0.0}, at::kDouble).reshape({1, 1, 2, 2});
  const at::Tensor v = at::tensor({4.0, 8.0, 0.0, 4.0}, at::kDouble).reshape({1, 1, 2, 2});

  const at::Tensor out = at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/{},
                                                          /*dropout_p=*/0.0, /*is_causal=*/false,
                                                          /*scale=*/1.0, /*enable_gqa=*/false);

  ASSERT_EQ(out.sizes(), (at::IntArrayRef{1, 1, 1, 2}));
  EXPECT_NEAR(out.flatten()[0].item<double>(), 1.0, 1e-12);
  EXPECT_NEAR(out.flatten()[1].item<double>(), 5.0, 1e-12);
}

}  // namespace

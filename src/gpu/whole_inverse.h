// SPDX-License-Identifier: Apache-2.0
// Numbers of 16 bits as whole numbers of eight, by one multiplication each where a correct quotient
// takes three steps.
//
// A row is divided by its scale, the f32 next to largest / 127, and its quotients are rounded to
// whole numbers. Take x as X 2^e and the largest magnitude as A 2^(e + s), X and A whole and below
// 2^11: 127 x / largest differs from k + 1/2 by |254 X - (2k + 1) A 2^s| / (2 A 2^s), which is 0
// or, of a quotient q, at least q / (254 X) > 2^-19 q. It is 0 only where 127 divides A, when the
// scale is exact, or where 127 = 2k + 1, when |x| is half of the largest. So unless the scale is
// exact, any number within 2^-20 of the inverse will do for all x but the halves, and there it only
// needs to be on the right side.
#pragma once

#include "base/host_device.h"

namespace quire::gpu {

// What to multiply numbers of a row by, or 0 if they must be divided. `inverse` is off from 1 /
// scale by at most a unit in the last place; fused(a, b, c) is a * b + c, rounded once.
// REQUIRES: the scale is token_head_scale(DType::kI8, largest) and far from the ends of f32.
template <class Fused>
QUIRE_HOST_DEVICE constexpr float whole_inverse(float scale, float inverse, float largest,
                                                const Fused& fused) {
  constexpr float kStep = 0x1p-21F;
  if (fused(scale, 127.0F, -largest) == 0.0F) return 0.0F;
  const float half = 0.5F * largest;
  const float near = half * inverse;
  const float quotient = fused(fused(near, scale, -half), -inverse, near);
  return inverse * (quotient < 63.5F ? 1.0F - kStep : 1.0F + kStep);
}

}  // namespace quire::gpu

// SPDX-License-Identifier: Apache-2.0
// Polynomials for 2^x on [0, 1), least relative error, highest power first.
#pragma once

namespace quire::cpu {

template <int kDegree>
struct Exp2;

template <>
struct Exp2<3> {  // 7.5e-5: a thirtieth of the rounding of P to bf16
  static constexpr float kCoefficients[] = {0.0780245226F, 0.226067155F, 0.69583354F, 0.999925219F};
};
template <>
struct Exp2<5> {  // 7.5e-8
  static constexpr float kCoefficients[] = {0.00187757668F, 0.00898934009F, 0.0558263181F,
                                            0.240153617F,   0.693153073F,   0.999999925F};
};

}  // namespace quire::cpu

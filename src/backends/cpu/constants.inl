// SPDX-License-Identifier: Apache-2.0
// Constants of every level, and its pair of vectors under a name that no way to multiply hides.

inline constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();
inline constexpr float kLog2E = 1.44269504088896341F;
using LevelPair = Pair;

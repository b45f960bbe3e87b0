// SPDX-License-Identifier: Apache-2.0
#include "layout/byte_lattice.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <random>
#include <set>
#include <utility>

namespace quire {
namespace {

using Axes = std::initializer_list<std::pair<std::int64_t, std::int64_t>>;

ByteLattice lattice(std::uintptr_t first, std::int64_t run_bytes, Axes axes) {
  ByteLattice made(reinterpret_cast<const void*>(first), run_bytes);
  for (const auto& [extent, stride] : axes) made.repeat(extent, stride);
  return made;
}

bool overlap(const ByteLattice& x, const ByteLattice& y) {
  EXPECT_EQ(lattices_overlap(x, y), lattices_overlap(y, x));
  return lattices_overlap(x, y);
}

// A projection of 4 query and 2 + 2 key and value heads of 64 bf16, [100, 8, 64].
constexpr std::int64_t kHead = 64 * 2;
constexpr std::int64_t kRow = 8 * kHead;
constexpr std::uintptr_t kBase = 1 << 20;
ByteLattice heads(std::int64_t first, std::int64_t count, std::int64_t row = 0) {
  return lattice(kBase + static_cast<std::uintptr_t>(first * kHead + row * kRow), kHead,
                 {{count, kHead}, {100, kRow}});
}

TEST(ByteLattice, PackedHeads) {
  EXPECT_FALSE(overlap(heads(0, 4), heads(4, 2)));
  EXPECT_FALSE(overlap(heads(0, 4), heads(6, 2)));
  EXPECT_FALSE(overlap(heads(0, 4, 3), heads(4, 4)));
  EXPECT_TRUE(overlap(heads(0, 4), heads(3, 2)));
  EXPECT_TRUE(overlap(heads(0, 4), heads(0, 4, 1)));
  EXPECT_TRUE(overlap(heads(0, 4), heads(0, 4, 99)));
  EXPECT_FALSE(overlap(heads(0, 4), heads(0, 4, 100)));
  EXPECT_TRUE(overlap(heads(4, 4), heads(4, 4, -99)));
  // Beyond the heads of a row lies the next row.
  EXPECT_TRUE(overlap(heads(0, 2), heads(6, 4)));
}

TEST(ByteLattice, Empty) {
  const ByteLattice none = lattice(kBase, 0, {{3, 8}});
  EXPECT_EQ(none.begin(), none.end());
  EXPECT_FALSE(overlap(none, heads(0, 4)));
  EXPECT_FALSE(overlap(lattice(kBase, 4, {{0, 8}}), heads(0, 4)));
  EXPECT_FALSE(overlap(lattice(kBase, 4, {{0, 8}, {5, 8}}), heads(0, 4)));
}

TEST(ByteLattice, LargestReaches) {
  constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max() / 8 * 4;
  const ByteLattice far = lattice(kBase, 4, {{2, kFar}});
  EXPECT_TRUE(overlap(far, far));
  EXPECT_FALSE(overlap(far, heads(1, 4)));
  EXPECT_TRUE(overlap(far, lattice(kBase + static_cast<std::uintptr_t>(kFar) + 3, 1, {})));
  EXPECT_FALSE(overlap(far, lattice(kBase + static_cast<std::uintptr_t>(kFar) + 4, 1, {})));
  EXPECT_TRUE(overlap(lattice(kBase + 8, 4, {{2, -4}}), lattice(kBase + 4, 4, {})));
  EXPECT_FALSE(overlap(lattice(kBase + 8, 4, {{2, -4}}), lattice(kBase, 4, {})));
}

std::set<std::uintptr_t> bytes(std::uintptr_t first, std::int64_t run, const auto& axes) {
  std::set<std::uintptr_t> covered;
  for (std::int64_t a = 0; a < axes[0].first; ++a) {
    for (std::int64_t b = 0; b < axes[1].first; ++b) {
      for (std::int64_t c = 0; c < axes[2].first; ++c) {
        const std::int64_t offset = a * axes[0].second + b * axes[1].second + c * axes[2].second;
        for (std::int64_t i = 0; i < run; ++i) {
          covered.insert(first + static_cast<std::uintptr_t>(offset + i));
        }
      }
    }
  }
  return covered;
}

// Against all bytes written down, strides of every kind: 0, backwards, and without any order.
TEST(ByteLattice, AsTheSetsOfBytes) {
  std::mt19937 random(7);
  const auto pick = [&random](int low, int high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  int num_overlapping = 0;
  int num_between = 0;  // apart, although the ranges meet
  for (int round = 0; round < 20000; ++round) {
    std::array<std::set<std::uintptr_t>, 2> covered;
    std::array<ByteLattice, 2> lattices;
    for (std::size_t i = 0; i < 2; ++i) {
      const std::uintptr_t first = kBase + static_cast<std::uintptr_t>(pick(0, 40));
      const std::int64_t run = pick(1, 4);
      const int widest = round % 2 == 0 ? 9 : 60;
      std::array<std::pair<std::int64_t, std::int64_t>, 3> axes;
      for (auto& [extent, stride] : axes) {
        extent = pick(1, 4);
        stride = pick(-widest, widest) * (round % 3 == 0 ? 4 : 1);
      }
      covered[i] = bytes(first, run, axes);
      lattices[i] = ByteLattice(reinterpret_cast<const void*>(first), run);
      for (const auto& [extent, stride] : axes) lattices[i].repeat(extent, stride);
      ASSERT_EQ(lattices[i].begin(), *covered[i].begin());
      ASSERT_EQ(lattices[i].end(), *covered[i].rbegin() + 1);
    }
    bool shared = false;
    for (const std::uintptr_t byte : covered[0]) shared = shared || covered[1].contains(byte);
    ASSERT_EQ(overlap(lattices[0], lattices[1]), shared) << "round " << round;
    num_overlapping += shared ? 1 : 0;
    num_between += !shared && lattices[0].begin() < lattices[1].end() &&
                           lattices[1].begin() < lattices[0].end()
                       ? 1
                       : 0;
  }
  EXPECT_GT(num_overlapping, 1000);
  EXPECT_GT(num_between, 1000);
}

// Rows at strides without a common measure would take as long as there are pairs of rows.
TEST(ByteLattice, GivesUpInFavourOfTheCaller) {
  const auto odd = [](std::uintptr_t first, std::int64_t stride) {
    return lattice(first, 1, {{1 << 20, stride}, {1 << 20, stride * ((1 << 20) + 3)}});
  };
  EXPECT_FALSE(overlap(odd(kBase, 30030 * 17), odd(kBase + 1, 30030 * 19)));
}

}  // namespace
}  // namespace quire

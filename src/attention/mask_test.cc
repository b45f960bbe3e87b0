// SPDX-License-Identifier: Apache-2.0
// The ranges of mask.h against its predicate, over all small shapes, and the predicate against the
// contract written out a second time.
#include "attention/mask.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/check.h"

namespace quire {
namespace {

template <class F>
void for_each_mask(std::initializer_list<std::int64_t> lefts,
                   std::initializer_list<std::int64_t> rights,
                   std::initializer_list<std::int64_t> chunks, F&& f) {
  for (const bool causal : {false, true}) {
    for (const std::int64_t left : lefts) {
      for (const std::int64_t right : rights) {
        for (const std::int64_t chunk : chunks) f(Mask{causal, left, right, chunk});
      }
    }
  }
}

std::string describe(const Mask& mask, const SequenceView& s, std::int64_t first,
                     std::int64_t last) {
  return concat("causal ", mask.causal, " left ", mask.window_left, " right ", mask.window_right,
                " chunk ", mask.chunk, " q_len ", s.q_len, " kv_len ", s.kv_len, " rows [", first,
                ", ", last, ")");
}

// First and one past the last key that some query of [first, last) sees; {0, 0} if none does.
KeyRange seen_by_predicate(const Mask& mask, Alignment alignment, const SequenceView& s,
                           std::int64_t first, std::int64_t last) {
  KeyRange range{s.kv_len, 0};
  for (std::int64_t i = first; i < last; ++i) {
    for (std::int64_t j = 0; j < s.kv_len; ++j) {
      if (!is_visible(mask, alignment, s, i, j)) continue;
      if (j < range.begin) range.begin = j;
      if (j + 1 > range.end) range.end = j + 1;
    }
  }
  return range.empty() ? KeyRange{} : range;
}

// What the contract says of a sequence without a tree mask.
bool visible_by_contract(const Mask& mask, std::int64_t q_len, std::int64_t kv_len, std::int64_t i,
                         std::int64_t j) {
  const std::int64_t query = kv_len - q_len + i;
  bool visible = true;
  if (mask.causal) visible = visible && j <= query;
  if (mask.window_left != -1) visible = visible && query - mask.window_left <= j;
  if (mask.window_right != -1) visible = visible && j <= query + mask.window_right;
  if (mask.chunk > 0) {
    // In one chunk: no multiple of the chunk lies in (smaller, larger].
    const std::int64_t low = query < j ? query : j;
    const std::int64_t high = query < j ? j : query;
    for (std::int64_t p = low + 1; p <= high; ++p) visible = visible && p % mask.chunk != 0;
  }
  return visible;
}

TEST(Mask, FloorDivRoundsDown) {
  EXPECT_EQ(floor_div(7, 3), 2);
  EXPECT_EQ(floor_div(6, 3), 2);
  EXPECT_EQ(floor_div(0, 3), 0);
  EXPECT_EQ(floor_div(-1, 3), -1);
  EXPECT_EQ(floor_div(-3, 3), -1);
  EXPECT_EQ(floor_div(-4, 3), -2);
}

TEST(Mask, PredicateIsTheContract) {
  std::int64_t num_seen = 0;
  std::int64_t num_hidden = 0;
  for_each_mask({-1, 0, 1, 4}, {-1, 0, 1, 4}, {0, 1, 2, 3, 5}, [&](const Mask& mask) {
    for (std::int64_t q_len = 1; q_len <= 8; ++q_len) {
      for (std::int64_t kv_len = 1; kv_len <= 7; ++kv_len) {
        const SequenceView s{q_len, kv_len};
        for (std::int64_t i = 0; i < q_len; ++i) {
          for (std::int64_t j = 0; j < kv_len; ++j) {
            const bool expected = visible_by_contract(mask, q_len, kv_len, i, j);
            ASSERT_EQ(is_visible(mask, Alignment::kAligned, s, i, j), expected)
                << describe(mask, s, i, i + 1) << " key " << j;
            ++(expected ? num_seen : num_hidden);
          }
        }
      }
    }
  });
  EXPECT_GT(num_seen, 10000);
  EXPECT_GT(num_hidden, 10000);
}

// Exact wherever some key is seen; where none is, empty. Leading rows have negative positions.
TEST(Mask, RangesAreExactWithoutATree) {
  for_each_mask({-1, 0, 1, 2, 6}, {-1, 0, 1, 3}, {0, 1, 2, 3, 5}, [&](const Mask& mask) {
    for (std::int64_t q_len = 0; q_len <= 9; ++q_len) {
      for (std::int64_t kv_len = 0; kv_len <= 7; ++kv_len) {
        const SequenceView s{q_len, kv_len};
        for (std::int64_t first = 0; first <= q_len; ++first) {
          for (std::int64_t last = first; last <= q_len; ++last) {
            const KeyRange range = keys_seen(mask, Alignment::kAligned, s, first, last);
            const KeyRange seen = seen_by_predicate(mask, Alignment::kAligned, s, first, last);
            ASSERT_LE(range.begin, range.end) << describe(mask, s, first, last);
            ASSERT_EQ(range.empty(), seen.empty()) << describe(mask, s, first, last);
            if (seen.empty()) continue;
            ASSERT_EQ(range.begin, seen.begin) << describe(mask, s, first, last);
            ASSERT_EQ(range.end, seen.end) << describe(mask, s, first, last);
          }
        }
      }
    }
  });
}

// One row's range has no hidden key in it, so a kernel needs no mask inside.
TEST(Mask, PositionsSeenByOneRowAreAllVisible) {
  for_each_mask({-1, 0, 2}, {-1, 0, 2}, {0, 2, 3}, [&](const Mask& mask) {
    for (std::int64_t q_len = 1; q_len <= 6; ++q_len) {
      for (std::int64_t kv_len = 0; kv_len <= 5; ++kv_len) {
        const SequenceView s{q_len, kv_len};
        for (std::int64_t i = 0; i < q_len; ++i) {
          const KeyRange range = positions_seen(mask, query_position(s, i), kv_len);
          for (std::int64_t j = 0; j < kv_len; ++j) {
            ASSERT_EQ(is_visible(mask, Alignment::kAligned, s, i, j),
                      range.begin <= j && j < range.end)
                << describe(mask, s, i, i + 1) << " key " << j;
          }
        }
      }
    }
  });
}

TEST(Mask, UnalignedSeesEverything) {
  const SequenceView s{3, 5};
  const Mask none{false, -1, -1, 0};
  const KeyRange range = keys_seen(none, Alignment::kUnaligned, s, 1, 2);
  EXPECT_EQ(range.begin, 0);
  EXPECT_EQ(range.end, 5);
  EXPECT_TRUE(keys_seen(none, Alignment::kUnaligned, s, 2, 2).empty());
  EXPECT_TRUE(is_visible(none, Alignment::kUnaligned, s, 0, 4));
}

struct Tree {
  std::vector<std::uint8_t> bits;
  std::vector<std::int32_t> depths;

  SequenceView view(std::int64_t q_len, std::int64_t kv_len, bool with_depths) const {
    return {q_len, kv_len, bits.data(), with_depths ? depths.data() : nullptr};
  }
};

// No key that some query sees lies outside. With every bit set and a query of depth 0 among the
// rows, the range also begins no earlier than it must.
void check_tree_ranges(const Mask& mask, const SequenceView& s, bool tight) {
  for (std::int64_t first = 0; first <= s.q_len; ++first) {
    for (std::int64_t last = first; last <= s.q_len; ++last) {
      const KeyRange range = keys_seen(mask, Alignment::kAligned, s, first, last);
      const KeyRange seen = seen_by_predicate(mask, Alignment::kAligned, s, first, last);
      ASSERT_LE(range.begin, range.end);
      ASSERT_GE(range.begin, 0);
      ASSERT_LE(range.end, s.kv_len);
      if (seen.empty()) continue;
      ASSERT_LE(range.begin, seen.begin) << describe(mask, s, first, last);
      ASSERT_GE(range.end, seen.end) << describe(mask, s, first, last);
      if (tight && first == 0 && last == s.q_len && range.begin < s.first_new()) {
        ASSERT_EQ(range.begin, seen.begin) << describe(mask, s, first, last);
      }
    }
  }
}

TEST(Mask, RangesHoldEveryKeyThatATreeShows) {
  for_each_mask({-1, 0, 1, 3}, {-1, 1}, {0, 2, 3}, [&](const Mask& mask) {
    for (std::int64_t q_len = 1; q_len <= 3; ++q_len) {
      for (std::int64_t kv_len = q_len; kv_len <= q_len + 4; ++kv_len) {
        Tree tree;
        tree.bits.assign(static_cast<std::size_t>(q_len), 0xff);
        tree.depths.resize(static_cast<std::size_t>(q_len));
        check_tree_ranges(mask, tree.view(q_len, kv_len, false), true);
        // Every assignment of depths 0..3 to the new tokens.
        for (int code = 0; code < (1 << (2 * q_len)); ++code) {
          bool has_root = false;
          for (std::int64_t i = 0; i < q_len; ++i) {
            tree.depths[static_cast<std::size_t>(i)] = (code >> (2 * i)) & 3;
            has_root = has_root || ((code >> (2 * i)) & 3) == 0;
          }
          check_tree_ranges(mask, tree.view(q_len, kv_len, true), has_root);
        }
        // Every tree of bits, depths as in a chain.
        for (int code = 0; code < (1 << (q_len * q_len)); ++code) {
          for (std::int64_t i = 0; i < q_len; ++i) {
            tree.bits[static_cast<std::size_t>(i)] =
                static_cast<std::uint8_t>((code >> (i * q_len)) & ((1 << q_len) - 1));
            tree.depths[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i);
          }
          check_tree_ranges(mask, tree.view(q_len, kv_len, true), false);
        }
      }
    }
  });
}

TEST(Mask, TreeReplacesCausalityAmongNewTokensAlone) {
  // Two branches of a root: token 1 and token 2 see the root and themselves, not each other.
  const Tree tree{{0b001, 0b011, 0b101}, {0, 1, 1}};
  const SequenceView s = tree.view(3, 7, true);
  const Mask causal{true, -1, -1, 0};
  const auto sees = [&](std::int64_t i, std::int64_t j) {
    return is_visible(causal, Alignment::kAligned, s, i, j);
  };
  for (std::int64_t i = 0; i < 3; ++i) {
    for (std::int64_t j = 0; j < 4; ++j) EXPECT_TRUE(sees(i, j));
    for (std::int64_t j = 0; j < 3; ++j) EXPECT_EQ(sees(i, 4 + j), j == 0 || j == i);
  }
  // Both branches have position 5: a window of 1 to the left reaches the root at 4, not key 3.
  const Mask window{true, 1, -1, 0};
  EXPECT_EQ(query_position(s, 2), 5);
  EXPECT_EQ(key_position(s, 6), 5);
  EXPECT_TRUE(is_visible(window, Alignment::kAligned, s, 2, 4));
  EXPECT_FALSE(is_visible(window, Alignment::kAligned, s, 2, 3));
  EXPECT_TRUE(is_visible(window, Alignment::kAligned, s, 2, 6));
  // Without causality the bits say nothing.
  EXPECT_TRUE(is_visible(Mask{false, -1, -1, 0}, Alignment::kAligned, s, 1, 6));
}

TEST(Mask, TreeBitsAreLeastSignificantFirstInRowsOfBytes) {
  EXPECT_EQ(tree_mask_bytes(0), 0);
  EXPECT_EQ(tree_mask_bytes(8), 8);
  EXPECT_EQ(tree_mask_bytes(9), 18);
  Tree tree;
  tree.bits.assign(18, 0);
  tree.bits[2 * 4 + 0] = 1 << 3;  // row 4, new key 3
  tree.bits[2 * 7 + 1] = 1 << 0;  // row 7, new key 8
  const SequenceView s = tree.view(9, 9, false);
  for (std::int64_t i = 0; i < 9; ++i) {
    for (std::int64_t j = 0; j < 9; ++j) {
      EXPECT_EQ(tree_bit(s, i, j), (i == 4 && j == 3) || (i == 7 && j == 8));
    }
  }
}

TEST(Mask, SequenceViewTakesItsOwnPartOfTheBatch) {
  const std::vector<std::int32_t> begins = {0, 4, 6};
  const std::vector<std::int32_t> ends = {3, 6, 9};
  const std::vector<std::int32_t> lens = {5, 2, 8};
  const std::vector<std::uint8_t> bits = {1, 2, 3, 4, 5};
  const std::vector<std::int64_t> tree_begins = {-1, -1, 2};
  const std::vector<std::int32_t> depths = {9, 9, 9, 9, 9, 9, 0, 1, 1};
  BatchView batch;
  batch.queries = {begins, ends};
  batch.kv.lens = lens;
  EXPECT_EQ(sequence_view(batch, 2).tree_bits, nullptr);
  batch.tree_mask.bits = bits;
  batch.tree_mask.begins = tree_begins;
  EXPECT_EQ(sequence_view(batch, 2).tree_bits, bits.data() + 2);
  EXPECT_EQ(sequence_view(batch, 2).tree_depths, nullptr);
  batch.tree_mask.depths = depths;
  EXPECT_EQ(sequence_view(batch, 2).tree_depths, depths.data() + 6);
  EXPECT_EQ(sequence_view(batch, 1).tree_bits, nullptr);
  EXPECT_EQ(sequence_view(batch, 1).tree_depths, nullptr);
  EXPECT_EQ(sequence_view(batch, 1).q_len, 2);
  EXPECT_EQ(sequence_view(batch, 1).kv_len, 2);
  EXPECT_EQ(sequence_view(batch, 0).first_new(), 2);
}

}  // namespace
}  // namespace quire

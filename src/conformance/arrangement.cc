// SPDX-License-Identifier: Apache-2.0
#include "conformance/arrangement.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "conformance/index.h"
#include "conformance/random.h"

namespace quire::conformance {
namespace {

std::int32_t narrow(std::int64_t x) {
  return static_cast<std::int32_t>(x);
}

// What a table may hold where nobody looks.
std::int32_t garbage_entry(Random& random) {
  constexpr std::array<std::int32_t, 4> kEntries = {std::numeric_limits<std::int32_t>::min(), -1,
                                                    std::numeric_limits<std::int32_t>::max(),
                                                    1 << 30};
  return kEntries[at(random.below(std::ssize(kEntries)))];
}

template <class T>
void shuffle(std::vector<T>& values, Random& random) {
  for (std::int64_t n = std::ssize(values); n > 1; --n) {
    std::swap(values[at(n - 1)], values[at(random.below(n))]);
  }
}

void place_rows(const Problem& p, const ArrangeOptions& options, Arrangement& a) {
  std::int64_t row = 0;
  for (const std::int64_t s : a.order) {
    row += options.padding_rows;
    a.q_begins.push_back(narrow(row));
    row += p.sequences[at(s)].q_len;
    a.q_ends.push_back(narrow(row));
    a.kv_lens.push_back(narrow(p.sequences[at(s)].kv_len));
  }
  a.num_rows = row + options.padding_rows;
  if (options.padding_rows == 0) {
    a.q_offsets = a.q_begins;
    a.q_offsets.push_back(narrow(row));
  }
}

// Blocks of the cache: some never used, and with first_block half of them above it.
void place_blocks(const Problem& p, const ArrangeOptions& options, Random& random, Arrangement& a) {
  const std::int64_t num_unused = 2 + p.num_blocks / 8;
  std::vector<std::int32_t> free(at(p.num_blocks + num_unused));
  std::iota(free.begin(), free.end(), 0);
  a.num_blocks = std::ssize(free);
  if (options.first_block > 0) {
    for (std::size_t n = 1; n < free.size(); n += 2) {
      free[n] = narrow(options.first_block + static_cast<std::int64_t>(n));
    }
    a.num_blocks += options.first_block;
  }
  if (options.shuffled) shuffle(free, random);
  a.place.assign(free.begin(), free.begin() + p.num_blocks);
}

// Rows of a ragged source: sequences in random order with gaps, or all at one place.
void place_ragged(const Problem& p, const ArrangeOptions& options, Random& random, Arrangement& a) {
  constexpr std::int64_t kGap = 3;
  a.place.assign(at(p.num_blocks), 0);
  std::int64_t next = kGap;
  if (p.c.shared_blocks > 0) {
    std::iota(a.place.begin(), a.place.end(), narrow(next));
    next += p.num_blocks;
  } else {
    std::vector<std::int64_t> order(p.sequences.size());
    std::iota(order.begin(), order.end(), 0);
    if (options.shuffled) shuffle(order, random);
    for (const std::int64_t s : order) {
      for (const std::int32_t row : p.sequences[at(s)].blocks) a.place[at(row)] = narrow(next++);
      next += kGap;
    }
  }
  a.num_blocks = next;
  a.kind = BlockTables::Kind::kRagged;
  for (const std::int64_t s : a.order) {
    const std::vector<std::int32_t>& rows = p.sequences[at(s)].blocks;
    a.rows.push_back(rows.empty() ? 0 : a.place[at(rows.front())]);
  }
}

// Which blocks of a sequence some row sees.
std::vector<std::uint8_t> needed_blocks(const Problem& p, std::int64_t s) {
  const ProblemSequence& sequence = p.sequences[at(s)];
  std::vector<std::uint8_t> needed(sequence.blocks.size(), 0);
  for (std::int64_t j = 0; j < sequence.kv_len; ++j) {
    std::uint8_t& flag = needed[at(j / p.spec.kv.block_size)];
    for (std::int64_t i = sequence.q_len - 1; i >= 0 && flag == 0; --i) {
      if (p.is_visible(s, i, j)) flag = 1;
    }
  }
  return needed;
}

void make_tables(const Problem& p, const ArrangeOptions& options, Random& random, Arrangement& a) {
  std::int64_t longest = 0;
  for (const std::int64_t s : a.order) {
    longest = std::max(longest, std::ssize(p.sequences[at(s)].blocks));
  }
  const bool padded = options.table == TableStyle::kPadded;
  a.kind = padded ? BlockTables::Kind::kPadded : BlockTables::Kind::kIndexed;
  a.row_stride = padded ? longest + 2 : 0;
  if (!padded) a.begins.push_back(0);
  for (const std::int64_t s : a.order) {
    const std::vector<std::int32_t>& blocks = p.sequences[at(s)].blocks;
    const std::vector<std::uint8_t> needed = needed_blocks(p, s);
    for (std::size_t n = 0; n < blocks.size(); ++n) {
      a.indices.push_back(needed[n] != 0 ? a.place[at(blocks[n])] : garbage_entry(random));
    }
    for (std::int64_t n = std::ssize(blocks); n < a.row_stride; ++n) {
      a.indices.push_back(garbage_entry(random));
    }
    if (!padded) a.begins.push_back(narrow(std::ssize(a.indices)));
  }
}

void make_slots(const Problem& p, const ArrangeOptions& options, Arrangement& a) {
  const auto add = [&](std::int64_t slot) {
    a.new_slots.push_back(slot);
    a.slots.push_back(slot < 0 ? -1 : a.cache_slot(p, slot));
  };
  for (const std::int64_t s : a.order) {
    for (const NewToken& token : p.new_tokens) {
      if (token.sequence != s) continue;
      if (options.padding_slots && token.key % 3 == 0) add(-1);
      add(p.slot(s, token.key));
    }
  }
  if (options.padding_slots) add(-1);
}

// Padding bits and the bytes between masks are set; depths of rows without a tree are garbage.
void make_trees(const Problem& p, Arrangement& a) {
  bool has_depths = false;
  for (const std::int64_t s : a.order) has_depths |= !p.sequences[at(s)].depths.empty();
  if (has_depths) a.depths.assign(at(a.num_rows), std::numeric_limits<std::int32_t>::min());
  for (std::size_t n = 0; n < a.order.size(); ++n) {
    const ProblemSequence& sequence = p.sequences[at(a.order[n])];
    a.tree_bits.push_back(0xff);
    if (sequence.tree.empty()) {
      a.tree_begins.push_back(-1);
      continue;
    }
    a.tree_begins.push_back(std::ssize(a.tree_bits));
    const std::int64_t row_bytes = ceil_div(sequence.q_len, 8);
    for (std::int64_t i = 0; i < sequence.q_len; ++i) {
      std::vector<std::uint8_t> row(at(row_bytes), 0xff);
      for (std::int64_t j = 0; j < sequence.q_len; ++j) {
        if (sequence.tree[at(i * sequence.q_len + j)] != 0) continue;
        row[at(j / 8)] = static_cast<std::uint8_t>(row[at(j / 8)] & ~(1U << (j % 8)));
      }
      a.tree_bits.insert(a.tree_bits.end(), row.begin(), row.end());
    }
    std::copy(sequence.depths.begin(), sequence.depths.end(),
              a.depths.begin() + (sequence.depths.empty() ? 0 : a.q_begins[n]));
  }
}

}  // namespace

ArrangeOptions options_of(const Problem& p) {
  ArrangeOptions options;
  options.order.resize(p.sequences.size());
  std::iota(options.order.begin(), options.order.end(), 0);
  options.padding_rows = p.c.padding_rows;
  options.first_block = p.c.first_block;
  options.shuffled = p.c.shuffled;
  options.padding_slots = p.c.padding_slots;
  options.table = p.c.table;
  options.seed = seed_of(p.c.name);
  return options;
}

std::int64_t Arrangement::cache_slot(const Problem& p, std::int64_t slot) const noexcept {
  const std::int64_t block_size = p.spec.kv.block_size;
  return place[at(slot / block_size)] * block_size + slot % block_size;
}

Arrangement arrange(const Problem& p, const ArrangeOptions& options) {
  Random random(options.seed);
  Arrangement a;
  a.order = options.order;
  place_rows(p, options, a);
  if (p.c.cache == CacheStyle::kRagged) {
    place_ragged(p, options, random, a);
  } else {
    place_blocks(p, options, random, a);
    make_tables(p, options, random, a);
    make_slots(p, options, a);
  }
  if (p.c.tree != TreeStyle::kNone) make_trees(p, a);
  return a;
}

}  // namespace quire::conformance

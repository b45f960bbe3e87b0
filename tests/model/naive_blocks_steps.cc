// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/naive_blocks.h"

namespace quire::test {

bool NaiveBlocks::is_tail_shared(const NaiveSequence& sequence, int g) const {
  if (sequence.length() % options_.block_size == 0) return false;
  return block(sequence.tables[at(g)].back()).num_entries > 1;
}

bool NaiveBlocks::can_append(const NaiveSequence& sequence, std::int64_t num_tokens) const {
  for (int pool = 0; pool < static_cast<int>(options_.pools.size()); ++pool) {
    std::int64_t needed = 0;
    for (int g = 0; g < num_groups() && num_tokens > 0; ++g) {
      if (group(g).pool != pool || is_cross(g)) continue;
      needed += blocks_for(sequence.length() + num_tokens) - blocks_for(sequence.length());
      needed += is_tail_shared(sequence, g);
    }
    if (needed > num_available(pool)) return false;
  }
  return true;
}

// A copy that waits is as good as the block that it reads.
int NaiveBlocks::source_of(int number) const {
  for (std::size_t i = num_taken_; i < copies_.size(); ++i) {
    if (copies_[i].dst == number) return copies_[i].src;
  }
  return number;
}

void NaiveBlocks::append(NaiveSequence& sequence, std::int64_t num_tokens) {
  if (num_tokens == 0) return;
  for (int g = 0; g < num_groups(); ++g) {
    if (is_cross(g)) continue;
    std::vector<int>& table = sequence.tables[at(g)];
    if (is_tail_shared(sequence, g)) {
      const int src = source_of(table.back());
      ++block(src).num_pins;
      const int dst = allocate(g);
      ++block(dst).num_pins;
      copies_.push_back({.src = src, .dst = dst});
      release(table.back());
      table.back() = dst;
    }
    while (static_cast<std::int64_t>(table.size()) < blocks_for(sequence.length() + num_tokens)) {
      table.push_back(allocate(g));
    }
  }
  sequence.num_appended += num_tokens;
}

void NaiveBlocks::cut(NaiveSequence& sequence, std::int64_t num_entries) {
  for (std::int64_t i = blocks_for(sequence.length()) - 1; i >= num_entries; --i) {
    for (int g = 0; g < num_groups(); ++g) {
      if (is_cross(g)) continue;
      if (sequence.tables[at(g)].back() != 0) release(sequence.tables[at(g)].back());
      sequence.tables[at(g)].pop_back();
    }
  }
}

void NaiveBlocks::rollback(NaiveSequence& sequence, std::int64_t num_tokens) {
  cut(sequence, blocks_for(sequence.length() - num_tokens));
  sequence.num_appended -= num_tokens;
}

void NaiveBlocks::release_window(NaiveSequence& sequence) {
  for (int g = 0; g < num_groups(); ++g) {
    if (is_cross(g)) continue;
    for (std::size_t i = 0; i < sequence.tables[at(g)].size(); ++i) {
      int& entry = sequence.tables[at(g)][i];
      const auto num_tokens = static_cast<std::int64_t>(sequence.tokens.size());
      if (entry == 0 || is_needed(g, num_tokens, static_cast<std::int64_t>(i))) continue;
      release(entry);
      entry = 0;
    }
  }
}

void NaiveBlocks::commit(NaiveSequence& sequence, const std::vector<Token>& tokens) {
  const int size = options_.block_size;
  for (const Token token : tokens) {
    const auto position = static_cast<std::int64_t>(sequence.tokens.size());
    sequence.contents.push_back(sequence.prompt.next(sequence.last(), position, token));
    sequence.tokens.push_back(token);
    --sequence.num_appended;
    if (!sequence.shares || (position + 1) % size != 0) continue;
    const std::int64_t before = position - size;
    const Content parent = before < 0 ? sequence.prompt.root() : sequence.contents[at(before)];
    for (int g = 0; g < num_groups(); ++g) {
      if (is_cross(g)) continue;
      publish(sequence.tables[at(g)][at(position / size)], sequence.contents.back(), parent);
    }
  }
  if (!tokens.empty()) sequence.cross_is_stored = true;
  release_window(sequence);
}

void NaiveBlocks::fork(const NaiveSequence& parent, NaiveSequence& child) {
  child = parent;
  for (const std::vector<int>& table : child.tables) {
    for (const int number : table) {
      if (number != 0) ++block(number).num_entries;
    }
  }
}

void NaiveBlocks::free(NaiveSequence& sequence) {
  if (sequence.is_swapped) {
    for (const std::vector<int>& table : sequence.tables) {
      for (const int number : table) {
        if (number != 0) release_host(number);
      }
    }
    return;
  }
  const auto num_tokens = static_cast<std::int64_t>(sequence.tokens.size());
  const std::int64_t num_full = num_tokens / options_.block_size;
  const std::int64_t first = num_full * options_.block_size;
  if (options_.share_tails && sequence.shares && num_tokens > first) {
    cut(sequence, num_full + 1);
    for (int g = 0; g < num_groups(); ++g) {
      if (is_cross(g)) continue;
      const int number = sequence.tables[at(g)].back();
      sequence.tables[at(g)].pop_back();
      NaiveBlock tail = block(number);
      tail.parent = first == 0 ? sequence.prompt.root() : sequence.contents[at(first - 1)];
      tail.item = sequence.prompt.item_in_block(num_full, options_.block_size);
      tail.tokens.assign(sequence.tokens.begin() + first, sequence.tokens.end());
      tail.content = sequence.contents.back();
      std::int64_t num_equal = 0;
      find_tail(g, tail, &num_equal);
      if (block(number).num_entries + block(number).num_pins > 1 ||
          num_equal == num_tokens - first) {
        release(number);
        continue;
      }
      tail.num_entries = 0;
      tail.is_known = tail.is_tail = true;
      tail.serial = ++last_serial_;
      block(number) = tail;
      evictable_[at(group(g).pool)].push_back(number);
    }
    sequence.tokens.resize(at(first));
    sequence.num_appended = 0;
  }
  cut(sequence, 0);
  for (int g = 0; g < num_groups(); ++g) {
    if (!is_cross(g)) continue;
    for (const int number : sequence.tables[at(g)]) release(number);
  }
}

std::int64_t NaiveBlocks::truncate(NaiveSequence& sequence, std::int64_t num_tokens) {
  const auto before = static_cast<std::int64_t>(sequence.tokens.size());
  const int size = options_.block_size;
  std::int64_t kept = std::min(num_tokens, before);
  if (kept < before && kept % size != 0) {
    bool is_whole = kept / size != before / size;
    for (int g = 0; g < num_groups() && !is_whole; ++g) {
      if (is_cross(g)) continue;
      const NaiveBlock& last = block(sequence.tables[at(g)][at(kept / size)]);
      is_whole |= last.num_entries + last.num_pins > 1;
    }
    if (is_whole) kept = kept / size * size;
  }
  for (int g = 0; g < num_groups() && kept < before; ++g) {
    for (std::int64_t i = 0; i < blocks_for(kept) && !is_cross(g); ++i) {
      if (is_needed(g, kept, i) && sequence.tables[at(g)][at(i)] == 0) kept = 0;
    }
  }
  cut(sequence, blocks_for(kept));
  sequence.tokens.resize(at(kept));
  sequence.contents.resize(at(kept));
  sequence.num_appended = 0;
  const std::int64_t num_full = kept / size;
  const bool was_cut = num_full < before / size;
  const bool is_generated =
      num_full > static_cast<std::int64_t>(sequence.prompt.tokens.size()) / size;
  if (was_cut && is_generated) {
    bool is_held = false;
    for (int g = 0; g < num_groups(); ++g) {
      is_held |= !is_cross(g) && sequence.tables[at(g)][at(num_full - 1)] != 0;
    }
    sequence.shares &= is_held;
  }
  return kept;
}

bool NaiveBlocks::can_swap_out(const NaiveSequence& sequence) const {
  for (int pool = 0; pool < static_cast<int>(options_.pools.size()); ++pool) {
    std::int64_t needed = 0;
    for (int g = 0; g < num_groups(); ++g) {
      if (group(g).pool != pool) continue;
      for (const int number : sequence.tables[at(g)]) needed += number != 0;
    }
    const std::int64_t usable =
        std::max<std::int64_t>(options_.pools[at(pool)].num_host_blocks - 1, 0);
    if (needed > usable - num_in_use(pool, true)) return false;
  }
  return true;
}

void NaiveBlocks::swap_out(NaiveSequence& sequence) {
  const auto move = [&](int g, int& entry) {
    if (entry == 0) return;
    const int src = source_of(entry);
    ++block(src).num_pins;
    const int host = new_block(g, true);
    NaiveBlock& copy = block(host);
    const NaiveBlock& original = block(entry);
    copy.num_entries = copy.num_pins = 1;
    copy.is_known = original.is_known;
    copy.content = original.content;
    copy.parent = original.parent;
    copies_.push_back({.src = src, .dst = host});
    release(entry);
    entry = host;
  };
  for (std::int64_t i = blocks_for(sequence.length()) - 1; i >= 0; --i) {
    for (int g = 0; g < num_groups(); ++g) {
      if (!is_cross(g)) move(g, sequence.tables[at(g)][at(i)]);
    }
  }
  for (int g = 0; g < num_groups(); ++g) {
    if (!is_cross(g)) continue;
    for (int& entry : sequence.tables[at(g)]) move(g, entry);
  }
  sequence.is_swapped = true;
}

AdmitStatus NaiveBlocks::swap_in_status(const NaiveSequence& sequence) const {
  bool now = true;
  for (int pool = 0; pool < static_cast<int>(options_.pools.size()); ++pool) {
    std::int64_t needed = 0;
    std::int64_t held = 0;
    for (int g = 0; g < num_groups(); ++g) {
      if (group(g).pool != pool) continue;
      for (const int number : sequence.tables[at(g)]) {
        if (number == 0) continue;
        ++held;
        const bool is_known = sequence.shares && block(number).is_known;
        const int hit = is_known ? find(g, block(number).content) : 0;
        needed += hit == 0 || is_evictable(hit);
      }
    }
    const std::int64_t left = usable_[at(pool)] - held;
    if (left < 0) return AdmitStatus::kNever;
    now &=
        num_available(pool) - needed >= std::min(options_.pools[at(pool)].watermark_blocks, left);
  }
  return now ? AdmitStatus::kNow : AdmitStatus::kLater;
}

void NaiveBlocks::swap_in(NaiveSequence& sequence) {
  std::vector<std::vector<int>> hosts = sequence.tables;
  for (int g = 0; g < num_groups(); ++g) {
    for (std::size_t i = 0; i < hosts[at(g)].size(); ++i) {
      const int number = hosts[at(g)][i];
      const bool is_known = number != 0 && sequence.shares && block(number).is_known;
      const int hit = is_known ? find(g, block(number).content) : 0;
      if (hit == 0) continue;
      std::erase(evictable_[at(group(g).pool)], hit);
      ++block(hit).num_entries;
      sequence.tables[at(g)][i] = hit;
      release_host(number);
      hosts[at(g)][i] = 0;
    }
  }
  for (int g = 0; g < num_groups(); ++g) {
    for (std::size_t i = 0; i < hosts[at(g)].size(); ++i) {
      const int number = hosts[at(g)][i];
      if (number == 0) continue;
      const int src = source_of(number);
      ++block(src).num_pins;
      const int dst = allocate(g);
      ++block(dst).num_pins;
      copies_.push_back({.src = src, .dst = dst});
      sequence.tables[at(g)][i] = dst;
      if (sequence.shares && block(number).is_known) {
        publish(dst, block(number).content, block(number).parent);
      }
      release_host(number);
    }
  }
  sequence.is_swapped = false;
}

void NaiveBlocks::take_copies() {
  num_taken_ = copies_.size();
}

void NaiveBlocks::complete_copies(std::size_t num_copies) {
  for (std::size_t i = 0; i < num_copies; ++i) {
    unpin(copies_[i].src);
    unpin(copies_[i].dst);
  }
  copies_.erase(copies_.begin(), copies_.begin() + static_cast<std::ptrdiff_t>(num_copies));
  num_taken_ -= num_copies;
}

void NaiveBlocks::reset(std::vector<NaiveSequence>& sequences) {
  if (!options_.prefix_cache) return;
  for (std::vector<int>& list : evictable_) {
    for (const int number : list) block(number).is_gone = true;
    list.clear();
  }
  for (NaiveBlock& block : blocks_) block.is_known = false;
  for (NaiveSequence& sequence : sequences) sequence.shares = false;
}

}  // namespace quire::test

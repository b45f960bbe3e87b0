// SPDX-License-Identifier: Apache-2.0
#include "model/naive_blocks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace quire::test {

Content mix(Content a, Content b) {
  std::uint64_t x = a * 0x9E3779B97F4A7C15ULL + b + 0x632BE59BD9B4E019ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

namespace {

// No token has such a number.
Content item_number(const NaiveItem& item) {
  return mix(mix(mix(2, static_cast<Content>(item.id)), static_cast<Content>(item.first)),
             static_cast<Content>(item.count));
}

}  // namespace

Content NaivePrompt::root() const {
  return mix(mix(1, static_cast<Content>(salt)), static_cast<Content>(adapter));
}

Content NaivePrompt::next(Content before, std::int64_t position, Token token) const {
  Content content = mix(before, static_cast<Content>(token));
  const bool is_inside = item && position >= item->first && position < item->first + item->count;
  if (is_inside) {
    content = mix(content, item_number(*item));
  }
  return content;
}

Content NaivePrompt::item_in_block(std::int64_t block, int block_size) const {
  const bool touches = item && item->first < (block + 1) * block_size &&
                       item->first + item->count > block * block_size;
  if (!touches) return 0;
  return item_number(*item);
}

NaiveBlocks::NaiveBlocks(const BlockManagerOptions& options)
    : options_(options), blocks_(1), evictable_(options.pools.size()) {
  for (const BlockPoolOptions& pool : options.pools) usable_.push_back(pool.num_blocks - 1);
}

std::int64_t NaiveBlocks::blocks_for(std::int64_t num_tokens) const {
  std::int64_t num_blocks = 0;
  while (num_blocks * options_.block_size < num_tokens) ++num_blocks;
  return num_blocks;
}

std::int64_t NaiveBlocks::first_needed(int g, std::int64_t num_tokens) const {
  const Mask& mask = group(g).mask;
  std::int64_t key = 0;
  const auto is_seen = [&] {
    return (mask.window_left < 0 || key >= num_tokens - mask.window_left) &&
           (mask.chunk <= 0 || key / mask.chunk == num_tokens / mask.chunk);
  };
  while (!is_seen()) ++key;
  return key / options_.block_size;
}

bool NaiveBlocks::is_needed(int g, std::int64_t num_tokens, std::int64_t entry) const {
  return entry < blocks_for(group(g).num_sink_tokens) || entry >= first_needed(g, num_tokens);
}

std::int64_t NaiveBlocks::num_in_use(int pool, bool on_host) const {
  return std::ranges::count_if(blocks_, [&](const NaiveBlock& block) {
    return !block.is_gone && block.num_entries + block.num_pins > 0 && block.on_host == on_host &&
           group(block.group).pool == pool;
  });
}

std::int64_t NaiveBlocks::num_free(int pool) const {
  const std::int64_t num_beyond = std::ranges::count_if(blocks_, [&](const NaiveBlock& block) {
    return !block.is_gone && !block.on_host && block.is_beyond && group(block.group).pool == pool;
  });
  return usable_[at(pool)] - (num_in_use(pool, false) - num_beyond) -
         static_cast<std::int64_t>(evictable_[at(pool)].size());
}

std::int64_t NaiveBlocks::num_available(int pool) const {
  return num_free(pool) + static_cast<std::int64_t>(evictable_[at(pool)].size());
}

bool NaiveBlocks::is_evictable(int number) const {
  return std::ranges::count(evictable_[at(group(block(number).group).pool)], number) > 0;
}

int NaiveBlocks::find(int g, Content content, int except) const {
  int best = 0;
  for (std::size_t i = 1; i < blocks_.size(); ++i) {
    const NaiveBlock& block = blocks_[i];
    const bool is_match = !block.is_gone && !block.on_host && block.is_known && !block.is_tail &&
                          block.group == g && block.content == content &&
                          static_cast<int>(i) != except;
    if (is_match && (best == 0 || block.serial > blocks_[at(best)].serial)) {
      best = static_cast<int>(i);
    }
  }
  return best;
}

int NaiveBlocks::find_tail(int g, const NaiveBlock& wanted, std::int64_t* num_equal) const {
  std::vector<int> candidates;
  for (std::size_t i = 1; i < blocks_.size(); ++i) {
    const NaiveBlock& block = blocks_[i];
    if (!block.is_gone && block.is_known && block.is_tail && block.group == g &&
        block.parent == wanted.parent && block.item == wanted.item) {
      candidates.push_back(static_cast<int>(i));
    }
  }
  std::ranges::sort(candidates, [&](int a, int b) { return block(a).serial > block(b).serial; });
  if (candidates.size() > 8) candidates.resize(8);
  int best = 0;
  *num_equal = 0;
  for (const int number : candidates) {
    std::int64_t equal = 0;
    const std::vector<Token>& tokens = block(number).tokens;
    while (at(equal) < tokens.size() && at(equal) < wanted.tokens.size() &&
           tokens[at(equal)] == wanted.tokens[at(equal)]) {
      ++equal;
    }
    if (equal > *num_equal) {
      *num_equal = equal;
      best = number;
    }
  }
  return best;
}

int NaiveBlocks::new_block(int g, bool on_host) {
  std::size_t number = 1;
  while (number < blocks_.size() && !blocks_[number].is_gone) ++number;
  if (number == blocks_.size()) blocks_.emplace_back();
  blocks_[number] = NaiveBlock();
  blocks_[number].group = g;
  blocks_[number].on_host = on_host;
  return static_cast<int>(number);
}

int NaiveBlocks::allocate(int g) {
  const int pool = group(g).pool;
  if (num_free(pool) == 0) evict_oldest(pool);
  const int number = new_block(g, false);
  block(number).num_entries = 1;
  return number;
}

void NaiveBlocks::evict_oldest(int pool) {
  std::vector<int>& list = evictable_[at(pool)];
  blocks_[at(list.at(0))].is_gone = true;
  list.erase(list.begin());
}

void NaiveBlocks::release(int number) {
  NaiveBlock& gone = block(number);
  if (--gone.num_entries + gone.num_pins > 0) return;
  if (gone.is_known && find(gone.group, gone.content, number) == 0) {
    evictable_[at(group(gone.group).pool)].push_back(number);
  } else {
    gone.is_gone = true;
  }
}

void NaiveBlocks::release_host(int number) {
  NaiveBlock& gone = block(number);
  if (--gone.num_entries + gone.num_pins == 0) gone.is_gone = true;
}

void NaiveBlocks::unpin(int number) {
  NaiveBlock& gone = block(number);
  --gone.num_pins;
  if (gone.num_entries + gone.num_pins > 0) return;
  const bool is_kept = !gone.on_host && gone.is_known &&
                       (gone.is_tail || find(gone.group, gone.content, number) == 0);
  if (!is_kept) {
    gone.is_gone = true;
    return;
  }
  std::vector<int>& list = evictable_[at(group(gone.group).pool)];
  auto place = list.end();
  if (!has_window(gone.group)) {
    place = std::ranges::find(list, find(gone.group, gone.parent));
  }
  list.insert(place, number);
}

void NaiveBlocks::publish(int number, Content content, Content parent) {
  NaiveBlock& stored = block(number);
  const int known = find(stored.group, content);
  if (known != 0 && is_evictable(known)) {
    std::erase(evictable_[at(group(stored.group).pool)], known);
    block(known).is_gone = true;
  }
  stored.is_known = true;
  stored.content = content;
  stored.parent = parent;
  stored.serial = ++last_serial_;
}

NaiveBlocks::Match NaiveBlocks::match(const NaivePrompt& prompt, const AdmitOptions& request,
                                      bool hashed) const {
  Match match;
  match.hits.resize(options_.groups.size());
  match.tails.resize(options_.groups.size());
  bool has_aligned = false;
  for (int g = 0; g < num_groups(); ++g) has_aligned |= !is_cross(g);
  if (!options_.prefix_cache || !hashed || request.num_cross_tokens > 0 || !has_aligned)
    return match;

  const int size = options_.block_size;
  std::vector<Content> contents;
  for (std::size_t i = 0; i < prompt.tokens.size(); ++i) {
    contents.push_back(prompt.next(contents.empty() ? prompt.root() : contents.back(),
                                   static_cast<std::int64_t>(i), prompt.tokens[i]));
  }
  const auto content_of = [&](std::int64_t block) { return contents[at((block + 1) * size - 1)]; };
  const auto fits = [&](std::int64_t num_blocks) {
    for (int g = 0; g < num_groups(); ++g) {
      if (is_cross(g)) continue;
      for (std::int64_t i = 0; i < num_blocks; ++i) {
        if (is_needed(g, num_blocks * size, i) && find(g, content_of(i)) == 0) return false;
      }
    }
    return true;
  };
  const auto num_tokens = static_cast<std::int64_t>(prompt.tokens.size());
  match.num_blocks = (num_tokens - 1) / size;
  while (!fits(match.num_blocks)) --match.num_blocks;

  if (options_.share_tails) {
    const std::int64_t first = match.num_blocks * size;
    const std::int64_t limit = std::min<std::int64_t>(num_tokens - 1 - first, size - 1);
    match.num_tail_tokens = limit;
    for (int g = 0; g < num_groups() && limit > 0; ++g) {
      if (is_cross(g)) continue;
      NaiveBlock wanted;
      wanted.parent = first == 0 ? prompt.root() : contents[at(first - 1)];
      wanted.item = prompt.item_in_block(match.num_blocks, size);
      wanted.tokens.assign(prompt.tokens.begin() + first, prompt.tokens.begin() + first + limit);
      std::int64_t num_equal = 0;
      match.tails[at(g)] = find_tail(g, wanted, &num_equal);
      match.num_tail_tokens = std::min(match.num_tail_tokens, num_equal);
    }
  }
  for (int g = 0; g < num_groups(); ++g) {
    for (std::int64_t i = 0; i < match.num_blocks && !is_cross(g); ++i) {
      match.hits[at(g)].push_back(find(g, content_of(i)));
    }
  }
  return match;
}

AdmitStatus NaiveBlocks::status(const NaivePrompt& prompt, const AdmitOptions& request,
                                Match& match) const {
  const auto num_tokens = static_cast<std::int64_t>(prompt.tokens.size()) + request.num_lookahead;
  const std::int64_t cached = match.num_blocks * options_.block_size + match.num_tail_tokens;
  bool now = true;
  bool never = false;
  for (int pool = 0; pool < static_cast<int>(options_.pools.size()); ++pool) {
    std::int64_t needed = 0;
    std::int64_t alone = 0;
    for (int g = 0; g < num_groups(); ++g) {
      if (group(g).pool != pool) continue;
      std::int64_t most = blocks_for(is_cross(g) ? request.num_cross_tokens : num_tokens);
      std::int64_t more = most;
      if (!is_cross(g)) {
        more -= match.num_blocks;
        for (std::int64_t i = 0; i < match.num_blocks; ++i) {
          more += is_needed(g, cached, i) && is_evictable(match.hits[at(g)][at(i)]);
        }
        if (has_window(g)) {
          const Mask& mask = group(g).mask;
          std::int64_t window = num_tokens;
          if (mask.window_left >= 0) window = std::min(window, mask.window_left);
          if (mask.chunk > 0) window = std::min(window, mask.chunk - 1);
          const std::int64_t chunk =
              request.max_chunk > 0 ? std::min(request.max_chunk, num_tokens) : num_tokens;
          most =
              std::min(most, blocks_for(group(g).num_sink_tokens) + blocks_for(window + chunk) + 1);
        }
        more = std::min(more, most) + (match.num_tail_tokens > 0 ? 1 : 0);
      }
      needed += more;
      alone += most;
    }
    const std::int64_t watermark = options_.pools[at(pool)].watermark_blocks;
    never |= usable_[at(pool)] < alone + watermark;
    now &= num_available(pool) >= needed + watermark;
  }
  if (!now && match.num_tail_tokens > 0) {
    match.num_tail_tokens = 0;
    return status(prompt, request, match);
  }
  if (never) return AdmitStatus::kNever;
  return now ? AdmitStatus::kNow : AdmitStatus::kLater;
}

void NaiveBlocks::admit(const NaivePrompt& prompt, const AdmitOptions& request, const Match& match,
                        bool hashed, NaiveSequence& sequence) {
  sequence = NaiveSequence();
  sequence.prompt = prompt;
  const std::int64_t cached = match.num_blocks * options_.block_size + match.num_tail_tokens;
  for (std::int64_t i = 0; i < cached; ++i) {
    sequence.contents.push_back(prompt.next(sequence.last(), i, prompt.tokens[at(i)]));
    sequence.tokens.push_back(prompt.tokens[at(i)]);
  }
  sequence.num_cross = request.num_cross_tokens;
  sequence.shares = options_.prefix_cache && hashed && request.num_cross_tokens == 0;
  sequence.tables.resize(options_.groups.size());
  for (int g = 0; g < num_groups(); ++g) {
    if (is_cross(g)) continue;
    for (std::int64_t i = 0; i < match.num_blocks; ++i) {
      const int hit = is_needed(g, cached, i) ? match.hits[at(g)][at(i)] : 0;
      sequence.tables[at(g)].push_back(hit);
      if (hit == 0) continue;
      std::erase(evictable_[at(group(g).pool)], hit);
      ++block(hit).num_entries;
    }
    if (match.num_tail_tokens > 0) {
      std::erase(evictable_[at(group(g).pool)], match.tails[at(g)]);
      ++block(match.tails[at(g)]).num_pins;
    }
  }
  for (int g = 0; g < num_groups(); ++g) {
    const std::int64_t num_cross = is_cross(g) ? blocks_for(request.num_cross_tokens) : 0;
    for (std::int64_t i = 0; i < num_cross; ++i) sequence.tables[at(g)].push_back(allocate(g));
    if (is_cross(g) || match.num_tail_tokens == 0) continue;
    const int copy = allocate(g);
    ++block(copy).num_pins;
    sequence.tables[at(g)].push_back(copy);
    copies_.push_back({.src = match.tails[at(g)], .dst = copy});
  }
}

}  // namespace quire::test

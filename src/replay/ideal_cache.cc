// SPDX-License-Identifier: Apache-2.0
#include "replay/ideal_cache.h"

#include <cstring>
#include <utility>

namespace quire::replay {
namespace {

constexpr std::size_t kFirstCapacity = 1024;

std::uint64_t short_key(const Digest& digest) {
  std::uint64_t key = 0;
  std::memcpy(&key, digest.bytes.data(), sizeof(key));
  return key == 0 ? 1 : key;
}

}  // namespace

std::int64_t IdealCache::add(const Prompt& prompt) {
  const std::int64_t num_full = prompt.num_full_blocks();
  const std::int64_t num_usable = (prompt.num_tokens() - 1) / prompt.block_size();
  std::int64_t num_hits = 0;
  while (num_hits < num_usable && contains(short_key(prompt.key(num_hits)))) ++num_hits;
  for (std::int64_t b = num_hits; b < num_full; ++b) insert(short_key(prompt.key(b)));
  return num_hits;
}

std::size_t IdealCache::place_of(std::uint64_t key) const {
  const std::size_t mask = keys_.size() - 1;
  std::size_t place = key & mask;
  while (keys_[place] != 0 && keys_[place] != key) place = (place + 1) & mask;
  return place;
}

bool IdealCache::contains(std::uint64_t key) const {
  return !keys_.empty() && keys_[place_of(key)] == key;
}

bool IdealCache::insert(std::uint64_t key) {
  if (2 * static_cast<std::size_t>(size_) >= keys_.size()) grow();
  std::uint64_t& place = keys_[place_of(key)];
  if (place == key) return false;
  place = key;
  ++size_;
  return true;
}

void IdealCache::grow() {
  std::vector<std::uint64_t> old(keys_.empty() ? kFirstCapacity : 2 * keys_.size(), 0);
  std::swap(old, keys_);
  for (const std::uint64_t key : old) {
    if (key != 0) keys_[place_of(key)] = key;
  }
}

}  // namespace quire::replay

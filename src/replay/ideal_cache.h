// SPDX-License-Identifier: Apache-2.0
// What a cache of any size would have: prompts one after another, every block known as soon as its
// prompt has come. The bound that a replay is compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/prompt.h"

namespace quire::replay {

class IdealCache {
 public:
  // Full blocks of the prompt that are known, from the first on; then all of them are. As in the
  // real cache at least one token counts as computed. REQUIRES: prompt.is_hashed().
  std::int64_t add(const Prompt& prompt);

  std::int64_t num_blocks() const noexcept { return size_; }

 private:
  // By the first 8 bytes of a digest: a wrong hit would need two of 2^32 blocks to agree in them.
  bool insert(std::uint64_t key);
  bool contains(std::uint64_t key) const;
  std::size_t place_of(std::uint64_t key) const;
  void grow();

  std::vector<std::uint64_t> keys_;  // open addressing; 0: empty
  std::int64_t size_ = 0;
};

}  // namespace quire::replay

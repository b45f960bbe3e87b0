// SPDX-License-Identifier: Apache-2.0
// A prompt and the content keys of its blocks: what the prefix cache looks up.
//
// Every full block is named by a SHA-256 over the tokens of the block and the name of the block
// before it; the first one follows a root that holds the salt and the adapter. Every field carries
// a tag and its length (src/kv/prefix_hash.h), so that two kinds of input never meet in one key.
//
// A Prompt is an immutable handle: copies share one allocation, and reading it from several threads
// is safe. Hash it once per request, outside the step; extended() goes on where it ended, for a
// request that comes back after preemption with the tokens it has made so far.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "quire/export.h"
#include "quire/kv_ids.h"

namespace quire {

// A SHA-256.
struct Digest {
  std::array<std::uint8_t, 32> bytes{};
  friend bool operator==(const Digest&, const Digest&) = default;
};

QUIRE_API std::string to_string(const Digest& digest);  // hexadecimal

// What tokens alone do not say: an image or a sound that stands at a range of placeholder tokens.
// It enters the keys of all blocks that the range touches.
struct ExtraKey {
  std::int64_t first_token = 0;
  std::int64_t num_tokens = 0;
  std::string_view bytes{};  // a digest of the item
};

// Who may share with whom: only prompts of equal salt and adapter share blocks.
struct PrefixScope {
  std::string_view salt{};     // per tenant; secret, since timing tells hits from misses
  std::string_view adapter{};  // the name of a LoRA adapter, or empty
  std::span<const ExtraKey> extra_keys{};
};

class QUIRE_API Prompt {
 public:
  // Names no tokens; BlockManager refuses it.
  Prompt() = default;
  // REQUIRES: block_size >= 1; the extra keys lie within the tokens.
  Prompt(std::span<const Token> tokens, int block_size, const PrefixScope& scope = {});
  // Without keys: it neither finds cached blocks nor leaves any.
  static Prompt unhashed(std::span<const Token> tokens, int block_size);

  // This prompt and more tokens; hashes only the blocks that the new tokens fill.
  Prompt extended(std::span<const Token> more) const;

  std::span<const Token> tokens() const noexcept;
  std::int64_t num_tokens() const noexcept;
  int block_size() const noexcept;
  bool is_hashed() const noexcept;
  std::int64_t num_full_blocks() const noexcept { return num_tokens() / block_size(); }

  // REQUIRES: is_hashed().
  const Digest& root() const;
  // REQUIRES: is_hashed(), 0 <= block < num_full_blocks().
  const Digest& key(std::int64_t block) const;
  // The key that comes before `block`: root() for the first. REQUIRES: 0 <= block <= full blocks.
  const Digest& parent_key(std::int64_t block) const {
    return block == 0 ? root() : key(block - 1);
  }
  // Digest of the extra keys that touch a block; all zero where there are none.
  Digest extra_digest(std::int64_t block) const noexcept;

 private:
  struct Data;
  explicit Prompt(std::shared_ptr<const Data> data);
  std::shared_ptr<const Data> data_;
};

}  // namespace quire

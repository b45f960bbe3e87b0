// SPDX-License-Identifier: Apache-2.0
#include "quire/prompt.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kv/prefix_hash.h"

namespace quire {

struct Prompt::Data {
  std::vector<Token> tokens;
  int block_size = 1;
  bool hashed = false;
  Digest root;
  std::vector<Digest> keys;    // [full blocks]
  std::vector<Digest> extras;  // [blocks, the partial one included], or empty: no extra keys

  void hash_full_blocks() {
    const std::size_t num_full = tokens.size() / static_cast<std::size_t>(block_size);
    keys.reserve(num_full);
    while (keys.size() < num_full) {
      const std::size_t block = keys.size();
      const Digest& parent = block == 0 ? root : keys.back();
      const Digest extra = block < extras.size() ? extras[block] : Digest{};
      const auto size = static_cast<std::size_t>(block_size);
      keys.push_back(block_digest(parent, std::span(tokens).subspan(block * size, size), extra));
    }
  }
};

namespace {

void require_tokens(std::span<const Token> tokens, int block_size) {
  require(block_size >= 1, "block_size must be at least 1, is ", block_size);
  constexpr std::size_t kMaxTokens = std::numeric_limits<std::int32_t>::max();
  require(tokens.size() <= kMaxTokens, "a prompt holds at most ", kMaxTokens, " tokens, got ",
          tokens.size());
}

// The encoding has 32-bit lengths; anything near that is a mistake.
void require_field(const char* what, std::string_view bytes) {
  constexpr std::size_t kMaxFieldBytes = std::size_t{1} << 20;
  require(bytes.size() <= kMaxFieldBytes, what, " may have at most ", kMaxFieldBytes,
          " bytes, has ", bytes.size());
}

void require_extra_keys(std::span<const ExtraKey> keys, std::size_t num_tokens) {
  const auto limit = static_cast<std::int64_t>(num_tokens);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const ExtraKey& key = keys[i];
    require(key.first_token >= 0 && key.num_tokens >= 1 && key.num_tokens <= limit &&
                key.first_token <= limit - key.num_tokens,
            "extra key ", i, " must lie within the ", limit, " tokens of the prompt, begins at ",
            key.first_token, " and has ", key.num_tokens);
    require_field("an extra key", key.bytes);
  }
}

}  // namespace

std::string to_string(const Digest& digest) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * digest.bytes.size());
  for (const std::uint8_t byte : digest.bytes) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

Prompt::Prompt(std::shared_ptr<const Data> data) : data_(std::move(data)) {}

Prompt::Prompt(std::span<const Token> tokens, int block_size, const PrefixScope& scope) {
  require_tokens(tokens, block_size);
  require_field("the salt", scope.salt);
  require_field("the adapter", scope.adapter);
  require_extra_keys(scope.extra_keys, tokens.size());
  auto data = std::make_shared<Data>();
  data->tokens.assign(tokens.begin(), tokens.end());
  data->block_size = block_size;
  data->hashed = true;
  data->root = root_digest(scope.salt, scope.adapter);
  if (!scope.extra_keys.empty()) {
    for (std::size_t first = 0; first < tokens.size();
         first += static_cast<std::size_t>(block_size)) {
      data->extras.push_back(
          extra_keys_digest(scope.extra_keys, static_cast<std::int64_t>(first), block_size));
    }
  }
  data->hash_full_blocks();
  data_ = std::move(data);
}

Prompt Prompt::unhashed(std::span<const Token> tokens, int block_size) {
  require_tokens(tokens, block_size);
  auto data = std::make_shared<Data>();
  data->tokens.assign(tokens.begin(), tokens.end());
  data->block_size = block_size;
  return Prompt(std::move(data));
}

Prompt Prompt::extended(std::span<const Token> more) const {
  require(data_ != nullptr, "an empty prompt cannot be extended");
  auto data = std::make_shared<Data>(*data_);
  data->tokens.insert(data->tokens.end(), more.begin(), more.end());
  require_tokens(data->tokens, data->block_size);
  if (data->hashed) data->hash_full_blocks();
  return Prompt(std::move(data));
}

std::span<const Token> Prompt::tokens() const noexcept {
  return data_ == nullptr ? std::span<const Token>() : data_->tokens;
}

std::int64_t Prompt::num_tokens() const noexcept {
  return static_cast<std::int64_t>(tokens().size());
}

int Prompt::block_size() const noexcept {
  return data_ == nullptr ? 1 : data_->block_size;
}

bool Prompt::is_hashed() const noexcept {
  return data_ != nullptr && data_->hashed;
}

const Digest& Prompt::root() const {
  require(is_hashed(), "a prompt without keys has no root");
  return data_->root;
}

const Digest& Prompt::key(std::int64_t block) const {
  const auto num_keys = static_cast<std::int64_t>(is_hashed() ? data_->keys.size() : 0);
  require(block >= 0 && block < num_keys, "block ", block, " of a prompt with ", num_keys, " keys");
  return data_->keys[static_cast<std::size_t>(block)];
}

Digest Prompt::extra_digest(std::int64_t block) const noexcept {
  if (data_ == nullptr || block < 0) return {};
  const auto index = static_cast<std::size_t>(block);
  return index < data_->extras.size() ? data_->extras[index] : Digest{};
}

}  // namespace quire

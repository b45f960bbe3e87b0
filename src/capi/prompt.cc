// SPDX-License-Identifier: Apache-2.0
// Prompts of the C interface.
#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "capi/handles.h"
#include "capi/sized_struct.h"

namespace quire::capi {
namespace {

static_assert(sizeof(Token) == sizeof(std::int32_t));

std::string_view to_bytes(const void* data, std::int64_t size, const char* what) {
  const auto* bytes = static_cast<const char*>(data);
  require_array(bytes, size, what);
  return size == 0 ? std::string_view() : std::string_view(bytes, static_cast<std::size_t>(size));
}

std::span<const Token> to_tokens(const std::int32_t* tokens, std::int64_t size) {
  require_array(tokens, size, "tokens");
  return {tokens, static_cast<std::size_t>(size)};
}

Prompt to_prompt(std::span<const Token> tokens, std::int32_t block_size,
                 const quire_prefix_scope* pointer) {
  const quire_prefix_scope given = read_optional_struct(pointer, "scope");
  require(given.reserved == 0, "scope: reserved is not 0");
  std::vector<ExtraKey> keys;
  for_each_struct(given.extra_keys, given.num_extra_keys, "extra_keys",
                  [&](std::int64_t /*i*/, const quire_extra_key& key) {
                    keys.push_back({.first_token = key.first_token,
                                    .num_tokens = key.num_tokens,
                                    .bytes = to_bytes(key.bytes, key.num_bytes, "bytes")});
                  });
  const PrefixScope scope{.salt = to_bytes(given.salt, given.salt_bytes, "salt"),
                          .adapter = to_bytes(given.adapter, given.adapter_bytes, "adapter"),
                          .extra_keys = keys};
  if (!to_bool(given.unhashed, "unhashed")) return Prompt(tokens, block_size, scope);
  require(scope.salt.empty() && scope.adapter.empty() && keys.empty(),
          "unhashed: such a prompt has no salt, adapter or extra keys");
  return Prompt::unhashed(tokens, block_size);
}

}  // namespace
}  // namespace quire::capi

using namespace quire::capi;

quire_status quire_prompt_create(const int32_t* tokens, int64_t num_tokens, int32_t block_size,
                                 const quire_prefix_scope* scope, quire_prompt** prompt) {
  return guarded([&] {
    quire_prompt*& out = require_out(prompt, "prompt");
    out = new quire_prompt{.prompt = to_prompt(to_tokens(tokens, num_tokens), block_size, scope)};
  });
}

quire_status quire_prompt_destroy(quire_prompt* prompt) {
  return destroy(prompt, "prompt");
}

quire_status quire_prompt_extended(const quire_prompt* prompt, const int32_t* tokens,
                                   int64_t num_tokens, quire_prompt** extended) {
  return guarded([&] {
    quire_prompt*& out = require_out(extended, "extended");
    const quire::Prompt& before = open(prompt, "prompt").prompt;
    out = new quire_prompt{.prompt = before.extended(to_tokens(tokens, num_tokens))};
  });
}

quire_status quire_prompt_tokens(const quire_prompt* prompt, const int32_t** tokens,
                                 int64_t* num_tokens) {
  return guarded([&] {
    const int32_t*& out = require_out(tokens, "tokens");
    int64_t& size = require_out(num_tokens, "num_tokens");
    const auto held = open(prompt, "prompt").prompt.tokens();
    out = held.data();
    size = static_cast<int64_t>(held.size());
  });
}

quire_status quire_prompt_key(const quire_prompt* prompt, int64_t block, uint8_t* digest) {
  return guarded([&] {
    quire::require(digest != nullptr, "digest: is NULL, where 32 bytes should go");
    const quire::Prompt& held = open(prompt, "prompt").prompt;
    quire::require(held.is_hashed(), "prompt: an unhashed one has no keys");
    const quire::Digest& key =
        block == -1 ? held.root()
                    : held.key(static_cast<int64_t>(to_index(
                          block, static_cast<std::size_t>(held.num_full_blocks()), "block")));
    std::copy(key.bytes.begin(), key.bytes.end(), digest);
  });
}

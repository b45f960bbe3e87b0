// SPDX-License-Identifier: Apache-2.0
// The C interface: a prompt and the content keys of its blocks, what the prefix cache looks up
// (quire/prompt.h in C++). Immutable: any number of threads may read one.
#pragma once

#include "quire/c/base.h"

// NOLINTBEGIN(modernize-use-using,modernize-redundant-void-arg): also C
#ifdef __cplusplus
extern "C" {
#endif

typedef struct quire_prompt quire_prompt;

// What tokens alone do not say: an image or a sound that stands at a range of placeholder tokens.
typedef struct quire_extra_key {
  uint32_t struct_bytes;
  uint32_t struct_version;
  int64_t first_token;
  int64_t num_tokens;
  const void* bytes;  // [num_bytes], a digest of the item
  int64_t num_bytes;
} quire_extra_key;

// Who may share with whom: only prompts of equal salt and adapter share blocks.
typedef struct quire_prefix_scope {
  uint32_t struct_bytes;
  uint32_t struct_version;
  const void* salt;  // [salt_bytes], per tenant; secret, since timing tells hits from misses
  int64_t salt_bytes;
  const void* adapter;  // [adapter_bytes], the name of a LoRA adapter
  int64_t adapter_bytes;
  const quire_extra_key* extra_keys;  // [num_extra_keys]
  int64_t num_extra_keys;
  int32_t unhashed;  // 1: neither finds cached blocks nor leaves any; all above is empty
  int32_t reserved;  // 0
} quire_prefix_scope;

// tokens [num_tokens] are copied. `scope` may be NULL.
QUIRE_API quire_status quire_prompt_create(const int32_t* tokens, int64_t num_tokens,
                                           int32_t block_size, const quire_prefix_scope* scope,
                                           quire_prompt** prompt);
QUIRE_API quire_status quire_prompt_destroy(quire_prompt* prompt);
// This prompt and more tokens [num_tokens]; hashes only the blocks that they fill.
QUIRE_API quire_status quire_prompt_extended(const quire_prompt* prompt, const int32_t* tokens,
                                             int64_t num_tokens, quire_prompt** extended);
// tokens receives [num_tokens], valid as long as the prompt.
QUIRE_API quire_status quire_prompt_tokens(const quire_prompt* prompt, const int32_t** tokens,
                                           int64_t* num_tokens);
// The SHA-256 [32] of a full block; block -1 is the root. Not for unhashed prompts.
QUIRE_API quire_status quire_prompt_key(const quire_prompt* prompt, int64_t block, uint8_t* digest);

#ifdef __cplusplus
}
#endif
// NOLINTEND(modernize-use-using,modernize-redundant-void-arg)

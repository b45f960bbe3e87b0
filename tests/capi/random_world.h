// SPDX-License-Identifier: Apache-2.0
// What random arguments are made of: handles that come and go, arrays of anything, and numbers that
// are small or one of those that break things. C11.
#pragma once

#include "capi/client.h"

enum { kArrayLength = 64, kFloats = 1 << 16, kHandles = 4 };

typedef struct World {
  uint64_t random;
  quire_backend* backends[kHandles];
  quire_prepared_batch* prepared[kHandles];
  quire_kv_cache* caches[kHandles];
  quire_prompt* prompts[kHandles];
  quire_block_manager* managers[kHandles];
  quire_scheduler* schedulers[kHandles];
  int32_t i32[6][kArrayLength];
  int64_t i64[3][kArrayLength];
  uint64_t ids[kArrayLength];
  int owners[kArrayLength];  // of ids: the index of their manager
  uint8_t bytes[kArrayLength];
  float* floats;  // [kFloats], inputs
  float* out;     // [kFloats]
  quire_tensor tensors[6];
  quire_kv_cache_view view;
  int is_calm;
  int64_t num_ok;
} World;

uint64_t below(World* world, uint64_t n);
int chance(World* world, uint64_t one_in);
// The same for what makes an argument bad: in calm rounds none is, on purpose.
int mishap(World* world, uint64_t one_in);
// Small, or one of those that break things.
int64_t any_integer(World* world);
int64_t any_negative(World* world);
int32_t any_i32(World* world);
// A length that an array of kArrayLength really has, or one that must be refused.
int64_t any_length(World* world);
void count(World* world, quire_status status);
void shuffle_arrays(World* world);

#define ANY_HANDLE(world, list) \
  (mishap((world), 25) ? NULL : (world)->list[below((world), kHandles)])
#define ANY_OR_NULL(world, pointer) (mishap((world), 10) ? NULL : (pointer))

// Sometimes a struct says that it has another size.
#define ANY_HEAD(world, object)                                                                \
  do {                                                                                         \
    (object).struct_bytes = sizeof(object);                                                    \
    (object).struct_version = 1;                                                               \
    if (mishap((world), 40)) (object).struct_bytes = (uint32_t)below((world), sizeof(object)); \
    if (mishap((world), 40)) (object).struct_version = (uint32_t)any_integer(world);           \
  } while (0)

// Replace handle `at`, if the random arguments allow it.
void random_prepared(World* world, int at);
void random_backend(World* world, int at);
void random_cache(World* world, int at);
void random_prompt(World* world, int at);
void random_manager(World* world, int at);
void random_scheduler(World* world, int at);

// One or several calls.
void random_step(World* world);
void random_merge(World* world);
void random_copies(World* world);
void random_blocks(World* world);
void random_requests(World* world);

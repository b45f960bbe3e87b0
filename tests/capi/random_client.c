// SPDX-License-Identifier: Apache-2.0
// Random arguments through every call: whatever happens, it is a status. Pointers are NULL, handles
// of any kind, or arrays that are at least as long as the call may read or write; all numbers and
// all contents of arrays are anything. Under a sanitizer this finds what was not checked.
#include <stdlib.h>
#include <string.h>

#include "capi/random_world.h"

uint64_t below(World* world, uint64_t n) {
  return next_random(&world->random) % n;
}

int chance(World* world, uint64_t one_in) {
  return below(world, one_in) == 0;
}

int mishap(World* world, uint64_t one_in) {
  return chance(world, one_in) && !world->is_calm;
}

int64_t any_integer(World* world) {
  static const int64_t kEvil[] = {-1,        -2,        0,         INT32_MAX, INT32_MIN, INT64_MAX,
                                  INT64_MIN, 1LL << 32, 1LL << 40, 1LL << 62, 4096,      65536};
  if (mishap(world, 12)) return kEvil[below(world, sizeof(kEvil) / sizeof(kEvil[0]))];
  return (int64_t)below(world, 12);
}

int64_t any_negative(World* world) {
  return (int64_t)(0 - (uint64_t)any_integer(world));
}

int32_t any_i32(World* world) {
  return (int32_t)any_integer(world);
}

int64_t any_length(World* world) {
  if (mishap(world, 10)) return -(int64_t)below(world, 5) - 1;
  return (int64_t)below(world, kArrayLength);
}

void count(World* world, quire_status status) {
  CHECK(status >= QUIRE_OK && status < QUIRE_INTERNAL);  // a broken invariant is a finding too
  if (status == QUIRE_INTERNAL) check_failed(__FILE__, __LINE__, quire_error_message());
  if (status == QUIRE_OK) ++world->num_ok;
}

void shuffle_arrays(World* world) {
  for (int a = 0; a < 6; ++a) {
    int32_t sum = 0;
    for (int i = 0; i < kArrayLength; ++i) {
      sum += (int32_t)below(world, 3);
      // Rising numbers pass for begins; the others for lengths, tokens and blocks.
      world->i32[a][i] = a < 2 ? sum : (int32_t)below(world, 10);
      if (mishap(world, 400)) world->i32[a][i] = any_i32(world);
    }
    if (a < 2) world->i32[a][0] = 0;
  }
  for (int a = 0; a < 3; ++a) {
    for (int i = 0; i < kArrayLength; ++i) {
      world->i64[a][i] = chance(world, 100) ? any_integer(world) : (int64_t)below(world, 32);
    }
  }
  for (int i = 0; i < kArrayLength; ++i) world->bytes[i] = (uint8_t)below(world, 256);
}

static void make_world(World* world, uint64_t seed) {
  memset(world, 0, sizeof(*world));
  world->random = seed;
  world->floats = calloc(kFloats, sizeof(float));
  world->out = calloc(kFloats, sizeof(float));
  const quire_attention_spec spec = client_spec();
  const quire_batch_bounds bounds = {QUIRE_SIZED(quire_batch_bounds), .max_sequences = 8,
                                     .max_tokens = 64, .max_kv_len = 40, .max_total_kv_len = 320};
  const quire_kv_cache_options storage = {QUIRE_SIZED(quire_kv_cache_options), .num_blocks = 10};
  for (int i = 0; i < kHandles; ++i) {
    world->backends[i] = client_backend(i == 0 ? "reference" : "cpu");
    CHECK_OK(
        quire_prepared_batch_create(world->backends[i], &spec, &bounds, NULL, &world->prepared[i]));
    CHECK_OK(quire_kv_cache_create(world->backends[i], &spec, &storage, &world->caches[i]));
    shuffle_arrays(world);
    while (world->prompts[i] == NULL) random_prompt(world, i);
    while (world->managers[i] == NULL) random_manager(world, i);
    while (world->schedulers[i] == NULL) random_scheduler(world, i);
  }
}

static void free_world(World* world) {
  for (int i = 0; i < kHandles; ++i) {
    CHECK_OK(quire_backend_destroy(world->backends[i]));  // before what is made from it
    CHECK_OK(quire_prepared_batch_destroy(world->prepared[i]));
    CHECK_OK(quire_kv_cache_destroy(world->caches[i]));
    CHECK_OK(quire_prompt_destroy(world->prompts[i]));
    CHECK_OK(quire_block_manager_validate(world->managers[i]));
    CHECK_OK(quire_block_manager_destroy(world->managers[i]));
    CHECK_OK(quire_scheduler_validate(world->schedulers[i]));
    CHECK_OK(quire_scheduler_destroy(world->schedulers[i]));
  }
  free(world->floats);
  free(world->out);
}

void test_random_arguments(uint64_t seed) {
  World* world = calloc(1, sizeof(World));
  make_world(world, seed);
  for (int round = 0; round < 4000; ++round) {
    world->is_calm = chance(world, 2);
    if (chance(world, 8)) shuffle_arrays(world);
    const int at = (int)below(world, kHandles);
    switch (below(world, 40)) {
      case 0:
        if (chance(world, 10)) random_backend(world, at);
        break;
      case 1:
        if (chance(world, 4)) random_prepared(world, at);
        break;
      case 2:
        random_cache(world, at);
        break;
      case 3:
        random_prompt(world, at);
        break;
      case 4:
        if (chance(world, 8)) random_manager(world, at);
        break;
      case 5:
        if (chance(world, 8)) random_scheduler(world, at);
        break;
      case 6:
        random_merge(world);
        break;
      case 7:
        random_copies(world);
        break;
      default:
        if (chance(world, 3)) {
          random_step(world);
        } else if (chance(world, 2)) {
          random_blocks(world);
        } else {
          random_requests(world);
        }
    }
  }
  CHECK(world->num_ok > 1000);  // it gets past the checks, too
  free_world(world);
  free(world);
}

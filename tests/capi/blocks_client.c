// SPDX-License-Identifier: Apache-2.0
// Blocks through the C interface: a manager driven by hand, prompts, events, copies, memory.
#include <stdlib.h>
#include <string.h>

#include "capi/client.h"

static quire_block_manager* make_manager(int64_t num_blocks, int64_t num_host_blocks,
                                         void (*on_event)(void*, const quire_kv_event*),
                                         void* context) {
  const quire_block_pool pool = {QUIRE_SIZED(quire_block_pool), .num_blocks = num_blocks,
                                 .num_host_blocks = num_host_blocks};
  const quire_layer_group group = {QUIRE_SIZED(quire_layer_group)};
  const quire_block_manager_options options = {QUIRE_SIZED(quire_block_manager_options),
                                               .pools = &pool,
                                               .num_pools = 1,
                                               .groups = &group,
                                               .num_groups = 1,
                                               .on_event = on_event,
                                               .event_context = context,
                                               .block_size = kBlockSize};
  quire_block_manager* manager = NULL;
  CHECK_OK(quire_block_manager_create(&options, &manager));
  return manager;
}

static quire_prompt* make_prompt(int32_t first, int64_t num_tokens) {
  int32_t tokens[64];
  for (int64_t i = 0; i < num_tokens; ++i) tokens[i] = first + (int32_t)i;
  quire_prompt* prompt = NULL;
  CHECK_OK(quire_prompt_create(tokens, num_tokens, kBlockSize, NULL, &prompt));
  return prompt;
}

static uint64_t admit(quire_block_manager* manager, const quire_prompt* prompt, int64_t cached) {
  quire_admission admission = {QUIRE_SIZED(quire_admission)};
  CHECK_OK(quire_block_manager_admit(manager, prompt, NULL, &admission));
  CHECK(admission.status == QUIRE_ADMIT_NOW && admission.sequence != 0);
  CHECK(admission.num_cached_tokens == cached);
  return admission.sequence;
}

static void append(quire_block_manager* manager, uint64_t id, int64_t num_tokens) {
  int32_t can = 0, appended = 0;
  CHECK_OK(quire_block_manager_can_append(manager, id, num_tokens, &can));
  CHECK_OK(quire_block_manager_append(manager, id, num_tokens, &appended));
  CHECK(can == 1 && appended == 1);
}

static int64_t take_copies(quire_block_manager* manager) {
  uint64_t ticket = 0;
  int64_t num_copies = 0;
  CHECK_OK(quire_block_manager_take_copies(manager, &ticket, &num_copies));
  if (num_copies > 0) CHECK_OK(quire_block_manager_complete_copies(manager, ticket));
  return num_copies;
}

static void check_step(const quire_block_manager* manager, uint64_t id) {
  quire_step_sizes sizes = {QUIRE_SIZED(quire_step_sizes)};
  CHECK_OK(quire_block_manager_step_sizes(manager, 0, &id, 1, &sizes));
  CHECK(sizes.num_blocks == 3 && sizes.max_blocks == 3 && sizes.num_slots == 10);
  int32_t query_begins[2], kv_lens[1], indices[3], begins[2];
  int64_t slots[10];
  quire_step_arrays arrays = {QUIRE_SIZED(quire_step_arrays),
                              .query_begins = query_begins,
                              .kv_lens = kv_lens,
                              .block_indices = indices,
                              .num_block_indices = 3,
                              .table_begins = begins,
                              .slots = slots,
                              .num_slots = 10};
  CHECK_OK(quire_block_manager_write_step(manager, 0, &id, 1, &arrays));
  CHECK(query_begins[0] == 0 && query_begins[1] == 10 && kv_lens[0] == 10 && begins[1] == 3);
  for (int i = 0; i < 10; ++i) {
    CHECK(slots[i] == (int64_t)indices[i / kBlockSize] * kBlockSize + i % kBlockSize);
  }
  const int32_t* table = NULL;
  int64_t num_blocks = 0;
  CHECK_OK(quire_block_manager_block_table(manager, id, 0, &table, &num_blocks));
  CHECK(num_blocks == 3 && memcmp(table, indices, sizeof(indices)) == 0);
  arrays.num_slots = 9;
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "slots",
              quire_block_manager_write_step(manager, 0, &id, 1, &arrays));
  arrays.kv_lens = NULL;
  arrays.num_slots = 10;
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "kv_lens",
              quire_block_manager_write_step(manager, 0, &id, 1, &arrays));
}

void test_manual_steps(void) {
  quire_block_manager* manager = make_manager(9, 0, NULL, NULL);
  CHECK_OK(quire_block_manager_reserve(manager, 4, 32));
  quire_prompt* prompt = make_prompt(1, 10);
  const uint64_t first = admit(manager, prompt, 0);
  append(manager, first, 10);
  check_step(manager, first);
  CHECK_OK(quire_block_manager_commit(manager, first, NULL, 10));
  CHECK(take_copies(manager) == 0);

  int64_t cached = 0, needed = 0;
  CHECK_OK(quire_block_manager_num_cached_tokens(manager, prompt, &cached));
  CHECK(cached == 8);
  CHECK_OK(quire_block_manager_num_blocks_to_admit(manager, prompt, NULL, 0, &needed));
  CHECK(needed == 1);
  const uint64_t second = admit(manager, prompt, 8);
  append(manager, second, 2);
  CHECK_OK(quire_block_manager_rollback(manager, second, 2));

  quire_prompt* large = make_prompt(100, 40);
  int32_t status = -1;
  CHECK_OK(quire_block_manager_can_admit(manager, large, NULL, &status));
  CHECK(status == QUIRE_ADMIT_NEVER);
  quire_admission admission = {QUIRE_SIZED(quire_admission)};
  CHECK_OK(quire_block_manager_admit(manager, large, NULL, &admission));
  CHECK(admission.sequence == 0 && admission.status == QUIRE_ADMIT_NEVER);
  CHECK_OK(quire_block_manager_num_blocks_to_append(manager, second, 8, 0, &needed));
  CHECK(needed == 2);
  int32_t appended = 1;
  CHECK_OK(quire_block_manager_append(manager, second, 40, &appended));
  CHECK(appended == 0);
  CHECK_OK(quire_prompt_destroy(large));
  CHECK_OK(quire_prompt_destroy(prompt));
  CHECK_OK(quire_block_manager_destroy(manager));
}

// Of a fork the first to write gets a copy of the last block. Then everything is given back.
void test_forks(void) {
  quire_block_manager* manager = make_manager(9, 0, NULL, NULL);
  quire_prompt* prompt = make_prompt(1, 10);
  const uint64_t first = admit(manager, prompt, 0);
  append(manager, first, 10);
  CHECK_OK(quire_block_manager_commit(manager, first, NULL, 10));
  uint64_t forked = 0;
  CHECK_OK(quire_block_manager_fork(manager, first, &forked));
  append(manager, forked, 1);
  quire_group_copies copies = {QUIRE_SIZED(quire_group_copies)};
  uint64_t ticket = 0;
  int64_t num_copies = 0;
  CHECK_OK(quire_block_manager_take_copies(manager, &ticket, &num_copies));
  CHECK(num_copies == 1);
  CHECK_OK(quire_block_manager_group_copies(manager, 0, &copies));
  CHECK(copies.num_on_device == 1 && copies.on_device[0] != copies.on_device[1]);
  CHECK(copies.num_to_host == 0 && copies.num_to_device == 0 && copies.num_on_host == 0);
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "group",
              quire_block_manager_group_copies(manager, 1, &copies));
  CHECK_OK(quire_block_manager_complete_copies(manager, ticket));
  const int32_t token = 99;
  CHECK_OK(quire_block_manager_commit(manager, forked, &token, 1));
  quire_sequence_info info = {QUIRE_SIZED(quire_sequence_info)};
  CHECK_OK(quire_block_manager_sequence(manager, forked, &info));
  CHECK(info.num_tokens == 11 && info.num_appended == 0 && info.is_swapped == 0);
  int64_t left = 0;
  CHECK_OK(quire_block_manager_truncate(manager, forked, 10, &left));
  CHECK(left == 10);

  char* text = NULL;
  CHECK_OK(quire_block_manager_dump(manager, &text));
  CHECK(text != NULL && strlen(text) > 0);
  quire_text_free(text);
  CHECK_OK(quire_block_manager_free_sequence(manager, first));
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "sequence",
              quire_block_manager_free_sequence(manager, first));
  CHECK_OK(quire_block_manager_free_sequence(manager, forked));
  quire_pool_stats pool = {QUIRE_SIZED(quire_pool_stats)};
  CHECK_OK(quire_block_manager_pool_stats(manager, 0, &pool));
  CHECK(pool.num_usable == 8 && pool.num_in_use == 0 && pool.num_evictable > 0);
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "pool", quire_block_manager_pool_stats(manager, 1, &pool));
  CHECK_OK(quire_block_manager_reset_prefix_cache(manager));
  int64_t cached = -1;
  CHECK_OK(quire_block_manager_num_cached_tokens(manager, prompt, &cached));
  CHECK(cached == 0);
  int32_t resized = 0;
  CHECK_OK(quire_block_manager_resize(manager, 0, 5, &resized));
  CHECK(resized == 1);
  CHECK_OK(quire_block_manager_validate(manager));
  CHECK_OK(quire_prompt_destroy(prompt));
  CHECK_OK(quire_block_manager_destroy(manager));
}

// A window gives back blocks that it has passed; cross-attention holds the encoder's tokens.
void test_groups(void) {
  const quire_block_pool pools[2] = {{QUIRE_SIZED(quire_block_pool), .num_blocks = 32},
                                     {QUIRE_SIZED(quire_block_pool), .num_blocks = 16}};
  const quire_layer_group groups[4] = {
      {QUIRE_SIZED(quire_layer_group)},
      {QUIRE_SIZED(quire_layer_group), .has_window_left = 1, .window_left = 7},
      {QUIRE_SIZED(quire_layer_group), .pool = 1, .chunk = 8, .num_sink_tokens = 4},
      {QUIRE_SIZED(quire_layer_group), .pool = 1, .alignment = QUIRE_UNALIGNED, .not_causal = 1}};
  const quire_block_manager_options options = {QUIRE_SIZED(quire_block_manager_options),
                                               .pools = pools,
                                               .num_pools = 2,
                                               .groups = groups,
                                               .num_groups = 4,
                                               .block_size = kBlockSize};
  quire_block_manager* manager = NULL;
  CHECK_OK(quire_block_manager_create(&options, &manager));
  quire_prompt* prompt = make_prompt(1, 24);
  const quire_admit_options how = {QUIRE_SIZED(quire_admit_options), .num_cross_tokens = 9};
  quire_admission admission = {QUIRE_SIZED(quire_admission)};
  CHECK_OK(quire_block_manager_admit(manager, prompt, &how, &admission));
  append(manager, admission.sequence, 24);
  CHECK_OK(quire_block_manager_commit(manager, admission.sequence, NULL, 24));
  append(manager, admission.sequence, 1);
  const int64_t num_blocks[4] = {7, 7, 7, 3}, num_held[4] = {7, 3, 2, 3};
  for (int32_t group = 0; group < 4; ++group) {
    const int32_t* table = NULL;
    int64_t length = 0, held = 0;
    CHECK_OK(quire_block_manager_block_table(manager, admission.sequence, group, &table, &length));
    for (int64_t i = 0; i < length; ++i) held += table[i] != 0;
    CHECK(length == num_blocks[group] && held == num_held[group]);
  }
  CHECK_OK(quire_prompt_destroy(prompt));
  CHECK_OK(quire_block_manager_destroy(manager));
}

void test_swap(void) {
  quire_block_manager* manager = make_manager(4, 8, NULL, NULL);
  quire_prompt* prompt = make_prompt(1, 9);
  const uint64_t id = admit(manager, prompt, 0);
  append(manager, id, 9);
  CHECK_OK(quire_block_manager_commit(manager, id, NULL, 9));
  int32_t can = 0, swapped = 0, status = -1;
  CHECK_OK(quire_block_manager_can_swap_out(manager, id, &can));
  CHECK_OK(quire_block_manager_swap_out(manager, id, &swapped));
  CHECK(can == 1 && swapped == 1);
  quire_group_copies copies = {QUIRE_SIZED(quire_group_copies)};
  uint64_t ticket = 0;
  int64_t num_copies = 0, needed = 0;
  CHECK_OK(quire_block_manager_take_copies(manager, &ticket, &num_copies));
  CHECK_OK(quire_block_manager_group_copies(manager, 0, &copies));
  CHECK(copies.num_to_host == num_copies && num_copies == 3);
  CHECK_OK(quire_block_manager_complete_copies(manager, ticket));
  quire_sequence_info info = {QUIRE_SIZED(quire_sequence_info)};
  CHECK_OK(quire_block_manager_sequence(manager, id, &info));
  CHECK(info.is_swapped == 1);
  CHECK_OK(quire_block_manager_can_swap_in(manager, id, 0, &status));
  CHECK(status == QUIRE_ADMIT_NOW);
  CHECK_OK(quire_block_manager_num_blocks_to_swap_in(manager, id, 0, 0, &needed));
  CHECK_OK(quire_block_manager_swap_in(manager, id, &swapped));
  CHECK(swapped == 1 && needed == 3);
  CHECK_OK(quire_block_manager_free_sequence(manager, id));
  CHECK_OK(quire_prompt_destroy(prompt));
  CHECK_OK(quire_block_manager_destroy(manager));
}

void test_prompts(void) {
  const int32_t tokens[10] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
  quire_prompt *whole = NULL, *part = NULL, *extended = NULL, *salted = NULL, *unhashed = NULL;
  CHECK_OK(quire_prompt_create(tokens, 10, kBlockSize, NULL, &whole));
  CHECK_OK(quire_prompt_create(tokens, 6, kBlockSize, NULL, &part));
  CHECK_OK(quire_prompt_extended(part, tokens + 6, 4, &extended));
  const int32_t* held = NULL;
  int64_t num_tokens = 0;
  CHECK_OK(quire_prompt_tokens(extended, &held, &num_tokens));
  CHECK(num_tokens == 10 && memcmp(held, tokens, sizeof(tokens)) == 0);
  uint8_t key[32], other[32];
  CHECK_OK(quire_prompt_key(whole, 1, key));
  CHECK_OK(quire_prompt_key(extended, 1, other));
  CHECK(memcmp(key, other, 32) == 0);

  const quire_extra_key image = {QUIRE_SIZED(quire_extra_key), .first_token = 0, .num_tokens = 2,
                                 .bytes = "i", .num_bytes = 1};
  quire_prefix_scope scope = {QUIRE_SIZED(quire_prefix_scope),
                              .salt = "tenant",
                              .salt_bytes = 6,
                              .adapter = "lora",
                              .adapter_bytes = 4,
                              .extra_keys = &image,
                              .num_extra_keys = 1};
  CHECK_OK(quire_prompt_create(tokens, 10, kBlockSize, &scope, &salted));
  CHECK_OK(quire_prompt_key(salted, 1, other));
  CHECK(memcmp(key, other, 32) != 0);
  CHECK_OK(quire_prompt_key(whole, -1, key));
  CHECK_OK(quire_prompt_key(salted, -1, other));
  CHECK(memcmp(key, other, 32) != 0);
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "block", quire_prompt_key(whole, 2, key));
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "block", quire_prompt_key(whole, -2, key));
  scope.unhashed = 1;
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "unhashed",
              quire_prompt_create(tokens, 10, kBlockSize, &scope, &unhashed));
  scope = (quire_prefix_scope){QUIRE_SIZED(quire_prefix_scope), .unhashed = 1};
  CHECK_OK(quire_prompt_create(tokens, 10, kBlockSize, &scope, &unhashed));
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "unhashed", quire_prompt_key(unhashed, 0, key));
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "block_size",
              quire_prompt_create(tokens, 10, 0, NULL, &extended));
  CHECK_OK(quire_prompt_destroy(whole));
  CHECK_OK(quire_prompt_destroy(part));
  CHECK_OK(quire_prompt_destroy(extended));
  CHECK_OK(quire_prompt_destroy(salted));
  CHECK_OK(quire_prompt_destroy(unhashed));
}

typedef struct Events {
  int num_stored, num_removed, num_cleared;
  uint8_t last[32];
} Events;

static void count_event(void* context, const quire_kv_event* event) {
  Events* events = context;
  CHECK(event->struct_bytes == sizeof(*event) && event->group == 0);
  if (event->kind == QUIRE_EVENT_STORED) {
    ++events->num_stored;
    CHECK(event->num_tokens == 0 || event->num_tokens == kBlockSize);
    memcpy(events->last, event->digest, 32);
  }
  if (event->kind == QUIRE_EVENT_REMOVED) ++events->num_removed;
  if (event->kind == QUIRE_EVENT_CLEARED) ++events->num_cleared;
}

void test_events(void) {
  Events events = {0};
  quire_block_manager* manager = make_manager(4, 0, count_event, &events);
  quire_prompt* prompt = make_prompt(1, 8);
  const uint64_t id = admit(manager, prompt, 0);
  append(manager, id, 8);
  CHECK_OK(quire_block_manager_commit(manager, id, NULL, 8));
  uint8_t key[32];
  CHECK_OK(quire_prompt_key(prompt, 1, key));
  CHECK(events.num_stored == 2 && memcmp(key, events.last, 32) == 0);
  CHECK_OK(quire_block_manager_free_sequence(manager, id));
  quire_prompt* other = make_prompt(50, 12);
  append(manager, admit(manager, other, 0), 12);
  CHECK(events.num_removed == 2);
  CHECK_OK(quire_block_manager_reset_prefix_cache(manager));
  CHECK(events.num_cleared == 1);
  CHECK_OK(quire_prompt_destroy(other));
  CHECK_OK(quire_prompt_destroy(prompt));
  CHECK_OK(quire_block_manager_destroy(manager));
}

static void fill_plain(const quire_kv_cache_view* view) {
  for (int64_t b = 0; b < view->num_blocks; ++b) {
    for (int64_t i = 0; i < 2 * 16 * 64; ++i) {
      ((uint16_t*)view->k)[b * view->k_strides[0] + i] = (uint16_t)(b * 7919 + i);
      ((uint16_t*)view->v)[b * view->v_strides[0] + i] = (uint16_t)(b * 104729 + i);
    }
  }
}

static void check_bad_copies(quire_backend* backend, const quire_kv_cache_view* own,
                             const quire_kv_cache_view* flat) {
  const int32_t bad[2] = {1, 4}, twice[4] = {0, 1, 2, 1};
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "4", quire_copy_blocks(backend, own, own, 2, bad, 1, NULL));
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "1", quire_copy_blocks(backend, own, own, 2, twice, 2, NULL));
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "copies",
              quire_copy_blocks(backend, own, own, 2, NULL, 1, NULL));
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "token",
              quire_copy_region(backend, flat, flat, 2, 0, 2, 15, 2, NULL));
}

// Blocks from a plain tensor to the backend's layout, through the host, and back.
void test_copies(void) {
  quire_backend* backend = client_backend("cpu");
  quire_attention_spec spec = client_spec();
  spec.q_dtype = spec.out_dtype = spec.kv_dtype = QUIRE_BF16;
  spec.block_size = 16;
  spec.head_dim = 64;
  CHECK_OK(quire_preferred_layout(backend, &spec, &spec.kv_layout));
  quire_attention_spec plain_spec = spec;
  plain_spec.kv_layout = QUIRE_LAYOUT_PLAIN;
  quire_kv_cache_options options = {QUIRE_SIZED(quire_kv_cache_options), .num_blocks = 4,
                                    .num_layers = 2, .huge_pages = 1};
  quire_kv_cache *cache = NULL, *host = NULL, *plain = NULL;
  CHECK_OK(quire_kv_cache_create(backend, &spec, &options, &cache));
  CHECK_OK(quire_kv_cache_create(backend, &plain_spec, &options, &plain));
  options.on_host = 1;
  CHECK_OK(quire_kv_cache_create(backend, &spec, &options, &host));
  int32_t num_layers = 0;
  int64_t num_blocks = 0, size_bytes = 0;
  CHECK_OK(quire_kv_cache_size(plain, &num_layers, &num_blocks, &size_bytes));
  CHECK(num_layers == 2 && num_blocks == 4 && size_bytes >= 2 * 4 * 2 * 16 * 2 * 64 * 2);

  quire_kv_cache_view own[2], other[2], flat[2];
  for (int32_t layer = 0; layer < 2; ++layer) {
    own[layer] = other[layer] = flat[layer] =
        (quire_kv_cache_view){QUIRE_SIZED(quire_kv_cache_view)};
    CHECK_OK(quire_kv_cache_layer(cache, layer, &own[layer]));
    CHECK_OK(quire_kv_cache_layer(host, layer, &other[layer]));
    CHECK_OK(quire_kv_cache_layer(plain, layer, &flat[layer]));
    CHECK(flat[layer].block_size == 16 && flat[layer].kv_dtype == QUIRE_BF16);
    fill_plain(&flat[layer]);
  }
  // plain 1 -> own 0 -> host 3 -> own 2 -> plain 3.
  const int32_t in[2] = {1, 0}, out[2] = {0, 3}, back[2] = {3, 2}, exported[2] = {2, 3};
  CHECK_OK(quire_import_blocks(backend, flat, own, 2, in, 1, NULL));
  CHECK_OK(quire_copy_blocks(backend, own, other, 2, out, 1, NULL));
  CHECK_OK(quire_kv_cache_copy_blocks(backend, host, cache, back, 1, NULL));
  CHECK_OK(quire_export_blocks(backend, own, flat, 2, exported, 1, NULL));
  for (int32_t layer = 0; layer < 2; ++layer) {
    const uint16_t *k = flat[layer].k, *v = flat[layer].v;
    const int64_t bytes = 2 * 16 * 64 * 2;
    CHECK(memcmp(k + flat[layer].k_strides[0], k + 3 * flat[layer].k_strides[0], (size_t)bytes) ==
          0);
    CHECK(memcmp(v + flat[layer].v_strides[0], v + 3 * flat[layer].v_strides[0], (size_t)bytes) ==
          0);
  }
  CHECK_OK(quire_copy_region(backend, flat, flat, 2, 0, 2, 3, 2, NULL));
  const uint16_t* k = flat[0].k;
  const int64_t at = 4 * flat[0].k_strides[2] + 5;
  CHECK(k[2 * flat[0].k_strides[0] + at] == k[at]);
  CHECK(k[2 * flat[0].k_strides[0]] != k[0]);

  check_bad_copies(backend, own, flat);
  CHECK_OK(quire_kv_cache_destroy(cache));
  CHECK_OK(quire_kv_cache_destroy(host));
  CHECK_OK(quire_kv_cache_destroy(plain));
  CHECK_OK(quire_backend_destroy(backend));
}

void test_memory(void) {
  quire_backend* backend = client_backend("cpu");
  void *device = NULL, *host = NULL, *stream = NULL;
  CHECK_OK(quire_memory_allocate(backend, 1000, &device));
  CHECK_OK(quire_memory_allocate_host(backend, 1000, &host));
  CHECK(device != NULL && (uintptr_t)device % 64 == 0 && host != NULL);
  CHECK_OK(quire_stream_create(backend, &stream));
  memset(host, 42, 1000);
  CHECK_OK(quire_memory_copy_to_device(backend, device, host, 1000, stream));
  memset(host, 0, 1000);
  CHECK_OK(quire_memory_copy_to_host(backend, host, device, 1000, stream));
  CHECK_OK(quire_stream_synchronize(backend, stream));
  CHECK(((const char*)host)[999] == 42);
  CHECK_OK(quire_stream_destroy(backend, stream));
  CHECK_OK(quire_memory_free(backend, device));
  CHECK_OK(quire_memory_free_host(backend, host));
  CHECK_OK(quire_memory_free(backend, NULL));
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "size_bytes", quire_memory_allocate(backend, -1, &device));
  CHECK_FAILS(QUIRE_OUT_OF_MEMORY, "", quire_memory_allocate(backend, INT64_MAX / 2, &device));
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "host",
              quire_memory_copy_to_host(backend, NULL, device, 8, NULL));
  CHECK_OK(quire_backend_destroy(backend));
}

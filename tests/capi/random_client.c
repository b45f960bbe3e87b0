// SPDX-License-Identifier: Apache-2.0
// Random arguments through every call: whatever happens, it is a status. Pointers are NULL, handles
// of any kind, or arrays that are at least as long as the call may read or write; all numbers and
// all contents of arrays are anything. Under a sanitizer this finds what was not checked.
#include <stdlib.h>
#include <string.h>

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

static uint64_t below(World* world, uint64_t n) {
  return next_random(&world->random) % n;
}

static int chance(World* world, uint64_t one_in) {
  return below(world, one_in) == 0;
}

// The same for what makes an argument bad: in calm rounds none is, on purpose.
static int mishap(World* world, uint64_t one_in) {
  return chance(world, one_in) && !world->is_calm;
}

// Small, or one of those that break things.
static int64_t any_integer(World* world) {
  static const int64_t kEvil[] = {-1,        -2,        0,         INT32_MAX, INT32_MIN, INT64_MAX,
                                  INT64_MIN, 1LL << 32, 1LL << 40, 1LL << 62, 4096,      65536};
  if (mishap(world, 12)) return kEvil[below(world, sizeof(kEvil) / sizeof(kEvil[0]))];
  return (int64_t)below(world, 12);
}

static int64_t any_negative(World* world) {
  return (int64_t)(0 - (uint64_t)any_integer(world));
}

static int32_t any_i32(World* world) {
  return (int32_t)any_integer(world);
}

// A length that an array of kArrayLength really has, or one that must be refused.
static int64_t any_length(World* world) {
  if (mishap(world, 10)) return -(int64_t)below(world, 5) - 1;
  return (int64_t)below(world, kArrayLength);
}

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

static void count(World* world, quire_status status) {
  CHECK(status >= QUIRE_OK && status < QUIRE_INTERNAL);  // a broken invariant is a finding too
  if (status == QUIRE_INTERNAL) check_failed(__FILE__, __LINE__, quire_error_message());
  if (status == QUIRE_OK) ++world->num_ok;
}

static void shuffle_arrays(World* world) {
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

// Shapes that may be asked for, in memory that has them all: no stride but 0 leads far.
static const quire_tensor* any_tensor(World* world, int which, int written, int64_t rows,
                                      int64_t heads) {
  quire_tensor* tensor = &world->tensors[which];
  memset(tensor, 0, sizeof(*tensor));
  ANY_HEAD(world, *tensor);
  tensor->data = written ? world->out : world->floats;
  if (which % 2 == 1) tensor->data = (float*)tensor->data + kFloats / 2;
  tensor->rank = 3;
  tensor->shape[0] = rows;
  tensor->shape[1] = heads;
  tensor->shape[2] = kDim;
  if (mishap(world, 10)) tensor->shape[below(world, 3)] = (int64_t)below(world, 20);
  if (mishap(world, 20)) tensor->rank = any_i32(world);
  if (mishap(world, 20)) tensor->dtype = any_i32(world);
  if (mishap(world, 30)) tensor->shape[below(world, 5)] = -(int64_t)below(world, 9);
  if (mishap(world, 30)) tensor->strides[below(world, 3)] = (int64_t)below(world, 200);
  if (mishap(world, 30)) tensor->device_kind = any_i32(world);
  if (mishap(world, 40)) tensor->data = NULL;
  return ANY_OR_NULL(world, tensor);
}

static quire_attention_spec any_spec(World* world) {
  quire_attention_spec spec = client_spec();
  ANY_HEAD(world, spec);
  if (chance(world, 3)) spec.kv_layout = (int32_t)below(world, 2);
  if (chance(world, 6)) spec.features = (uint32_t)below(world, 64);
  if (chance(world, 6)) spec.not_causal = (int32_t)below(world, 2);
  if (chance(world, 6)) spec.has_window_left = 1;
  if (mishap(world, 12)) spec.window_left = any_integer(world);
  if (mishap(world, 12)) spec.chunk = any_integer(world);
  if (mishap(world, 12)) {
    int32_t* fields = &spec.num_q_heads;  // fifteen fields of 32 bits follow each other
    fields[below(world, 15)] = any_i32(world);
  }
  return spec;
}

static void random_prepared(World* world, int at) {
  const quire_attention_spec spec = any_spec(world);
  quire_batch_bounds bounds = {
      .max_sequences = 16, .max_tokens = 128, .max_kv_len = 64, .max_total_kv_len = 512};
  ANY_HEAD(world, bounds);
  if (mishap(world, 6)) (&bounds.max_sequences)[below(world, 5)] = any_integer(world);
  quire_workspace size = {.host = NULL};
  ANY_HEAD(world, size);
  quire_backend* backend = mishap(world, 5) ? ANY_HANDLE(world, backends) : world->backends[at];
  count(world, quire_workspace_size(backend, &spec, &bounds, ANY_OR_NULL(world, &size)));
  // Bounds that are honoured must be paid for: not those of gigabytes.
  size = (quire_workspace){QUIRE_SIZED(quire_workspace)};
  const quire_status known = quire_workspace_size(backend, &spec, &bounds, &size);
  if (known == QUIRE_OK && size.host_bytes > 1 << 24) return;
  quire_prepared_batch* made = NULL;
  count(world,
        quire_prepared_batch_create(backend, &spec, &bounds, NULL, ANY_OR_NULL(world, &made)));
  if (made == NULL) return;
  count(world, quire_prepared_batch_destroy(world->prepared[at]));
  world->prepared[at] = made;
}

static void random_backend(World* world, int at) {
  static const char* const kNames[] = {"cpu", "reference", "none", ""};
  quire_backend_options options = {.num_threads = (int32_t)below(world, 3)};
  ANY_HEAD(world, options);
  if (mishap(world, 10)) options.num_threads = -(int32_t)below(world, 100);
  if (mishap(world, 10)) options.isa = kNames[below(world, 4)];
  if (mishap(world, 10)) options.num_cpus = -1;
  quire_backend* made = NULL;
  count(world, quire_backend_create(ANY_OR_NULL(world, kNames[below(world, 4)]),
                                    ANY_OR_NULL(world, &options), ANY_OR_NULL(world, &made)));
  if (made == NULL) return;
  count(world, quire_backend_destroy(world->backends[at]));
  world->backends[at] = made;
  random_prepared(world, at);
}

static void random_cache(World* world, int at) {
  const quire_attention_spec spec = any_spec(world);
  quire_kv_cache_options options = {.num_blocks = 1 + (int64_t)below(world, 9),
                                    .num_layers = (int32_t)below(world, 3)};
  ANY_HEAD(world, options);
  if (mishap(world, 8)) options.num_blocks = any_negative(world);
  if (mishap(world, 8)) options.num_layers = -(int32_t)below(world, 5);
  if (mishap(world, 8)) options.on_host = any_i32(world);
  quire_kv_cache* made = NULL;
  count(world, quire_kv_cache_create(ANY_HANDLE(world, backends), &spec,
                                     ANY_OR_NULL(world, &options), ANY_OR_NULL(world, &made)));
  if (made == NULL) return;
  // Bytes of its own are not initialised; what attention reads of them must be numbers.
  for (int32_t layer = 0; layer < 3; ++layer) {
    quire_kv_cache_view view = {QUIRE_SIZED(quire_kv_cache_view)};
    if (quire_kv_cache_layer(made, layer, &view) != QUIRE_OK) break;
  }
  count(world, quire_kv_cache_destroy(world->caches[at]));
  world->caches[at] = made;
}

static quire_batch any_batch(World* world) {
  quire_batch batch = {.num_sequences = (int64_t)below(world, 6),
                       .query_begins = world->i32[0],
                       .query_ends = chance(world, 4) ? world->i32[0] + 1 : NULL,
                       .kv_lens = world->i32[2],
                       .block_indices = world->i32[3],
                       .num_block_indices = 60,
                       .row_stride = 10,
                       .table_begins = world->i32[1],
                       .rows = world->i64[0],
                       .slots = world->i64[1],
                       .num_slots = 0};
  ANY_HEAD(world, batch);
  batch.num_slots = world->i32[0][batch.num_sequences];
  if (batch.num_slots < 0 || batch.num_slots > kArrayLength) batch.num_slots = 0;
  if (chance(world, 3)) batch.num_slots = 0;
  for (int64_t i = 0; i < batch.num_sequences && chance(world, 2); ++i) {
    if (world->i32[2][i] < 20) world->i32[2][i] += 3;
  }
  if (mishap(world, 6)) batch.table_kind = any_i32(world);
  if (mishap(world, 15)) batch.row_stride = any_integer(world);
  if (mishap(world, 15)) batch.num_block_indices = any_length(world);
  if (mishap(world, 15)) batch.num_slots = any_length(world);
  if (mishap(world, 15)) batch.num_sequences = -1;
  if (mishap(world, 15)) batch.device_kind = any_i32(world);
  if (mishap(world, 20)) batch.kv_lens = NULL;
  if (mishap(world, 20)) batch.slots = NULL;
  if (mishap(world, 8)) {
    batch.tree_bits = world->bytes;
    batch.num_tree_bytes = any_length(world);
    batch.tree_begins = chance(world, 4) ? NULL : world->i64[2];
    if (mishap(world, 2)) {
      batch.tree_depths = world->i32[4];
      batch.num_tree_depths = any_length(world);
    }
  }
  return batch;
}

static const quire_kv_cache_view* any_view(World* world) {
  memset(&world->view, 0, sizeof(world->view));
  world->view.struct_bytes = sizeof(world->view);
  world->view.struct_version = 1;
  count(world,
        quire_kv_cache_layer(ANY_HANDLE(world, caches), (int32_t)below(world, 2), &world->view));
  if (mishap(world, 10)) {
    int32_t* fields = &world->view.num_kv_heads;
    fields[below(world, 10)] = -1 - (int32_t)below(world, 5);  // what is not there must not be said
  }
  if (mishap(world, 20)) world->view.num_blocks = -(int64_t)below(world, 9);
  if (mishap(world, 20)) world->view.k = NULL;
  return ANY_OR_NULL(world, &world->view);
}

static void random_step(World* world) {
  const int64_t at = (int64_t)below(world, kHandles);
  quire_backend* backend = mishap(world, 10) ? ANY_HANDLE(world, backends) : world->backends[at];
  quire_prepared_batch* prepared =
      mishap(world, 10) ? ANY_HANDLE(world, prepared) : world->prepared[at];
  const quire_batch batch = any_batch(world);
  int32_t unused = 0;
  void* stream = chance(world, 40) ? &unused : NULL;
  count(world, quire_prepare(backend, prepared, &batch, stream));
  const quire_kv_cache_view* view = any_view(world);
  const int64_t rows = kArrayLength;
  const int64_t new_rows = batch.num_slots;
  count(world, quire_append(backend, prepared, any_tensor(world, 0, 0, new_rows, kKvHeads),
                            any_tensor(world, 1, 0, new_rows, kKvHeads), view, stream));
  quire_kv_source source = {.cache = view};
  ANY_HEAD(world, source);
  if (chance(world, 3)) {
    source.new_k = any_tensor(world, 2, 0, new_rows, kKvHeads);
    source.new_v = any_tensor(world, 3, 0, new_rows, kKvHeads);
  }
  quire_tensor lse = {.data = world->out + kFloats / 2 + 8192, .rank = 2, .shape = {rows, kQHeads}};
  ANY_HEAD(world, lse);
  quire_attention_output output = {.out = any_tensor(world, 4, 1, rows, kQHeads),
                                   .lse = chance(world, 3) ? &lse : NULL};
  ANY_HEAD(world, output);
  quire_attention_params params = {.scale = (float)any_integer(world),
                                   .softcap = mishap(world, 4) ? (float)any_integer(world) : 0.0F,
                                   .alibi_slopes = mishap(world, 4) ? world->floats : NULL,
                                   .sinks = mishap(world, 4) ? world->floats : NULL};
  ANY_HEAD(world, params);
  count(world, quire_attend(backend, prepared, ANY_OR_NULL(world, &params),
                            any_tensor(world, 5, 0, rows, kQHeads), ANY_OR_NULL(world, &source),
                            ANY_OR_NULL(world, &output), stream));
  count(world, quire_poll(backend, prepared));
}

static void random_merge(World* world) {
  quire_partial partials[2];
  quire_tensor lse = {.data = world->floats + 100, .rank = 2, .shape = {8, kQHeads}};
  ANY_HEAD(world, lse);
  for (int i = 0; i < 2; ++i) {
    partials[i] = (quire_partial){.out = any_tensor(world, i, 0, 8, kQHeads), .lse = &lse};
    ANY_HEAD(world, partials[i]);
  }
  quire_attention_output output = {.out = any_tensor(world, 4, 1, 8, kQHeads)};
  ANY_HEAD(world, output);
  count(world, quire_merge(ANY_HANDLE(world, backends), ANY_OR_NULL(world, partials),
                           (int64_t)below(world, 4) - 1 == 2 ? 0 : (int64_t)below(world, 3),
                           chance(world, 3) ? world->floats : NULL, &output, NULL));
}

static void random_copies(World* world) {
  quire_kv_cache_view views[2];
  views[0] = views[1] = (quire_kv_cache_view){QUIRE_SIZED(quire_kv_cache_view)};
  if (quire_kv_cache_layer(world->caches[below(world, kHandles)], 0, &views[0]) != QUIRE_OK) return;
  if (quire_kv_cache_layer(world->caches[below(world, kHandles)], 0, &views[1]) != QUIRE_OK) return;
  quire_backend* backend = ANY_HANDLE(world, backends);
  const int64_t num_copies = chance(world, 10) ? -1 : (int64_t)below(world, 4);
  const int32_t* copies = ANY_OR_NULL(world, world->i32[3 + below(world, 3)]);
  const int64_t num_layers = (int64_t)below(world, 3) - 1;
  count(world,
        quire_copy_blocks(backend, &views[0], &views[1], num_layers, copies, num_copies, NULL));
  count(world,
        quire_export_blocks(backend, &views[0], &views[1], num_layers, copies, num_copies, NULL));
  count(world,
        quire_import_blocks(backend, &views[0], &views[1], num_layers, copies, num_copies, NULL));
  count(world, quire_copy_region(backend, &views[0], &views[1], num_layers, any_i32(world),
                                 any_i32(world), any_i32(world), any_i32(world), NULL));
  count(world, quire_kv_cache_copy_blocks(backend, ANY_HANDLE(world, caches),
                                          ANY_HANDLE(world, caches), copies, num_copies, NULL));
}

static void random_prompt(World* world, int at) {
  quire_extra_key key = {.first_token = any_integer(world),
                         .num_tokens = any_integer(world),
                         .bytes = ANY_OR_NULL(world, world->bytes),
                         .num_bytes = any_length(world)};
  ANY_HEAD(world, key);
  quire_prefix_scope scope = {.salt = ANY_OR_NULL(world, world->bytes),
                              .salt_bytes = any_length(world),
                              .extra_keys = &key,
                              .num_extra_keys = chance(world, 3) ? 1 : 0,
                              .unhashed = chance(world, 6) ? any_i32(world) : 0};
  ANY_HEAD(world, scope);
  quire_prompt* made = NULL;
  count(world,
        quire_prompt_create(ANY_OR_NULL(world, world->i32[2 + below(world, 4)]), any_length(world),
                            chance(world, 10) ? any_i32(world) : kBlockSize,
                            chance(world, 2) ? &scope : NULL, &made));
  uint8_t digest[32];
  count(world, quire_prompt_key(made, any_integer(world), digest));
  if (made == NULL) return;
  count(world, quire_prompt_destroy(world->prompts[at]));
  world->prompts[at] = made;
}

static void random_manager(World* world, int at) {
  quire_block_pool pools[2];
  quire_layer_group groups[2];
  for (int i = 0; i < 2; ++i) {
    pools[i] = (quire_block_pool){.num_blocks = 2 + (int64_t)below(world, 20),
                                  .num_host_blocks = (int64_t)below(world, 8),
                                  .watermark_blocks = (int64_t)below(world, 3)};
    ANY_HEAD(world, pools[i]);
    if (mishap(world, 12)) pools[i].num_blocks = any_negative(world);
    groups[i] = (quire_layer_group){.pool = chance(world, 10) ? any_i32(world) : 0};
    ANY_HEAD(world, groups[i]);
    if (chance(world, 4)) groups[i].has_window_left = 1;
    if (mishap(world, 8)) groups[i].window_left = any_integer(world);
    if (mishap(world, 12)) groups[i].chunk = any_integer(world);
    if (mishap(world, 12)) groups[i].num_sink_tokens = any_integer(world);
    if (mishap(world, 12)) groups[i].alignment = any_i32(world);
  }
  quire_block_manager_options options = {
      .pools = pools,
      .num_pools = 1 + (int64_t)below(world, 2) - mishap(world, 8),
      .groups = groups,
      .num_groups = 1 + (int64_t)below(world, 2) - mishap(world, 8),
      .block_size = kBlockSize,
      .share_tails = (int32_t)below(world, 2),
      .compare_tokens = (int32_t)below(world, 2)};
  ANY_HEAD(world, options);
  if (mishap(world, 12)) (&options.block_size)[below(world, 6)] = any_i32(world);
  quire_block_manager* made = NULL;
  count(world, quire_block_manager_create(ANY_OR_NULL(world, &options), &made));
  if (made == NULL) return;
  count(world, quire_block_manager_destroy(world->managers[at]));
  world->managers[at] = made;
}

static void keep_id(World* world, uint64_t id, int owner) {
  const uint64_t at = below(world, 8);
  world->ids[at] = id;
  world->owners[at] = owner;
}

static void random_blocks(World* world) {
  const uint64_t at = below(world, 8);
  const uint64_t id = mishap(world, 15) ? next_random(&world->random) : world->ids[at];
  const int owner =
      mishap(world, 8) || chance(world, 6) ? (int)below(world, kHandles) : world->owners[at];
  quire_block_manager* manager = mishap(world, 25) ? NULL : world->managers[owner];
  const int64_t n = any_integer(world);
  int32_t flag = 0;
  int64_t number64 = 0;
  uint64_t made = 0;
  switch (below(world, 16)) {
    case 0:
    case 1: {
      quire_admit_options options = {.num_lookahead = n, .max_chunk = any_integer(world)};
      ANY_HEAD(world, options);
      quire_admission admission = {.sequence = 0};
      ANY_HEAD(world, admission);
      count(world, quire_block_manager_admit(manager, ANY_HANDLE(world, prompts),
                                             chance(world, 2) ? &options : NULL, &admission));
      if (admission.sequence != 0) keep_id(world, admission.sequence, owner);
      break;
    }
    case 2:
      count(world, quire_block_manager_append(manager, id, n, &flag));
      break;
    case 3:
      count(world, quire_block_manager_commit(manager, id, ANY_OR_NULL(world, world->i32[2]),
                                              any_length(world)));
      break;
    case 4:
      count(world, quire_block_manager_commit(manager, id, NULL, n));
      break;
    case 5:
      count(world, quire_block_manager_rollback(manager, id, n));
      break;
    case 6:
      count(world, quire_block_manager_fork(manager, id, &made));
      if (made != 0) keep_id(world, made, owner);
      break;
    case 7:
      if (chance(world, 3)) count(world, quire_block_manager_free_sequence(manager, id));
      break;
    case 8:
      count(world, quire_block_manager_truncate(manager, id, n, &number64));
      break;
    case 9:
      count(world, quire_block_manager_swap_out(manager, id, &flag));
      break;
    case 10:
      count(world, quire_block_manager_swap_in(manager, id, &flag));
      break;
    case 11:
      count(world, quire_block_manager_take_copies(manager, &made, &number64));
      if (chance(world, 2)) count(world, quire_block_manager_complete_copies(manager, made));
      break;
    case 12: {
      quire_step_arrays arrays = {.query_begins = ANY_OR_NULL(world, world->i32[0]),
                                  .kv_lens = ANY_OR_NULL(world, world->i32[2]),
                                  .block_indices = ANY_OR_NULL(world, world->i32[3]),
                                  .num_block_indices = any_length(world),
                                  .row_stride = (int64_t)below(world, 8),
                                  .table_begins = chance(world, 2) ? world->i32[1] : NULL,
                                  .slots = ANY_OR_NULL(world, world->i64[1]),
                                  .num_slots = any_length(world)};
      ANY_HEAD(world, arrays);
      const uint64_t ids[2] = {id, world->ids[below(world, 8)]};
      count(world, quire_block_manager_write_step(manager, any_i32(world), ids,
                                                  (int64_t)below(world, 3), &arrays));
      break;
    }
    case 13:
      count(world, quire_block_manager_resize(manager, any_i32(world), n % 64, &flag));
      break;
    case 14:
      if (chance(world, 20)) count(world, quire_block_manager_reset_prefix_cache(manager));
      break;
    default: {
      quire_pool_stats stats = {.num_free = 0};
      ANY_HEAD(world, stats);
      count(world, quire_block_manager_pool_stats(manager, any_i32(world), &stats));
      count(world, quire_block_manager_can_swap_in(manager, id, n, &flag));
      count(world,
            quire_block_manager_num_blocks_to_append(manager, id, n, any_i32(world), &number64));
    }
  }
}

static void random_scheduler(World* world, int at) {
  quire_scheduler_options options = {.max_tokens = 16, .max_sequences = 4};
  ANY_HEAD(world, options);
  if (mishap(world, 6)) (&options.max_tokens)[below(world, 6)] = any_integer(world);
  if (mishap(world, 6)) (&options.aging_steps)[below(world, 6)] = any_i32(world);
  if (mishap(world, 6)) options.key_seconds = (double)any_integer(world);
  quire_scheduler* made = NULL;
  // The scheduler takes the manager; the next one is for calls by hand.
  count(world, quire_scheduler_create(ANY_OR_NULL(world, &options), world->managers[at], &made));
  if (made == NULL) return;
  quire_block_manager* driven = world->managers[at];
  while (world->managers[at] == driven) random_manager(world, at);
  count(world, quire_scheduler_destroy(world->schedulers[at]));
  world->schedulers[at] = made;
}

static void random_requests(World* world) {
  quire_scheduler* scheduler = ANY_HANDLE(world, schedulers);
  const uint64_t id = below(world, 12);
  uint64_t made = 0;
  switch (below(world, 8)) {
    case 0:
    case 1: {
      quire_request request = {.prompt = ANY_HANDLE(world, prompts),
                               .max_new_tokens = any_integer(world),
                               .num_cross_tokens = chance(world, 20) ? any_integer(world) : 0,
                               .priority = any_i32(world)};
      ANY_HEAD(world, request);
      count(world, quire_scheduler_submit(scheduler, &request, &made));
      break;
    }
    case 2:
      count(world, quire_scheduler_extend(scheduler, id, ANY_OR_NULL(world, world->i32[2]),
                                          chance(world, 3) ? any_length(world) : 1,
                                          ANY_OR_NULL(world, world->i32[3]),
                                          chance(world, 3) ? any_length(world) : 0));
      break;
    case 3:
      count(world, chance(world, 2) ? quire_scheduler_finish(scheduler, id)
                                    : quire_scheduler_cancel(scheduler, id));
      break;
    case 4:
      count(world, quire_scheduler_fork(scheduler, id, &made));
      break;
    case 5: {
      quire_group_copies copies = {.num_on_host = 0};
      ANY_HEAD(world, copies);
      count(world, quire_scheduler_copies(scheduler, any_integer(world), any_i32(world), &copies));
      quire_batch batch = {.reserved = 0};
      ANY_HEAD(world, batch);
      count(world, quire_scheduler_batch_view(scheduler, any_i32(world), &batch));
      break;
    }
    default: {
      quire_scheduled_batch batch = {.num_tokens = 0};
      ANY_HEAD(world, batch);
      count(world, quire_scheduler_schedule(scheduler, &batch));
      quire_step_result result = {.num_tokens = 0};
      ANY_HEAD(world, result);
      count(world, chance(world, 4) ? quire_scheduler_abandon(scheduler, any_integer(world))
                                    : quire_scheduler_commit(scheduler, &result));
      quire_ready_request ready = {.row = 0};
      ANY_HEAD(world, ready);
      count(world, quire_scheduler_ready(scheduler, any_integer(world), &ready));
    }
  }
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

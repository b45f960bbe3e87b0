// SPDX-License-Identifier: Apache-2.0
// Random arguments: backends, caches, batches, attention, merges and copies.
#include <string.h>

#include "capi/random_world.h"

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

void random_prepared(World* world, int at) {
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

void random_backend(World* world, int at) {
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

void random_cache(World* world, int at) {
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

void random_step(World* world) {
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

void random_merge(World* world) {
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

void random_copies(World* world) {
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

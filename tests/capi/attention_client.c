// SPDX-License-Identifier: Apache-2.0
// Attention through the C interface: caches of quire and of the caller, masks, merges.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "capi/client.h"

enum { kMaxRows = 32 };
static const double kTolerance = 1e-5;

// Two sequences: 7 new tokens from the start, and 3 after 6 that were stored before.
typedef struct Step {
  int32_t tokens[2][9];
  int32_t query_begins[3];
  int32_t kv_lens[2];
  int32_t table[2][3];
  int64_t slots[kMaxRows];
  int32_t row_tokens[kMaxRows];
  int32_t row_positions[kMaxRows];
  int64_t num_rows;
} Step;

// The tokens [first, end) of each sequence.
static void make_step(Step* step, const int32_t* first, const int32_t* end) {
  const int32_t table[2][3] = {{5, 2, 0}, {7, 1, 3}};
  memcpy(step->table, table, sizeof(table));
  step->num_rows = 0;
  for (int s = 0; s < 2; ++s) {
    step->query_begins[s] = (int32_t)step->num_rows;
    step->kv_lens[s] = end[s];
    for (int32_t i = 0; i < 9; ++i) step->tokens[s][i] = 100 * s + 7 * i;
    for (int32_t i = first[s]; i < end[s]; ++i) {
      const int64_t row = step->num_rows++;
      step->row_tokens[row] = step->tokens[s][i];
      step->row_positions[row] = i;
      step->slots[row] = (int64_t)table[s][i / kBlockSize] * kBlockSize + i % kBlockSize;
    }
  }
  step->query_begins[2] = (int32_t)step->num_rows;
}

static quire_batch batch_of(const Step* step) {
  quire_batch batch = {QUIRE_SIZED(quire_batch),
                       .num_sequences = 2,
                       .query_begins = step->query_begins,
                       .kv_lens = step->kv_lens,
                       .block_indices = &step->table[0][0],
                       .num_block_indices = 6,
                       .row_stride = 3,
                       .slots = step->slots,
                       .num_slots = step->num_rows};
  return batch;
}

// Everything that one step of one layer needs.
typedef struct Client {
  quire_backend* backend;
  quire_attention_spec spec;
  quire_kv_cache* cache;
  quire_kv_cache_view layer;
  quire_prepared_batch* prepared;
  float q[kMaxRows * kQHeads * kDim];
  float k[kMaxRows * kKvHeads * kDim];
  float v[kMaxRows * kKvHeads * kDim];
  float out[kMaxRows * kQHeads * kDim];
  float lse[kMaxRows * kQHeads];
} Client;

static Client* make_client_on(quire_backend* backend, uint32_t features) {
  Client* client = calloc(1, sizeof(Client));
  client->backend = backend;
  client->spec = client_spec();
  client->spec.features = features;
  CHECK_OK(quire_preferred_layout(client->backend, &client->spec, &client->spec.kv_layout));
  quire_kv_cache_options options = {QUIRE_SIZED(quire_kv_cache_options), .num_blocks = 8};
  CHECK_OK(quire_kv_cache_create(client->backend, &client->spec, &options, &client->cache));
  client->layer = (quire_kv_cache_view){QUIRE_SIZED(quire_kv_cache_view)};
  CHECK_OK(quire_kv_cache_layer(client->cache, 0, &client->layer));
  quire_batch_bounds bounds = {QUIRE_SIZED(quire_batch_bounds), .max_sequences = 4,
                               .max_tokens = kMaxRows, .max_kv_len = 64, .max_total_kv_len = 256};
  CHECK_OK(quire_prepared_batch_create(client->backend, &client->spec, &bounds, NULL,
                                       &client->prepared));
  return client;
}

static Client* make_client(const char* name, uint32_t features) {
  return make_client_on(client_backend(name), features);
}

// All but the backend.
static void free_client_on(Client* client) {
  CHECK_OK(quire_prepared_batch_destroy(client->prepared));
  CHECK_OK(quire_kv_cache_destroy(client->cache));
  free(client);
}

static void free_client(Client* client) {
  CHECK_OK(quire_backend_destroy(client->backend));
  free_client_on(client);
}

static void fill_client(Client* client, const Step* step) {
  fill_rows(client->q, kQ, 0, step->row_tokens, step->row_positions, step->num_rows, kQHeads);
  fill_rows(client->k, kK, 0, step->row_tokens, step->row_positions, step->num_rows, kKvHeads);
  fill_rows(client->v, kV, 0, step->row_tokens, step->row_positions, step->num_rows, kKvHeads);
}

static void check_rows(const Client* client, const Step* step) {
  for (int s = 0; s < 2; ++s) {
    for (int32_t row = step->query_begins[s]; row < step->query_begins[s + 1]; ++row) {
      CHECK(difference(client->out + (size_t)row * kQHeads * kDim, 0, step->tokens[s],
                       step->row_positions[row] + 1) < kTolerance);
    }
  }
}

static void run_step(Client* client, const Step* step, int fused) {
  fill_client(client, step);
  const quire_batch batch = batch_of(step);
  CHECK_OK(quire_prepare(client->backend, client->prepared, &batch, NULL));
  const quire_tensor q = dense3(client->q, step->num_rows, kQHeads, kDim);
  const quire_tensor k = dense3(client->k, step->num_rows, kKvHeads, kDim);
  const quire_tensor v = dense3(client->v, step->num_rows, kKvHeads, kDim);
  const quire_tensor out = dense3(client->out, step->num_rows, kQHeads, kDim);
  quire_kv_source source = {QUIRE_SIZED(quire_kv_source), .cache = &client->layer};
  if (fused) {
    source.new_k = &k;
    source.new_v = &v;
  } else {
    CHECK_OK(quire_append(client->backend, client->prepared, &k, &v, &client->layer, NULL));
  }
  const quire_attention_output output = {QUIRE_SIZED(quire_attention_output), .out = &out};
  CHECK_OK(quire_attend(client->backend, client->prepared, NULL, &q, &source, &output, NULL));
  CHECK_OK(quire_poll(client->backend, client->prepared));
  check_rows(client, step);
}

static const int32_t kNone[2] = {0, 0}, kFirst[2] = {7, 6}, kSecond[2] = {9, 9};

void run_two_steps(quire_backend* backend, int fused) {
  Client* client = make_client_on(backend, 0);
  Step step;
  make_step(&step, kNone, kFirst);
  run_step(client, &step, fused);
  make_step(&step, kFirst, kSecond);
  run_step(client, &step, fused);
  free_client_on(client);
}

void test_two_steps(const char* name, int fused) {
  quire_backend* backend = client_backend(name);
  run_two_steps(backend, fused);
  CHECK_OK(quire_backend_destroy(backend));
}

// Fills the cache with all tokens and attends the last of each sequence, with lse.
static void attend_last(Client* client, Step* step, const quire_attention_params* params) {
  make_step(step, kNone, kSecond);
  run_step(client, step, 0);
  const int32_t last[2] = {8, 8};
  make_step(step, last, kSecond);
  fill_client(client, step);
  quire_batch batch = batch_of(step);
  batch.slots = NULL;
  batch.num_slots = 0;
  CHECK_OK(quire_prepare(client->backend, client->prepared, &batch, NULL));
  const quire_tensor q = dense3(client->q, 2, kQHeads, kDim);
  const quire_tensor out = dense3(client->out, 2, kQHeads, kDim);
  const quire_tensor lse = {QUIRE_SIZED(quire_tensor), .data = client->lse, .rank = 2,
                            .shape = {2, kQHeads}};
  const quire_kv_source source = {QUIRE_SIZED(quire_kv_source), .cache = &client->layer};
  const quire_attention_output output = {QUIRE_SIZED(quire_attention_output), .out = &out,
                                         .lse = &lse};
  CHECK_OK(quire_attend(client->backend, client->prepared, params, &q, &source, &output, NULL));
}

// A sink is one more key whose value is 0: it scales every row by 1 / (1 + exp(sink - lse)).
void test_sinks_and_bias(void) {
  Client* client = make_client("cpu", QUIRE_FEATURE_LSE | QUIRE_FEATURE_SINKS | QUIRE_FEATURE_BIAS);
  Step step;
  attend_last(client, &step, NULL);
  float plain[2 * kQHeads * kDim];
  memcpy(plain, client->out, sizeof(plain));

  const float sinks[kQHeads] = {0.5F, -1.0F, 2.0F, 0.0F};
  quire_attention_params params = {QUIRE_SIZED(quire_attention_params), .sinks = sinks};
  attend_last(client, &step, &params);
  for (int i = 0; i < 2 * kQHeads * kDim; ++i) {
    const float lse = client->lse[i / kDim];
    const float expected = plain[i] / (1.0F + expf(sinks[i / kDim % kQHeads] - lse));
    CHECK(fabsf(client->out[i] - expected) < 1e-5F);
  }

  // A bias that hides all keys but the first leaves its V.
  float bias_data[9] = {0};
  for (int i = 1; i < 9; ++i) bias_data[i] = -INFINITY;
  const quire_tensor bias = {QUIRE_SIZED(quire_tensor), .data = bias_data, .rank = 4,
                             .shape = {2, kQHeads, 1, 9}, .strides = {0, 0, 0, 1}};
  params = (quire_attention_params){QUIRE_SIZED(quire_attention_params), .bias = &bias};
  attend_last(client, &step, &params);
  for (int i = 0; i < kQHeads * kDim; ++i) {
    const int kv = i / kDim / (kQHeads / kKvHeads) * kDim + i % kDim;
    CHECK(fabsf(client->out[i] - number(kV, 0, step.tokens[0][0], 0, kv)) < 1e-5F);
  }
  free_client(client);
}

// Results may take the place of q, and of nothing else that is read. Q is gone then.
static void check_places_of_results(Client* client, quire_prepared_batch* prepared,
                                    const quire_tensor* q, const quire_kv_source* source) {
  const int64_t num_rows = q->shape[0];
  quire_tensor out = dense3(client->q + kQHeads * kDim, num_rows, kQHeads, kDim);
  const quire_attention_output output = {QUIRE_SIZED(quire_attention_output), .out = &out};
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "out: overlaps q, and is not q element for element",
              quire_attend(client->backend, prepared, NULL, q, source, &output, NULL));
  out.data = client->k;
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "out: overlaps the cache",
              quire_attend(client->backend, prepared, NULL, q, source, &output, NULL));
  out.data = client->q;
  CHECK_OK(quire_attend(client->backend, prepared, NULL, q, source, &output, NULL));
  const size_t bytes = (size_t)num_rows * kQHeads * kDim * sizeof *client->q;
  CHECK(memcmp(client->q, client->out, bytes) == 0);
}

// Keys without blocks: rows of K and V as they come.
void test_ragged(void) {
  Client* client = make_client("cpu", 0);
  Step step;
  make_step(&step, kNone, kSecond);
  fill_client(client, &step);
  quire_attention_spec spec = client->spec;
  spec.block_size = 1;
  spec.kv_layout = QUIRE_LAYOUT_PLAIN;
  const quire_tensor k = dense3(client->k, step.num_rows, kKvHeads, kDim);
  const quire_tensor v = dense3(client->v, step.num_rows, kKvHeads, kDim);
  quire_kv_cache_view view = {QUIRE_SIZED(quire_kv_cache_view)};
  CHECK_OK(quire_view_ragged(&spec, &k, &v, &view));
  const int64_t rows[2] = {0, 9};
  quire_batch batch = batch_of(&step);
  batch.table_kind = QUIRE_TABLE_RAGGED;
  batch.rows = rows;
  batch.block_indices = NULL;
  batch.num_block_indices = batch.row_stride = batch.num_slots = 0;
  batch.slots = NULL;
  const quire_batch_bounds bounds = {QUIRE_SIZED(quire_batch_bounds), .max_sequences = 2,
                                     .max_tokens = 18, .max_kv_len = 9, .max_total_kv_len = 18};
  quire_prepared_batch* prepared = NULL;
  CHECK_OK(quire_prepared_batch_create(client->backend, &spec, &bounds, NULL, &prepared));
  CHECK_OK(quire_prepare(client->backend, prepared, &batch, NULL));
  const quire_tensor q = dense3(client->q, step.num_rows, kQHeads, kDim);
  const quire_tensor out = dense3(client->out, step.num_rows, kQHeads, kDim);
  const quire_kv_source source = {QUIRE_SIZED(quire_kv_source), .cache = &view};
  const quire_attention_output output = {QUIRE_SIZED(quire_attention_output), .out = &out};
  CHECK_OK(quire_attend(client->backend, prepared, NULL, &q, &source, &output, NULL));
  check_rows(client, &step);
  check_places_of_results(client, prepared, &q, &source);
  CHECK_OK(quire_prepared_batch_destroy(prepared));
  free_client(client);
}

// A prepared batch in memory of the caller: exactly what is asked for. Returns that memory.
static void* use_own_workspace(Client* client) {
  const quire_batch_bounds bounds = {QUIRE_SIZED(quire_batch_bounds), .max_sequences = 2,
                                     .max_tokens = kMaxRows, .max_kv_len = 9,
                                     .max_total_kv_len = 18};
  CHECK_OK(quire_prepared_batch_destroy(client->prepared));
  client->prepared = NULL;
  quire_workspace size = {QUIRE_SIZED(quire_workspace)};
  CHECK_OK(quire_workspace_size(client->backend, &client->spec, &bounds, &size));
  CHECK(size.host_bytes > 0 && size.host == NULL);
  size.host = aligned_alloc(64, ((size_t)size.host_bytes + 63) / 64 * 64);
  size.host_bytes -= 1;
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "bytes",
              quire_prepared_batch_create(client->backend, &client->spec, &bounds, &size,
                                          &client->prepared));
  CHECK(client->prepared == NULL);
  size.host_bytes += 1;
  CHECK_OK(quire_prepared_batch_create(client->backend, &client->spec, &bounds, &size,
                                       &client->prepared));
  return size.host;
}

typedef struct PartialRows {
  float out[2 * kQHeads * kDim];
  float lse[2 * kQHeads];
  quire_tensor out_tensor, lse_tensor;
} PartialRows;

// Attention of the step over num_keys keys from a block of each table on.
static void attend_part(Client* client, const Step* step, int first_block, int32_t num_keys,
                        PartialRows* part) {
  const int32_t lens[2] = {num_keys, num_keys};
  int32_t table[2][3] = {{0}};
  for (int s = 0; s < 2; ++s) {
    for (int i = first_block; i < 3; ++i) table[s][i - first_block] = step->table[s][i];
  }
  quire_batch batch = batch_of(step);
  batch.slots = NULL;
  batch.num_slots = 0;
  batch.kv_lens = lens;
  batch.block_indices = &table[0][0];
  CHECK_OK(quire_prepare(client->backend, client->prepared, &batch, NULL));
  const quire_tensor q = dense3(client->q, 2, kQHeads, kDim);
  part->out_tensor = dense3(part->out, 2, kQHeads, kDim);
  part->lse_tensor = (quire_tensor){QUIRE_SIZED(quire_tensor), .data = part->lse, .rank = 2,
                                    .shape = {2, kQHeads}};
  const quire_kv_source source = {QUIRE_SIZED(quire_kv_source), .cache = &client->layer};
  const quire_attention_output output = {QUIRE_SIZED(quire_attention_output),
                                         .out = &part->out_tensor, .lse = &part->lse_tensor};
  CHECK_OK(quire_attend(client->backend, client->prepared, NULL, &q, &source, &output, NULL));
}

// Attention over keys [0, 4) and over [4, 9), merged, is attention over all.
void test_merge(void) {
  Client* client = make_client("cpu", QUIRE_FEATURE_LSE);
  client->spec.not_causal = 1;
  void* memory = use_own_workspace(client);
  Step step;
  make_step(&step, kNone, kSecond);
  fill_client(client, &step);
  const quire_tensor k = dense3(client->k, step.num_rows, kKvHeads, kDim);
  const quire_tensor v = dense3(client->v, step.num_rows, kKvHeads, kDim);
  const quire_batch batch = batch_of(&step);
  CHECK_OK(quire_prepare(client->backend, client->prepared, &batch, NULL));
  CHECK_OK(quire_append(client->backend, client->prepared, &k, &v, &client->layer, NULL));

  const int32_t last[2] = {8, 8};
  make_step(&step, last, kSecond);
  fill_client(client, &step);
  PartialRows parts[2];
  attend_part(client, &step, 0, 4, &parts[0]);
  attend_part(client, &step, 1, 5, &parts[1]);
  quire_partial partials[2];
  for (int i = 0; i < 2; ++i) {
    partials[i] = (quire_partial){QUIRE_SIZED(quire_partial), .out = &parts[i].out_tensor,
                                  .lse = &parts[i].lse_tensor};
  }
  const quire_tensor out = dense3(client->out, 2, kQHeads, kDim);
  const quire_attention_output merged = {QUIRE_SIZED(quire_attention_output), .out = &out};
  CHECK_OK(quire_merge(client->backend, partials, 2, NULL, &merged, NULL));
  check_rows(client, &step);
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "partials",
              quire_merge(client->backend, NULL, 2, NULL, &merged, NULL));
  free_client(client);
  free(memory);
}

// K and V in tensors of the caller, apart and in one.
void test_caller_tensors(void) {
  Client* client = make_client("cpu", 0);
  client->spec.kv_layout = QUIRE_LAYOUT_PLAIN;
  CHECK_OK(quire_prepared_batch_destroy(client->prepared));
  const quire_batch_bounds bounds = {QUIRE_SIZED(quire_batch_bounds), .max_sequences = 2,
                                     .max_tokens = kMaxRows, .max_kv_len = 16,
                                     .max_total_kv_len = 32};
  CHECK_OK(quire_prepared_batch_create(client->backend, &client->spec, &bounds, NULL,
                                       &client->prepared));
  enum { kElements = 8 * kBlockSize * kKvHeads * kDim };
  float* storage = calloc(2 * kElements, sizeof(float));
  quire_tensor k = {QUIRE_SIZED(quire_tensor), .data = storage, .rank = 4,
                    .shape = {8, kBlockSize, kKvHeads, kDim}};
  quire_tensor v = k;
  v.data = storage + kElements;
  Step step;
  make_step(&step, kNone, kSecond);
  CHECK_OK(quire_view_kv(&client->spec, QUIRE_BLOCK_TOKEN_HEAD_DIM, &k, &v, &client->layer));
  run_step(client, &step, 0);

  const quire_tensor kv = {QUIRE_SIZED(quire_tensor), .data = storage, .rank = 5,
                           .shape = {8, 2, kKvHeads, kBlockSize, kDim}};
  CHECK_OK(quire_split_kv(&client->spec, QUIRE_BLOCK_HEAD_TOKEN_DIM, QUIRE_KV_PER_BLOCK, &kv,
                          &client->layer));
  run_step(client, &step, 0);

  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "order",
              quire_view_kv(&client->spec, 2, &k, &v, &client->layer));
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "packing",
              quire_split_kv(&client->spec, 0, 3, &kv, &client->layer));
  free(storage);
  free_client(client);
}

static int num_runs = 0;

static void run_backwards(void* context, int32_t num_tasks, quire_task task, void* task_context) {
  ++*(int*)context;
  while (num_tasks > 0) task(task_context, --num_tasks);
}

void test_executor(void) {
  num_runs = 0;
  const quire_executor executor = {QUIRE_SIZED(quire_executor), .context = &num_runs,
                                   .run = run_backwards, .num_threads = 3};
  const quire_backend_options options = {QUIRE_SIZED(quire_backend_options), .executor = &executor};
  Client* client = make_client("cpu", 0);
  Step step;
  make_step(&step, kNone, kSecond);
  run_step(client, &step, 0);
  float before[kMaxRows * kQHeads * kDim];
  memcpy(before, client->out, sizeof(before));
  quire_backend* other = NULL;
  CHECK_OK(quire_backend_create("cpu", &options, &other));
  quire_prepared_batch* prepared = NULL;
  const quire_batch_bounds bounds = {QUIRE_SIZED(quire_batch_bounds), .max_sequences = 2,
                                     .max_tokens = kMaxRows, .max_kv_len = 16,
                                     .max_total_kv_len = 32};
  CHECK_OK(quire_prepared_batch_create(other, &client->spec, &bounds, NULL, &prepared));
  quire_backend* own_backend = client->backend;
  quire_prepared_batch* own_prepared = client->prepared;
  client->backend = other;
  client->prepared = prepared;
  run_step(client, &step, 0);
  // What is worth more than one thread.
  quire_check_options suite = {QUIRE_SIZED(quire_check_options), .filter = "prefill/*"};
  quire_check_result result = {QUIRE_SIZED(quire_check_result)};
  CHECK_OK(quire_check(other, &suite, &result));
  CHECK(result.num_passed > 0 && result.num_failed == 0 && num_runs > 0);
  CHECK(memcmp(before, client->out, (size_t)step.num_rows * kQHeads * kDim * sizeof(float)) == 0);
  client->backend = own_backend;
  client->prepared = own_prepared;
  CHECK_OK(quire_prepared_batch_destroy(prepared));
  CHECK_OK(quire_backend_destroy(other));
  free_client(client);
}

// SPDX-License-Identifier: Apache-2.0
// A whole engine in C: scheduler, block manager, caches of two layers and their copies, with every
// row that is computed held to naive attention over the tokens of its request.
#include <stdlib.h>
#include <string.h>

#include "capi/client.h"

enum { kRequests = 8, kMaxLength = 48, kMaxTokens = 16 };

typedef struct Engine {
  quire_backend* backend;
  quire_attention_spec spec;
  quire_kv_cache* cache;
  quire_kv_cache* host_cache;  // NULL: no swaps
  quire_block_manager* manager;
  quire_scheduler* scheduler;
  quire_prepared_batch* prepared;
  uint64_t ids[kRequests];
  int32_t tokens[kRequests][kMaxLength];
  int64_t lengths[kRequests];
  int64_t num_finished;
} Engine;

static int index_of(const Engine* engine, uint64_t id) {
  for (int i = 0; i < kRequests; ++i) {
    if (engine->ids[i] == id) return i;
  }
  check_failed(__FILE__, __LINE__, "a request that was never submitted");
  return 0;
}

static void make_manager(Engine* engine, int64_t num_blocks, int64_t num_host_blocks) {
  const quire_block_pool pool = {QUIRE_SIZED(quire_block_pool), .num_blocks = num_blocks,
                                 .num_host_blocks = num_host_blocks};
  const quire_layer_group group = {QUIRE_SIZED(quire_layer_group)};
  const quire_block_manager_options options = {QUIRE_SIZED(quire_block_manager_options),
                                               .pools = &pool,
                                               .num_pools = 1,
                                               .groups = &group,
                                               .num_groups = 1,
                                               .block_size = kBlockSize,
                                               .share_tails = 1};
  CHECK_OK(quire_block_manager_create(&options, &engine->manager));
  const quire_scheduler_options scheduling = {QUIRE_SIZED(quire_scheduler_options),
                                              .max_tokens = kMaxTokens, .max_sequences = kRequests,
                                              .no_partial = 1, .byte_seconds = 1e-15};
  CHECK_OK(quire_scheduler_create(&scheduling, engine->manager, &engine->scheduler));
}

static void make_engine(Engine* engine, int64_t num_blocks, int64_t num_host_blocks) {
  memset(engine, 0, sizeof(*engine));
  engine->backend = client_backend("cpu");
  engine->spec = client_spec();
  CHECK_OK(quire_preferred_layout(engine->backend, &engine->spec, &engine->spec.kv_layout));
  quire_kv_cache_options storage = {QUIRE_SIZED(quire_kv_cache_options), .num_blocks = num_blocks,
                                    .num_layers = kLayers};
  CHECK_OK(quire_kv_cache_create(engine->backend, &engine->spec, &storage, &engine->cache));
  if (num_host_blocks > 0) {
    storage.num_blocks = num_host_blocks;
    storage.on_host = 1;
    CHECK_OK(quire_kv_cache_create(engine->backend, &engine->spec, &storage, &engine->host_cache));
  }
  make_manager(engine, num_blocks, num_host_blocks);
  const quire_batch_bounds bounds = {QUIRE_SIZED(quire_batch_bounds), .max_sequences = kRequests,
                                     .max_tokens = kMaxTokens, .max_kv_len = kMaxLength,
                                     .max_total_kv_len = kRequests * kMaxLength};
  CHECK_OK(quire_prepared_batch_create(engine->backend, &engine->spec, &bounds, NULL,
                                       &engine->prepared));
}

static void free_engine(Engine* engine) {
  CHECK_OK(quire_scheduler_validate(engine->scheduler));
  CHECK_OK(quire_block_manager_validate(engine->manager));
  CHECK_OK(quire_prepared_batch_destroy(engine->prepared));
  CHECK_OK(quire_scheduler_destroy(engine->scheduler));
  CHECK_OK(quire_block_manager_destroy(engine->manager));
  CHECK_OK(quire_kv_cache_destroy(engine->host_cache));
  CHECK_OK(quire_kv_cache_destroy(engine->cache));
  CHECK_OK(quire_backend_destroy(engine->backend));
}

// Requests of which every second shares its first ten tokens.
static void submit_all(Engine* engine) {
  for (int i = 0; i < kRequests; ++i) {
    engine->lengths[i] = 11 + i;
    for (int32_t t = 0; t < engine->lengths[i]; ++t) {
      engine->tokens[i][t] = i % 2 == 0 && t < 10 ? t : 1000 * i + t;
    }
    quire_prompt* prompt = NULL;
    CHECK_OK(quire_prompt_create(engine->tokens[i], engine->lengths[i], kBlockSize, NULL, &prompt));
    const quire_request request = {QUIRE_SIZED(quire_request), .prompt = prompt,
                                   .max_new_tokens = 9};
    CHECK_OK(quire_scheduler_submit(engine->scheduler, &request, &engine->ids[i]));
    CHECK_OK(quire_prompt_destroy(prompt));  // the scheduler keeps what it needs
  }
}

static void run_copies(Engine* engine, int64_t num_stages) {
  for (int64_t stage = 0; stage < num_stages; ++stage) {
    quire_group_copies copies = {QUIRE_SIZED(quire_group_copies)};
    CHECK_OK(quire_scheduler_copies(engine->scheduler, stage, 0, &copies));
    CHECK_OK(quire_kv_cache_copy_blocks(engine->backend, engine->cache, engine->cache,
                                        copies.on_device, copies.num_on_device, NULL));
    if (engine->host_cache == NULL) continue;
    CHECK_OK(quire_kv_cache_copy_blocks(engine->backend, engine->cache, engine->host_cache,
                                        copies.to_host, copies.num_to_host, NULL));
    CHECK_OK(quire_kv_cache_copy_blocks(engine->backend, engine->host_cache, engine->cache,
                                        copies.to_device, copies.num_to_device, NULL));
    CHECK_OK(quire_kv_cache_copy_blocks(engine->backend, engine->host_cache, engine->host_cache,
                                        copies.on_host, copies.num_on_host, NULL));
  }
}

static void check_layer(const Engine* engine, int layer, const quire_scheduled_batch* batch,
                        const float* out) {
  for (int64_t s = 0; s < batch->num_sequences; ++s) {
    quire_scheduled_sequence part = {QUIRE_SIZED(quire_scheduled_sequence)};
    CHECK_OK(quire_scheduler_sequence(engine->scheduler, s, &part));
    const int request = index_of(engine, part.request);
    for (int64_t i = 0; i < part.num_tokens; ++i) {
      const int64_t position = part.first_position + i;
      const int64_t row = part.first_row + i;
      CHECK(batch->tokens[row] == engine->tokens[request][position]);
      CHECK(difference(out + row * kQHeads * kDim, layer, engine->tokens[request], position + 1) <
            1e-5);
    }
  }
}

static void compute(Engine* engine, const quire_scheduled_batch* batch) {
  float q[kMaxTokens * kQHeads * kDim], out[kMaxTokens * kQHeads * kDim];
  float k[kMaxTokens * kKvHeads * kDim], v[kMaxTokens * kKvHeads * kDim];
  const int64_t n = batch->num_tokens;
  quire_batch view = {QUIRE_SIZED(quire_batch)};
  CHECK_OK(quire_scheduler_batch_view(engine->scheduler, 0, &view));
  CHECK_OK(quire_prepare(engine->backend, engine->prepared, &view, NULL));
  for (int layer = 0; layer < kLayers; ++layer) {
    fill_rows(q, kQ, layer, batch->tokens, batch->positions, n, kQHeads);
    fill_rows(k, kK, layer, batch->tokens, batch->positions, n, kKvHeads);
    fill_rows(v, kV, layer, batch->tokens, batch->positions, n, kKvHeads);
    const quire_tensor q_tensor = dense3(q, n, kQHeads, kDim);
    const quire_tensor k_tensor = dense3(k, n, kKvHeads, kDim);
    const quire_tensor v_tensor = dense3(v, n, kKvHeads, kDim);
    const quire_tensor out_tensor = dense3(out, n, kQHeads, kDim);
    quire_kv_cache_view cache = {QUIRE_SIZED(quire_kv_cache_view)};
    CHECK_OK(quire_kv_cache_layer(engine->cache, layer, &cache));
    CHECK_OK(quire_append(engine->backend, engine->prepared, &k_tensor, &v_tensor, &cache, NULL));
    const quire_kv_source source = {QUIRE_SIZED(quire_kv_source), .cache = &cache};
    const quire_attention_output output = {QUIRE_SIZED(quire_attention_output), .out = &out_tensor};
    CHECK_OK(
        quire_attend(engine->backend, engine->prepared, NULL, &q_tensor, &source, &output, NULL));
    check_layer(engine, layer, batch, out);
  }
}

static void take_results(Engine* engine, const quire_step_result* result) {
  for (int64_t i = 0; i < result->num_finished; ++i) {
    quire_finished_request finished = {QUIRE_SIZED(quire_finished_request)};
    CHECK_OK(quire_scheduler_finished(engine->scheduler, i, &finished));
    CHECK(finished.reason == QUIRE_FINISHED_LENGTH && finished.num_new_tokens == 9);
    CHECK(strcmp(finished.detail, "") == 0);
    ++engine->num_finished;
  }
  for (int64_t i = 0; i < result->num_ready; ++i) {
    quire_ready_request ready = {QUIRE_SIZED(quire_ready_request)};
    CHECK_OK(quire_scheduler_ready(engine->scheduler, i, &ready));
    const int request = index_of(engine, ready.request);
    const int32_t token = (int32_t)(5000 * request + engine->lengths[request]);
    engine->tokens[request][engine->lengths[request]++] = token;
    CHECK_OK(quire_scheduler_extend(engine->scheduler, ready.request, &token, 1, NULL, 0));
  }
}

void test_engine_loop(int64_t num_blocks, int64_t num_host_blocks) {
  Engine engine;
  make_engine(&engine, num_blocks, num_host_blocks);
  submit_all(&engine);
  int64_t unfinished = kRequests;
  for (int step = 0; unfinished > 0 && step < 1000; ++step) {
    quire_scheduled_batch batch = {QUIRE_SIZED(quire_scheduled_batch)};
    CHECK_OK(quire_scheduler_schedule(engine.scheduler, &batch));
    run_copies(&engine, batch.num_copy_stages);
    if (step % 5 == 4) {  // the step comes again
      CHECK_OK(quire_scheduler_abandon(engine.scheduler, -1));
      continue;
    }
    if (batch.num_sequences > 0) compute(&engine, &batch);
    quire_step_result result = {QUIRE_SIZED(quire_step_result)};
    CHECK_OK(quire_scheduler_commit(engine.scheduler, &result));
    CHECK(result.num_tokens == batch.num_tokens);
    take_results(&engine, &result);
    CHECK_OK(quire_scheduler_num_unfinished(engine.scheduler, &unfinished));
  }
  quire_scheduled_batch last = {QUIRE_SIZED(quire_scheduled_batch)};
  CHECK_OK(quire_scheduler_schedule(engine.scheduler, &last));
  CHECK(last.num_sequences == 0);
  quire_step_result result = {QUIRE_SIZED(quire_step_result)};
  CHECK_OK(quire_scheduler_commit(engine.scheduler, &result));
  take_results(&engine, &result);
  CHECK(unfinished == 0 && engine.num_finished == kRequests);

  quire_scheduler_stats stats = {QUIRE_SIZED(quire_scheduler_stats)};
  CHECK_OK(quire_scheduler_get_stats(engine.scheduler, &stats));
  CHECK(stats.num_submitted == kRequests && stats.num_finished[QUIRE_FINISHED_LENGTH] == kRequests);
  if (num_blocks < 30) CHECK(stats.num_recomputes + stats.num_swaps > 0);
  if (num_host_blocks > 0) CHECK(stats.num_swaps > 0);
  quire_block_stats blocks = {QUIRE_SIZED(quire_block_stats)};
  CHECK_OK(quire_block_manager_stats(engine.manager, &blocks));
  CHECK(blocks.num_sequences == 0 && blocks.num_hit_tokens > 0);
  CHECK((blocks.num_swapped_out > 0) == (stats.num_swaps > 0));
  free_engine(&engine);
}

static int64_t fixed_clock(void* context) {
  return *(const int64_t*)context;
}

// A scheduler over blocks of its own; the manager's handle is given too.
static quire_scheduler* make_scheduler(int64_t* now, quire_block_manager** manager) {
  const quire_block_pool pool = {QUIRE_SIZED(quire_block_pool), .num_blocks = 32};
  const quire_layer_group group = {QUIRE_SIZED(quire_layer_group)};
  const quire_block_manager_options options = {QUIRE_SIZED(quire_block_manager_options),
                                               .pools = &pool,
                                               .num_pools = 1,
                                               .groups = &group,
                                               .num_groups = 1,
                                               .block_size = kBlockSize};
  CHECK_OK(quire_block_manager_create(&options, manager));
  const quire_scheduler_options scheduling = {QUIRE_SIZED(quire_scheduler_options),
                                              .clock = fixed_clock, .clock_context = now};
  quire_scheduler *scheduler = NULL, *second = NULL;
  CHECK_OK(quire_scheduler_create(&scheduling, *manager, &scheduler));
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "drives", quire_scheduler_create(NULL, *manager, &second));
  return scheduler;
}

static const int32_t kTokens[6] = {1, 2, 3, 4, 5, 6};

static quire_prompt* make_prompt(void) {
  quire_prompt* prompt = NULL;
  CHECK_OK(quire_prompt_create(kTokens, 6, kBlockSize, NULL, &prompt));
  return prompt;
}

// Deadlines, cancels and requests that never fit, and what may not be called when.
void test_scheduler_ends(void) {
  int64_t now = 100;
  quire_block_manager* manager = NULL;
  quire_scheduler* scheduler = make_scheduler(&now, &manager);
  quire_scheduled_sequence part = {QUIRE_SIZED(quire_scheduled_sequence)};
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "scheduled", quire_scheduler_sequence(scheduler, 0, &part));
  quire_prompt* prompt = make_prompt();
  quire_request request = {QUIRE_SIZED(quire_request), .prompt = prompt, .max_new_tokens = 8,
                           .deadline_ns = 150, .has_deadline = 1};
  uint64_t late = 0, id = 0, cancelled = 0, large = 0, forked = 0;
  CHECK_OK(quire_scheduler_submit(scheduler, &request, &late));
  request.has_deadline = 0;
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "has_deadline",
              quire_scheduler_submit(scheduler, &request, &id));
  request.deadline_ns = 0;
  CHECK_OK(quire_scheduler_submit(scheduler, &request, &id));
  CHECK_OK(quire_scheduler_submit(scheduler, &request, &cancelled));
  CHECK(late == 1 && id == 2 && cancelled == 3);
  CHECK_OK(quire_scheduler_cancel(scheduler, cancelled));
  request.max_new_tokens = 1000000;
  CHECK_OK(quire_scheduler_submit(scheduler, &request, &large));
  now = 200;

  quire_scheduled_batch batch = {QUIRE_SIZED(quire_scheduled_batch)};
  quire_step_result result = {QUIRE_SIZED(quire_step_result)};
  CHECK_OK(quire_scheduler_schedule(scheduler, &batch));
  CHECK(batch.num_sequences == 1 && batch.num_tokens == 6);
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "", quire_scheduler_schedule(scheduler, &batch));
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "fork", quire_scheduler_fork(scheduler, id, &forked));
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "num_stages", quire_scheduler_abandon(scheduler, -2));
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "abandon", quire_scheduler_abandon(scheduler, 99));
  CHECK_OK(quire_scheduler_commit(scheduler, &result));
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "", quire_scheduler_commit(scheduler, &result));
  CHECK(result.num_ready == 1 && result.num_finished == 3);
  int32_t reasons = 0;
  for (int64_t i = 0; i < 3; ++i) {
    quire_finished_request finished = {QUIRE_SIZED(quire_finished_request)};
    CHECK_OK(quire_scheduler_finished(scheduler, i, &finished));
    reasons |= 1 << finished.reason;
    if (finished.request == large) CHECK(strlen(finished.detail) > 0);
  }
  CHECK(reasons == (1 << QUIRE_FINISHED_DEADLINE | 1 << QUIRE_FINISHED_CANCELLED |
                    1 << QUIRE_FINISHED_TOO_LARGE));
  CHECK_OK(quire_prompt_destroy(prompt));
  CHECK_OK(quire_scheduler_destroy(scheduler));
  CHECK_OK(quire_block_manager_destroy(manager));
}

void test_scheduler_speculation(void) {
  int64_t now = 0;
  quire_block_manager* manager = NULL;
  quire_scheduler* scheduler = make_scheduler(&now, &manager);
  quire_prompt* prompt = make_prompt();
  const quire_request request = {QUIRE_SIZED(quire_request), .prompt = prompt, .max_new_tokens = 8};
  uint64_t id = 0, forked = 0;
  CHECK_OK(quire_scheduler_submit(scheduler, &request, &id));
  quire_scheduled_batch batch = {QUIRE_SIZED(quire_scheduled_batch)};
  quire_step_result result = {QUIRE_SIZED(quire_step_result)};
  CHECK_OK(quire_scheduler_schedule(scheduler, &batch));
  CHECK_OK(quire_scheduler_commit(scheduler, &result));
  CHECK_OK(quire_scheduler_fork(scheduler, id, &forked));
  CHECK_OK(quire_scheduler_extend(scheduler, id, kTokens, 1, kTokens, 2));
  CHECK_OK(quire_scheduler_finish(scheduler, forked));
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "77",
              quire_scheduler_extend(scheduler, 77, kTokens, 1, NULL, 0));
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "tokens",
              quire_scheduler_extend(scheduler, id, NULL, 1, NULL, 0));
  const int32_t* added = NULL;
  int64_t num_added = 0;
  CHECK_OK(quire_scheduler_new_tokens(scheduler, id, &added, &num_added));
  CHECK(num_added == 1 && added[0] == 1);

  CHECK_OK(quire_scheduler_schedule(scheduler, &batch));
  CHECK(batch.num_tokens == 3);
  quire_scheduled_sequence part = {QUIRE_SIZED(quire_scheduled_sequence)};
  CHECK_OK(quire_scheduler_sequence(scheduler, 0, &part));
  CHECK(part.request == id && part.num_drafts == 2 && part.first_position == 6);
  CHECK_OK(quire_scheduler_commit(scheduler, &result));
  quire_ready_request ready = {QUIRE_SIZED(quire_ready_request)};
  CHECK_OK(quire_scheduler_ready(scheduler, 0, &ready));
  CHECK(ready.request == id && ready.num_drafts == 2);
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "ready", quire_scheduler_ready(scheduler, 1, &ready));

  // The manager belongs to the scheduler: it can be looked at, and its handle may go.
  quire_admission admission = {QUIRE_SIZED(quire_admission)};
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "drives",
              quire_block_manager_admit(manager, prompt, NULL, &admission));
  CHECK_OK(quire_block_manager_validate(manager));
  CHECK_OK(quire_prompt_destroy(prompt));
  CHECK_OK(quire_block_manager_destroy(manager));
  CHECK_OK(quire_scheduler_validate(scheduler));
  CHECK_OK(quire_scheduler_destroy(scheduler));
}

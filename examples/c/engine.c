// SPDX-License-Identifier: Apache-2.0
// An engine in C: requests of different lengths run together, step by step, over one paged cache.
//
// The "model" is one layer of attention whose Q, K and V are looked up by token and position; the
// next token is the largest element of the output. A real engine puts its projections in their
// place and runs the marked part once per layer.
#include <quire/quire.h>
#include <stdio.h>
#include <stdlib.h>

enum { kHeads = 4, kKvHeads = 2, kDim = 32, kBlockSize = 16, kBlocks = 64, kMaxTokens = 64 };

static void must(quire_status status) {
  if (status == QUIRE_OK) return;
  fprintf(stderr, "%s: %s\n", quire_status_name(status), quire_error_message());
  exit(1);
}

static quire_backend* backend;
static quire_kv_cache* cache;
static quire_block_manager* manager;
static quire_scheduler* scheduler;
static quire_prepared_batch* prepared;

static void make_engine(void) {
  quire_attention_spec spec = {QUIRE_SIZED(quire_attention_spec), .num_q_heads = kHeads};
  spec.num_kv_heads = kKvHeads;
  spec.head_dim = kDim;
  must(quire_backend_choose(&spec, NULL, &backend));
  must(quire_preferred_layout(backend, &spec, &spec.kv_layout));
  quire_kv_cache_options storage = {QUIRE_SIZED(quire_kv_cache_options), .num_blocks = kBlocks};
  must(quire_kv_cache_create(backend, &spec, &storage, &cache));
  quire_batch_bounds bounds = {QUIRE_SIZED(quire_batch_bounds), .max_sequences = 8};
  bounds.max_tokens = kMaxTokens;
  bounds.max_kv_len = bounds.max_total_kv_len = kBlocks * kBlockSize;
  must(quire_prepared_batch_create(backend, &spec, &bounds, NULL, &prepared));

  quire_block_pool pool = {QUIRE_SIZED(quire_block_pool), .num_blocks = kBlocks};
  quire_layer_group group = {QUIRE_SIZED(quire_layer_group)};
  quire_block_manager_options blocks = {QUIRE_SIZED(quire_block_manager_options), .pools = &pool};
  blocks.groups = &group;
  blocks.num_pools = blocks.num_groups = 1;
  must(quire_block_manager_create(&blocks, &manager));
  quire_scheduler_options steps = {QUIRE_SIZED(quire_scheduler_options), .max_sequences = 8};
  steps.max_tokens = kMaxTokens;
  steps.wait_for_shared = 1;  // prompts with the same beginning compute it once
  must(quire_scheduler_create(&steps, manager, &scheduler));
}

static void submit(const int32_t* tokens, int64_t num_tokens, int64_t max_new_tokens) {
  quire_request request = {QUIRE_SIZED(quire_request), .max_new_tokens = max_new_tokens};
  quire_prompt* prompt = NULL;
  uint64_t id = 0;
  must(quire_prompt_create(tokens, num_tokens, kBlockSize, NULL, &prompt));
  request.prompt = prompt;
  must(quire_scheduler_submit(scheduler, &request, &id));
  must(quire_prompt_destroy(prompt));
}

// Rows of numbers for the tokens of a step, as a tensor [num_tokens, heads, kDim].
static quire_tensor look_up(float* rows, int what, const quire_scheduled_batch* step, int heads) {
  quire_tensor tensor = {QUIRE_SIZED(quire_tensor), .data = rows, .rank = 3};
  tensor.shape[0] = step->num_tokens;
  tensor.shape[1] = heads;
  tensor.shape[2] = kDim;
  for (int64_t row = 0; row < step->num_tokens; ++row) {
    uint32_t hash = (uint32_t)(step->tokens[row] * 31 + step->positions[row] * 7 + what * 1013);
    for (int i = 0; i < heads * kDim; ++i) {
      hash = hash * 1664525U + 1013904223U;
      *rows++ = (float)(hash >> 8) / (float)(1 << 23) - 1.0F;
    }
  }
  return tensor;
}

static void compute(const quire_scheduled_batch* step, float* out_rows) {
  static float q_rows[kMaxTokens * kHeads * kDim];
  static float k_rows[kMaxTokens * kKvHeads * kDim], v_rows[kMaxTokens * kKvHeads * kDim];
  quire_batch batch = {QUIRE_SIZED(quire_batch)};
  must(quire_scheduler_batch_view(scheduler, 0, &batch));
  must(quire_prepare(backend, prepared, &batch, NULL));
  // From here on once per layer.
  const quire_tensor q = look_up(q_rows, 0, step, kHeads), k = look_up(k_rows, 1, step, kKvHeads);
  const quire_tensor v = look_up(v_rows, 2, step, kKvHeads),
                     out = look_up(out_rows, 3, step, kHeads);
  quire_kv_cache_view layer = {QUIRE_SIZED(quire_kv_cache_view)};
  must(quire_kv_cache_layer(cache, 0, &layer));
  must(quire_append(backend, prepared, &k, &v, &layer, NULL));
  const quire_kv_source source = {QUIRE_SIZED(quire_kv_source), .cache = &layer};
  const quire_attention_output output = {QUIRE_SIZED(quire_attention_output), .out = &out};
  must(quire_attend(backend, prepared, NULL, &q, &source, &output, NULL));
}

static void run_step(void) {
  static float out[kMaxTokens * kHeads * kDim];
  quire_scheduled_batch step = {QUIRE_SIZED(quire_scheduled_batch)};
  must(quire_scheduler_schedule(scheduler, &step));
  for (int64_t stage = 0; stage < step.num_copy_stages; ++stage) {
    quire_group_copies copies = {QUIRE_SIZED(quire_group_copies)};
    must(quire_scheduler_copies(scheduler, stage, 0, &copies));
    const int64_t n = copies.num_on_device;
    must(quire_kv_cache_copy_blocks(backend, cache, cache, copies.on_device, n, NULL));
  }
  if (step.num_tokens > 0) compute(&step, out);
  quire_step_result result = {QUIRE_SIZED(quire_step_result)};
  must(quire_scheduler_commit(scheduler, &result));
  for (int64_t i = 0; i < result.num_ready; ++i) {
    quire_ready_request ready = {QUIRE_SIZED(quire_ready_request)};
    must(quire_scheduler_ready(scheduler, i, &ready));
    const float* row = out + ready.row * kHeads * kDim;
    int32_t token = 0;
    for (int32_t j = 1; j < kHeads * kDim; ++j) token = row[j] > row[token] ? j : token;
    printf("request %d: token %d\n", (int)ready.request, token);
    must(quire_scheduler_extend(scheduler, ready.request, &token, 1, NULL, 0));
  }
}

int main(void) {
  int32_t tokens[40];
  for (int i = 0; i < 40; ++i) tokens[i] = i;
  make_engine();
  for (int64_t length = 20; length <= 40; length += 10) submit(tokens, length, 6);
  for (int64_t unfinished = 1; unfinished > 0;) {
    run_step();
    must(quire_scheduler_num_unfinished(scheduler, &unfinished));
  }
  quire_block_stats stats = {QUIRE_SIZED(quire_block_stats)};
  must(quire_block_manager_stats(manager, &stats));
  printf("%d of %d prompt tokens were cached\n", (int)stats.num_hit_tokens,
         (int)stats.num_prompt_tokens);
  must(quire_scheduler_destroy(scheduler));
  must(quire_block_manager_destroy(manager));
  must(quire_prepared_batch_destroy(prepared));
  must(quire_kv_cache_destroy(cache));
  must(quire_backend_destroy(backend));
  return stats.num_hit_tokens > 0 ? 0 : 1;
}

// SPDX-License-Identifier: Apache-2.0
// What is wrong with arguments: NULL, sizes of structs, values, handles of another kind or owner.
#include <stdlib.h>
#include <string.h>

#include "capi/client.h"

static const quire_status kBad = QUIRE_INVALID_ARGUMENT;

static quire_block_manager* small_manager(void) {
  const quire_block_pool pool = {QUIRE_SIZED(quire_block_pool), .num_blocks = 8};
  const quire_layer_group group = {QUIRE_SIZED(quire_layer_group)};
  const quire_block_manager_options options = {QUIRE_SIZED(quire_block_manager_options),
                                               .pools = &pool, .num_pools = 1, .groups = &group,
                                               .num_groups = 1};
  quire_block_manager* manager = NULL;
  CHECK_OK(quire_block_manager_create(&options, &manager));
  return manager;
}

static void check_null_backends(quire_backend* backend, const quire_attention_spec* spec) {
  quire_backend* made = NULL;
  quire_kv_cache* cache = NULL;
  quire_prepared_batch* prepared = NULL;
  quire_support support = {QUIRE_SIZED(quire_support)};
  quire_kv_cache_view view = {QUIRE_SIZED(quire_kv_cache_view)};
  quire_batch batch = {QUIRE_SIZED(quire_batch)};
  int32_t layout = 0;
  char* text = NULL;
  CHECK_FAILS(kBad, "name", quire_backend_create(NULL, NULL, &made));
  CHECK_FAILS(kBad, "backend", quire_backend_create("cpu", NULL, NULL));
  CHECK_FAILS(kBad, "spec", quire_backend_choose(NULL, NULL, &made));
  CHECK_FAILS(kBad, "backend", quire_supports(NULL, spec, &support, NULL));
  CHECK_FAILS(kBad, "spec", quire_supports(backend, NULL, &support, NULL));
  CHECK_FAILS(kBad, "support", quire_supports(backend, spec, NULL, NULL));
  CHECK_FAILS(kBad, "layout", quire_preferred_layout(backend, spec, NULL));
  CHECK_FAILS(kBad, "backend", quire_preferred_layout(NULL, spec, &layout));
  CHECK_FAILS(kBad, "bounds", quire_prepared_batch_create(backend, spec, NULL, NULL, &prepared));
  CHECK_FAILS(kBad, "options", quire_kv_cache_create(backend, spec, NULL, &cache));
  CHECK_FAILS(kBad, "cache", quire_kv_cache_layer(NULL, 0, &view));
  CHECK_FAILS(kBad, "prepared", quire_prepare(backend, NULL, &batch, NULL));
  CHECK_FAILS(kBad, "prepared", quire_append(backend, NULL, NULL, NULL, &view, NULL));
  CHECK_FAILS(kBad, "prepared", quire_attend(backend, NULL, NULL, NULL, NULL, NULL, NULL));
  CHECK_FAILS(kBad, "output", quire_merge(backend, NULL, 0, NULL, NULL, NULL));
  CHECK_FAILS(kBad, "prepared", quire_poll(backend, NULL));
  CHECK_FAILS(kBad, "src", quire_kv_cache_copy_blocks(backend, NULL, NULL, NULL, 0, NULL));
  CHECK_FAILS(kBad, "views", quire_copy_blocks(backend, NULL, NULL, 1, NULL, 0, NULL));
  CHECK_FAILS(kBad, "data", quire_memory_allocate(backend, 1, NULL));
  CHECK_FAILS(kBad, "backend", quire_stream_synchronize(NULL, NULL));
  CHECK_FAILS(kBad, "spec", quire_attention_spec_text(NULL, &text));
  CHECK_FAILS(kBad, "text", quire_attention_spec_text(spec, NULL));
  CHECK_FAILS(kBad, "backend",
              quire_check(NULL, NULL, &(quire_check_result){QUIRE_SIZED(quire_check_result)}));
  CHECK_FAILS(kBad, "result", quire_check(backend, NULL, NULL));
  CHECK_FAILS(kBad, "info", quire_info_create(NULL));
  CHECK(made == NULL && cache == NULL && prepared == NULL && text == NULL);
}

static void check_null_blocks(quire_block_manager* manager) {
  quire_block_manager* made = NULL;
  quire_scheduler* scheduler = NULL;
  quire_prompt* prompt = NULL;
  quire_admission admission = {QUIRE_SIZED(quire_admission)};
  quire_request request = {QUIRE_SIZED(quire_request)};
  quire_scheduled_batch batch = {QUIRE_SIZED(quire_scheduled_batch)};
  const int32_t token = 1;
  uint64_t id = 0;
  CHECK_FAILS(kBad, "options", quire_block_manager_create(NULL, &made));
  CHECK_FAILS(kBad, "tokens", quire_prompt_create(NULL, 3, 4, NULL, &prompt));
  CHECK_FAILS(kBad, "tokens", quire_prompt_create(&token, -1, 4, NULL, &prompt));
  CHECK_FAILS(kBad, "prompt", quire_prompt_create(&token, 1, 4, NULL, NULL));
  CHECK_FAILS(kBad, "prompt", quire_block_manager_admit(manager, NULL, NULL, &admission));
  CHECK_FAILS(kBad, "manager", quire_block_manager_admit(NULL, NULL, NULL, &admission));
  CHECK_FAILS(kBad, "appended", quire_block_manager_append(manager, 1, 1, NULL));
  CHECK_FAILS(kBad, "ticket", quire_block_manager_take_copies(manager, NULL, NULL));
  CHECK_FAILS(kBad, "manager", quire_scheduler_create(NULL, NULL, &scheduler));
  CHECK_OK(quire_scheduler_create(NULL, manager, &scheduler));
  CHECK_FAILS(kBad, "request", quire_scheduler_submit(scheduler, NULL, &id));
  CHECK_FAILS(kBad, "prompt", quire_scheduler_submit(scheduler, &request, &id));
  CHECK_FAILS(kBad, "id", quire_scheduler_submit(scheduler, &request, NULL));
  CHECK_FAILS(kBad, "batch", quire_scheduler_schedule(scheduler, NULL));
  CHECK_FAILS(kBad, "scheduler", quire_scheduler_schedule(NULL, &batch));
  CHECK_FAILS(kBad, "result", quire_scheduler_commit(scheduler, NULL));
  CHECK_OK(quire_scheduler_destroy(scheduler));
  CHECK(made == NULL && prompt == NULL);
}

void test_null_arguments(void) {
  quire_backend* backend = client_backend("cpu");
  quire_attention_spec spec = client_spec();
  check_null_backends(backend, &spec);
  quire_block_manager* manager = small_manager();
  check_null_blocks(manager);
  CHECK_OK(quire_block_manager_destroy(manager));
  CHECK_OK(quire_backend_destroy(backend));
  // Nothing to destroy is no error.
  CHECK_OK(quire_backend_destroy(NULL));
  CHECK_OK(quire_prepared_batch_destroy(NULL));
  CHECK_OK(quire_kv_cache_destroy(NULL));
  CHECK_OK(quire_prompt_destroy(NULL));
  CHECK_OK(quire_block_manager_destroy(NULL));
  CHECK_OK(quire_scheduler_destroy(NULL));
  CHECK_OK(quire_info_destroy(NULL));
  quire_text_free(NULL);
}

void test_struct_sizes(void) {
  quire_attention_spec spec = client_spec();
  CHECK_OK(quire_attention_spec_validate(&spec));
  CHECK(quire_struct_bytes("quire_attention_spec") == sizeof(spec));
  CHECK(quire_struct_bytes("quire_unknown") == 0 && quire_struct_bytes(NULL) == 0);

  const uint32_t wrong[] = {0, 4, sizeof(spec) - 8, 100000, UINT32_MAX};
  for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); ++i) {
    spec.struct_bytes = wrong[i];
    CHECK_FAILS(kBad, "quire_attention_spec", quire_attention_spec_validate(&spec));
  }
  spec.struct_bytes = sizeof(spec);
  spec.struct_version = 2;
  CHECK_FAILS(kBad, "struct_version", quire_attention_spec_validate(&spec));
  spec.struct_version = 0;
  CHECK_FAILS(kBad, "struct_version", quire_attention_spec_validate(&spec));

  // A program that is newer than the library, with fields that it leaves at 0, and not.
  struct {
    quire_attention_spec spec;
    int64_t newer[2];
  } grown = {client_spec(), {0, 0}};
  grown.spec.struct_bytes = sizeof(grown);
  CHECK_OK(quire_attention_spec_validate(&grown.spec));
  grown.newer[1] = 1;
  CHECK_FAILS(kBad, "newer", quire_attention_spec_validate(&grown.spec));

  // What is written: the rest of a larger struct is 0.
  quire_block_manager* manager = small_manager();
  struct {
    quire_block_stats stats;
    int64_t newer;
  } large = {{QUIRE_SIZED(quire_block_stats)}, 7};
  large.stats.struct_bytes = sizeof(large);
  CHECK_OK(quire_block_manager_stats(manager, &large.stats));
  CHECK(large.newer == 0 && large.stats.struct_bytes == sizeof(large));
  quire_block_stats small = {QUIRE_SIZED(quire_block_stats)};
  small.struct_bytes -= 8;
  CHECK_FAILS(kBad, "quire_block_stats", quire_block_manager_stats(manager, &small));
  CHECK_OK(quire_block_manager_destroy(manager));
}

// In an array all have the size of the first, which is their distance.
void test_struct_arrays(void) {
  quire_block_manager* manager = NULL;
  quire_block_pool pools[2] = {{QUIRE_SIZED(quire_block_pool), .num_blocks = 8},
                               {QUIRE_SIZED(quire_block_pool), .num_blocks = 8}};
  pools[1].struct_bytes += 8;
  const quire_layer_group group = {QUIRE_SIZED(quire_layer_group)};
  const quire_block_manager_options options = {QUIRE_SIZED(quire_block_manager_options),
                                               .pools = pools, .num_pools = 2, .groups = &group,
                                               .num_groups = 1};
  CHECK_FAILS(kBad, "pools", quire_block_manager_create(&options, &manager));
  struct {
    quire_block_pool pool;
    int64_t newer;
  } wide[2] = {{{QUIRE_SIZED(quire_block_pool), .num_blocks = 8}, 0},
               {{QUIRE_SIZED(quire_block_pool), .num_blocks = 9}, 0}};
  wide[0].pool.struct_bytes = wide[1].pool.struct_bytes = sizeof(wide[0]);
  quire_block_manager_options wider = options;
  wider.pools = &wide[0].pool;
  CHECK_OK(quire_block_manager_create(&wider, &manager));
  quire_pool_stats stats = {QUIRE_SIZED(quire_pool_stats)};
  CHECK_OK(quire_block_manager_pool_stats(manager, 1, &stats));
  CHECK(stats.num_usable == 8);
  CHECK_OK(quire_block_manager_destroy(manager));
}

static void check_text(const quire_attention_spec* spec, const char* expected) {
  char* text = NULL;
  CHECK_OK(quire_attention_spec_text(spec, &text));
  if (text != NULL && strcmp(text, expected) != 0) check_failed(__FILE__, __LINE__, text);
  quire_text_free(text);
}

// Every field reaches its place.
void test_spec_fields(void) {
  quire_attention_spec spec = client_spec();
  check_text(&spec, "4/2 heads, dim 16, f32, kv f32 block 4, causal");
  spec = (quire_attention_spec){QUIRE_SIZED(quire_attention_spec),
                                .num_q_heads = 8,
                                .num_kv_heads = 4,
                                .head_dim = 192,
                                .value_dim = 128,
                                .q_dtype = QUIRE_BF16,
                                .kv_dtype = QUIRE_F8E4M3,
                                .kv_scales = QUIRE_SCALES_PER_HEAD,
                                .kv_layout = 300,
                                .not_causal = 1,
                                .has_window_left = 1,
                                .has_window_right = 1,
                                .features = QUIRE_FEATURE_SOFTCAP | QUIRE_FEATURE_ALIBI |
                                            QUIRE_FEATURE_SINKS | QUIRE_FEATURE_BIAS |
                                            QUIRE_FEATURE_LSE,
                                .window_left = 1023,
                                .window_right = 5,
                                .chunk = 64};
  check_text(&spec,
             "8/4 heads, dim 192/128, bf16 out f32, kv f8e4m3 block 16 per-head private 300, full "
             "window 1023:5 chunk 64, softcap, alibi, sinks, bias, lse");
  spec = (quire_attention_spec){QUIRE_SIZED(quire_attention_spec),
                                .num_q_heads = 8,
                                .num_kv_heads = 1,
                                .head_dim = 576,
                                .value_dim = 512,
                                .block_size = 32,
                                .v_in_k = 1,
                                .alignment = QUIRE_UNALIGNED,
                                .not_causal = 1};
  check_text(&spec, "8/1 heads, dim 576/512, f32, kv f32 block 32 v-in-k, unaligned");
}

static void check_spec(quire_attention_spec spec, const char* word) {
  CHECK_FAILS(kBad, word, quire_attention_spec_validate(&spec));
}

void test_bad_values(void) {
  quire_attention_spec spec = client_spec();
  spec.num_kv_heads = 3;
  check_spec(spec, "num_kv_heads");
  spec = client_spec();
  spec.q_dtype = 6;
  check_spec(spec, "q_dtype");
  spec.q_dtype = -1;
  check_spec(spec, "q_dtype");
  spec = client_spec();
  spec.window_left = 5;
  check_spec(spec, "has_window_left");
  spec.has_window_left = 2;
  check_spec(spec, "has_window_left");
  spec = client_spec();
  spec.features = 64;
  check_spec(spec, "features");
  spec = client_spec();
  spec.kv_layout = 70000;
  check_spec(spec, "kv_layout");
  spec = client_spec();
  spec.block_size = -4;
  check_spec(spec, "block_size");

  quire_backend* backend = NULL;
  CHECK_FAILS(kBad, "no backend", quire_backend_create("nonsense", NULL, &backend));
  quire_backend_options options = {QUIRE_SIZED(quire_backend_options), .isa = "mmx"};
  CHECK_FAILS(kBad, "mmx", quire_backend_create("cpu", &options, &backend));
  options.isa = NULL;
  options.num_threads = -1;
  CHECK_FAILS(kBad, "num_threads", quire_backend_create("cpu", &options, &backend));
  options.num_threads = 0;
  options.num_cpus = 2;
  CHECK_FAILS(kBad, "cpus", quire_backend_create("cpu", &options, &backend));
  const quire_executor executor = {QUIRE_SIZED(quire_executor), .num_threads = 1};
  options.num_cpus = 0;
  options.executor = &executor;
  CHECK_FAILS(kBad, "run", quire_backend_create("cpu", &options, &backend));
  CHECK(backend == NULL);
}

void test_bad_caches(void) {
  quire_attention_spec spec = client_spec();
  char* text = NULL;
  quire_backend* backend = client_backend("cpu");
  quire_kv_cache_options storage = {QUIRE_SIZED(quire_kv_cache_options), .num_blocks = 0};
  quire_kv_cache* cache = NULL;
  CHECK_FAILS(kBad, "num_blocks", quire_kv_cache_create(backend, &spec, &storage, &cache));
  storage.num_blocks = 2;
  spec.kv_layout = 300;
  CHECK_FAILS(kBad, "layout", quire_kv_cache_create(backend, &spec, &storage, &cache));
  spec.kv_layout = 0;
  CHECK_OK(quire_kv_cache_create(backend, &spec, &storage, &cache));
  quire_kv_cache_view view = {QUIRE_SIZED(quire_kv_cache_view)};
  CHECK_FAILS(kBad, "layer", quire_kv_cache_layer(cache, 1, &view));
  CHECK_FAILS(kBad, "layer", quire_kv_cache_layer(cache, -1, &view));
  quire_support support = {QUIRE_SIZED(quire_support)};
  CHECK_OK(quire_supports(backend, &spec, &support, &text));
  CHECK(support.supported == 1 && support.fused_append == 0 && strcmp(text, "") == 0);
  quire_text_free(text);
  spec.kv_layout = 300;
  CHECK_OK(quire_supports(backend, &spec, &support, &text));
  CHECK(support.supported == 0 && strlen(text) > 0);
  quire_text_free(text);
  CHECK_OK(quire_kv_cache_destroy(cache));
  CHECK_OK(quire_backend_destroy(backend));
}

// Handles of another kind, and of another owner.
void test_foreign_handles(void) {
  quire_backend *first = client_backend("cpu"), *second = client_backend("cpu");
  quire_block_manager* manager = small_manager();
  int32_t layout = 0;
  const quire_attention_spec spec = client_spec();
  CHECK_FAILS(kBad, "a block manager, not a backend",
              quire_preferred_layout((quire_backend*)manager, &spec, &layout));
  CHECK_FAILS(kBad, "a backend, not a kv cache", quire_kv_cache_destroy((quire_kv_cache*)first));
  uint64_t nothing[4] = {1, 2, 3, 4};
  CHECK_FAILS(kBad, "no handle", quire_block_manager_validate((const quire_block_manager*)nothing));

  const quire_batch_bounds bounds = {QUIRE_SIZED(quire_batch_bounds), .max_sequences = 1,
                                     .max_tokens = 1, .max_kv_len = 1, .max_total_kv_len = 1};
  quire_prepared_batch* prepared = NULL;
  CHECK_OK(quire_prepared_batch_create(first, &spec, &bounds, NULL, &prepared));
  const int32_t begins[1] = {0};
  const quire_batch batch = {QUIRE_SIZED(quire_batch), .query_begins = begins};
  CHECK_OK(quire_prepare(first, prepared, &batch, NULL));
  CHECK_FAILS(kBad, "another backend", quire_prepare(second, prepared, &batch, NULL));
  CHECK_FAILS(kBad, "another backend", quire_poll(second, prepared));
  CHECK_FAILS(kBad, "stream", quire_prepare(first, prepared, &batch, &layout));

  // After a prepare that failed, whatever the reason, there is no batch: not an earlier one.
  CHECK_OK(quire_prepare(first, prepared, &batch, NULL));
  CHECK_FAILS(kBad, "batch", quire_prepare(first, prepared, NULL, NULL));
  CHECK_FAILS(kBad, "prepare was not called or has failed",
              quire_attend(first, prepared, NULL, NULL, NULL, NULL, NULL));

  // The sequence of another manager is none of this one.
  quire_block_manager* other = small_manager();
  const int32_t tokens[3] = {1, 2, 3};
  quire_prompt* prompt = NULL;
  CHECK_OK(quire_prompt_create(tokens, 3, 16, NULL, &prompt));
  quire_admission admission = {QUIRE_SIZED(quire_admission)};
  CHECK_OK(quire_block_manager_admit(other, prompt, NULL, &admission));
  CHECK_FAILS(kBad, "sequence", quire_block_manager_free_sequence(manager, admission.sequence));
  CHECK_FAILS(kBad, "sequence", quire_block_manager_free_sequence(manager, UINT64_MAX));
  CHECK_FAILS(kBad, "sequences that no scheduler",
              quire_scheduler_create(NULL, other, &(quire_scheduler*){NULL}));
  CHECK_OK(quire_prompt_destroy(prompt));
  CHECK_OK(quire_block_manager_destroy(other));
  CHECK_OK(quire_block_manager_destroy(manager));
  CHECK_OK(quire_prepared_batch_destroy(prepared));
  CHECK_OK(quire_backend_destroy(second));
  CHECK_OK(quire_backend_destroy(first));
}

// What a handle is made from may be destroyed before it.
void test_lifetimes(void) {
  quire_backend* backend = client_backend("cpu");
  const quire_attention_spec spec = client_spec();
  const quire_kv_cache_options storage = {QUIRE_SIZED(quire_kv_cache_options), .num_blocks = 4};
  quire_kv_cache* cache = NULL;
  CHECK_OK(quire_kv_cache_create(backend, &spec, &storage, &cache));
  quire_backend_info info = {QUIRE_SIZED(quire_backend_info)};
  CHECK_OK(quire_backend_describe(backend, &info));
  CHECK(strcmp(info.name, "cpu") == 0 && info.available == 1 && strlen(info.isa) > 0);
  CHECK(strlen(info.summary) > 0 && info.automatic == 1 && info.device_kind == QUIRE_HOST);
  CHECK_OK(quire_backend_destroy(backend));
  quire_kv_cache_view view = {QUIRE_SIZED(quire_kv_cache_view)};
  CHECK_OK(quire_kv_cache_layer(cache, 0, &view));
  memset(view.k, 1, 64);
  CHECK_OK(quire_kv_cache_destroy(cache));
  quire_backend* chosen = NULL;
  CHECK_OK(quire_backend_choose(&spec, NULL, &chosen));
  CHECK_OK(quire_backend_destroy(chosen));
}

// Numbers that are compiled into programs.
void test_constants(void) {
  CHECK(QUIRE_OK == 0 && QUIRE_INTERNAL == 6 && QUIRE_STRUCT_VERSION == 1);
  CHECK(QUIRE_F32 == 0 && QUIRE_F16 == 1 && QUIRE_BF16 == 2 && QUIRE_I8 == 5);
  CHECK(QUIRE_FEATURE_SOFTCAP == 1 && QUIRE_FEATURE_LSE == 32);
  CHECK(QUIRE_TABLE_PADDED == 0 && QUIRE_TABLE_RAGGED == 2 && QUIRE_LAYOUT_FIRST_PRIVATE == 256);
  CHECK(strcmp(quire_status_name(QUIRE_OUT_OF_MEMORY), "out_of_memory") == 0);
  CHECK(strcmp(quire_status_name(-1), "unknown") == 0);
  CHECK(strcmp(quire_dtype_name(QUIRE_F8E4M3), "f8e4m3") == 0);
  CHECK(strcmp(quire_dtype_name(17), "unknown") == 0);
  CHECK(strncmp(quire_version(), "0.", 2) == 0);
}

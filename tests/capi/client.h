// SPDX-License-Identifier: Apache-2.0
// What the C programs of these tests share: checks, made-up numbers, and attention as a textbook
// has it. Everything that includes this, but for capi_test.cc, is C11.
#pragma once

#include <quire/quire.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Reports a failure to the test that runs, and goes on.
void check_failed(const char* file, int line, const char* text);

#define CHECK(condition)                                            \
  do {                                                              \
    if (!(condition)) check_failed(__FILE__, __LINE__, #condition); \
  } while (0)
// A call that must succeed; its text is part of the failure.
#define CHECK_OK(call)                                                               \
  do {                                                                               \
    if ((call) != QUIRE_OK) check_failed(__FILE__, __LINE__, quire_error_message()); \
  } while (0)
// A call that must fail with a status and a text that holds a word.
#define CHECK_FAILS(status, word, call) \
  check_fails(__FILE__, __LINE__, #call, (status), (word), (call))
void check_fails(const char* file, int line, const char* text, quire_status expected,
                 const char* word, quire_status got);

// Shapes of the client's one model.
enum { kQHeads = 4, kKvHeads = 2, kDim = 16, kLayers = 2, kBlockSize = 4 };

quire_attention_spec client_spec(void);
quire_tensor dense3(float* data, int64_t rows, int64_t heads, int64_t dim);
quire_backend* client_backend(const char* name);

// Numbers of [-1, 1) for K, V and Q of a token at a position in a layer.
enum { kQ, kK, kV };
float number(int what, int layer, int32_t token, int64_t position, int i);
// Fills data [rows, heads, dim].
void fill_rows(float* data, int what, int layer, const int32_t* tokens, const int32_t* positions,
               int64_t rows, int heads);
// The largest difference of out [kQHeads, kDim] from causal attention of the last of the tokens
// [num_tokens] over all of them.
double difference(const float* out, int layer, const int32_t* tokens, int64_t num_tokens);

// Two steps of attention with a cache and a prepared batch of their own, held to `difference`.
void run_two_steps(quire_backend* backend, int fused);

// A stream of random numbers.
uint64_t next_random(uint64_t* state);

// The tests.
void test_two_steps(const char* name, int fused);
void test_sinks_and_bias(void);
void test_ragged(void);
void test_merge(void);
void test_caller_tensors(void);
void test_executor(void);
void test_copies(void);
void test_memory(void);
void test_engine_loop(int64_t num_blocks, int64_t num_host_blocks);
void test_scheduler_ends(void);
void test_scheduler_speculation(void);
void test_manual_steps(void);
void test_forks(void);
void test_groups(void);
void test_swap(void);
void test_prompts(void);
void test_events(void);
void test_null_arguments(void);
void test_struct_sizes(void);
void test_struct_arrays(void);
void test_spec_fields(void);
void test_bad_values(void);
void test_bad_caches(void);
void test_foreign_handles(void);
void test_lifetimes(void);
void test_error_per_thread(void);
void test_shared_backend(void);
void test_submit_from_threads(void);
void test_constants(void);
void test_info(void);
void test_check(void);
void test_random_arguments(uint64_t seed);

#ifdef __cplusplus
}
#endif

// SPDX-License-Identifier: Apache-2.0
// What the C interface allows several threads: an error text of each, one backend for all, requests
// from anywhere.
#include <pthread.h>
#include <string.h>

#include "capi/client.h"

enum { kThreads = 4, kRequestsEach = 25 };

static void run_threads(void* (*function)(void*), void* argument) {
  pthread_t threads[kThreads];
  for (int i = 0; i < kThreads; ++i) {
    CHECK(pthread_create(&threads[i], NULL, function, argument) == 0);
  }
  for (int i = 0; i < kThreads; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
}

static void* fail_elsewhere(void* unused) {
  (void)unused;
  CHECK(strcmp(quire_error_message(), "") == 0);  // this thread has not failed yet
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "no backend",
              quire_backend_create("elsewhere", NULL, &(quire_backend*){NULL}));
  return NULL;
}

void test_error_per_thread(void) {
  const quire_attention_spec none = {QUIRE_SIZED(quire_attention_spec)};
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "num_q_heads", quire_attention_spec_validate(&none));
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, fail_elsewhere, NULL) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(strstr(quire_error_message(), "num_q_heads") != NULL);
  // A call that succeeds leaves the text.
  const quire_attention_spec good = client_spec();
  CHECK_OK(quire_attention_spec_validate(&good));
  CHECK(strstr(quire_error_message(), "num_q_heads") != NULL);
}

static void* attend_on(void* backend) {
  for (int i = 0; i < 10; ++i) run_two_steps(backend, i % 2);
  return NULL;
}

void test_shared_backend(void) {
  quire_backend* backend = client_backend("cpu");
  run_threads(attend_on, backend);
  CHECK_OK(quire_backend_destroy(backend));
}

typedef struct Submissions {
  quire_scheduler* scheduler;
  quire_prompt* prompt;
} Submissions;

static void* submit_some(void* context) {
  const Submissions* submissions = context;
  for (int i = 0; i < kRequestsEach; ++i) {
    const quire_request request = {QUIRE_SIZED(quire_request), .prompt = submissions->prompt,
                                   .max_new_tokens = 0};
    uint64_t id = 0;
    CHECK_OK(quire_scheduler_submit(submissions->scheduler, &request, &id));
    CHECK(id > 0);
    if (i % 5 == 0) CHECK_OK(quire_scheduler_cancel(submissions->scheduler, id));
  }
  return NULL;
}

static void* submit_from_all(void* context) {
  run_threads(submit_some, context);
  return NULL;
}

// One thread steps while others submit and cancel.
void test_submit_from_threads(void) {
  const quire_block_pool pool = {QUIRE_SIZED(quire_block_pool), .num_blocks = 16};
  const quire_layer_group group = {QUIRE_SIZED(quire_layer_group)};
  const quire_block_manager_options options = {QUIRE_SIZED(quire_block_manager_options),
                                               .pools = &pool,
                                               .num_pools = 1,
                                               .groups = &group,
                                               .num_groups = 1,
                                               .block_size = kBlockSize};
  quire_block_manager* manager = NULL;
  CHECK_OK(quire_block_manager_create(&options, &manager));
  Submissions submissions = {NULL, NULL};
  CHECK_OK(quire_scheduler_create(NULL, manager, &submissions.scheduler));
  const int32_t tokens[5] = {1, 2, 3, 4, 5};
  CHECK_OK(quire_prompt_create(tokens, 5, kBlockSize, NULL, &submissions.prompt));
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, submit_from_all, &submissions) == 0);
  int64_t num_finished = 0;
  while (num_finished < kThreads * kRequestsEach) {
    quire_scheduled_batch batch = {QUIRE_SIZED(quire_scheduled_batch)};
    quire_step_result result = {QUIRE_SIZED(quire_step_result)};
    int64_t unfinished = 0;
    CHECK_OK(quire_scheduler_num_unfinished(submissions.scheduler, &unfinished));
    CHECK_OK(quire_scheduler_schedule(submissions.scheduler, &batch));
    CHECK_OK(quire_scheduler_commit(submissions.scheduler, &result));
    num_finished += result.num_finished;
  }
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(num_finished == kThreads * kRequestsEach);
  CHECK_OK(quire_scheduler_validate(submissions.scheduler));
  CHECK_OK(quire_prompt_destroy(submissions.prompt));
  CHECK_OK(quire_scheduler_destroy(submissions.scheduler));
  CHECK_OK(quire_block_manager_destroy(manager));
}

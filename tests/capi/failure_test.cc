// SPDX-License-Identifier: Apache-2.0
// Memory runs out at every allocation of every call of the C interface, one after the other: the
// call says so, gives no result, and succeeds when there is memory again.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "allocation/allocations.h"
#include "capi/client.h"

extern "C" void check_failed(const char* file, int line, const char* text) {
  ADD_FAILURE_AT(file, line) << text;
}

namespace {

template <class T>
T sized() {
  T made{};
  made.struct_bytes = sizeof(T);
  made.struct_version = QUIRE_STRUCT_VERSION;
  return made;
}

// Repeats `call` with 0, 1, ... allocations until it succeeds; returns how often it did not.
template <class Call>
int attempt(const char* name, const Call& call) {
  for (int allowed = 0; allowed < 5000; ++allowed) {
    quire::test::allow_allocations(allowed);
    const quire_status status = call();
    quire::test::allow_allocations(-1);
    if (status == QUIRE_OK) return allowed;
    EXPECT_EQ(status, QUIRE_OUT_OF_MEMORY) << name << ": " << quire_error_message();
    EXPECT_NE(std::strlen(quire_error_message()), 0U) << name;
    if (status != QUIRE_OUT_OF_MEMORY) break;
  }
  ADD_FAILURE() << name << " never succeeded";
  return 0;
}

// The same for a call that makes a handle: none but the last attempt gives one.
template <class Handle, class Create>
Handle* attempt_create(const char* name, const Create& create) {
  Handle* made = nullptr;
  const int num_failures = attempt(name, [&] {
    EXPECT_EQ(made, nullptr) << name;
    return create(&made);
  });
  EXPECT_GT(num_failures, 0) << name << " allocates nothing";
  return made;
}

TEST(CFailure, Backends) {
  quire_attention_spec spec = client_spec();
  auto* backend = attempt_create<quire_backend>("backend_create", [](quire_backend** out) {
    auto options = sized<quire_backend_options>();
    options.num_threads = 1;
    return quire_backend_create("cpu", &options, out);
  });
  auto storage = sized<quire_kv_cache_options>();
  storage.num_blocks = 8;
  auto* cache = attempt_create<quire_kv_cache>("kv_cache_create", [&](quire_kv_cache** out) {
    return quire_kv_cache_create(backend, &spec, &storage, out);
  });
  auto bounds = sized<quire_batch_bounds>();
  bounds.max_sequences = bounds.max_tokens = bounds.max_kv_len = bounds.max_total_kv_len = 16;
  auto* prepared = attempt_create<quire_prepared_batch>(
      "prepared_batch_create", [&](quire_prepared_batch** out) {
        return quire_prepared_batch_create(backend, &spec, &bounds, nullptr, out);
      });

  auto view = sized<quire_kv_cache_view>();
  ASSERT_EQ(quire_kv_cache_layer(cache, 0, &view), QUIRE_OK);
  const std::vector<int32_t> copies = {1, 2, 3, 4};
  EXPECT_GT(attempt("copy_blocks",
                    [&] {
                      return quire_copy_blocks(backend, &view, &view, 1, copies.data(), 2, nullptr);
                    }),
            0);
  spec.kv_layout = 300;
  auto support = sized<quire_support>();
  char* reasons = nullptr;
  EXPECT_GT(attempt("supports", [&] { return quire_supports(backend, &spec, &support, &reasons); }),
            0);
  EXPECT_EQ(support.supported, 0);
  quire_text_free(reasons);

  EXPECT_EQ(quire_prepared_batch_destroy(prepared), QUIRE_OK);
  EXPECT_EQ(quire_kv_cache_destroy(cache), QUIRE_OK);
  EXPECT_EQ(quire_backend_destroy(backend), QUIRE_OK);
}

std::string dump(const quire_block_manager* manager) {
  char* text = nullptr;
  EXPECT_EQ(quire_block_manager_dump(manager, &text), QUIRE_OK);
  std::string copy = text;
  quire_text_free(text);
  return copy;
}

quire_block_manager* make_manager(quire_status* status) {
  auto pool = sized<quire_block_pool>();
  pool.num_blocks = 32;
  const auto group = sized<quire_layer_group>();
  auto options = sized<quire_block_manager_options>();
  options.pools = &pool;
  options.groups = &group;
  options.num_pools = options.num_groups = 1;
  options.block_size = kBlockSize;
  quire_block_manager* manager = nullptr;
  *status = quire_block_manager_create(&options, &manager);
  return manager;
}

quire_block_manager* attempt_manager() {
  return attempt_create<quire_block_manager>("block_manager_create", [](quire_block_manager** out) {
    quire_status status = QUIRE_OK;
    *out = make_manager(&status);
    return status;
  });
}

quire_prompt* attempt_prompt() {
  std::vector<int32_t> tokens(30);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
  return attempt_create<quire_prompt>("prompt_create", [&](quire_prompt** out) {
    return quire_prompt_create(tokens.data(), 30, kBlockSize, nullptr, out);
  });
}

TEST(CFailure, Blocks) {
  quire_block_manager* manager = attempt_manager();
  quire_prompt* prompt = attempt_prompt();
  auto admission = sized<quire_admission>();
  std::string before = dump(manager);
  const auto unchanged = [&](const char* name, const auto& call) {
    attempt(name, [&] {
      const quire_status status = call();
      quire::test::allow_allocations(-1);
      if (status != QUIRE_OK) {
        EXPECT_EQ(dump(manager), before) << name;
      }
      return status;
    });
    before = dump(manager);
  };
  unchanged("admit",
            [&] { return quire_block_manager_admit(manager, prompt, nullptr, &admission); });
  int32_t appended = 0;
  unchanged("append",
            [&] { return quire_block_manager_append(manager, admission.sequence, 30, &appended); });
  unchanged("commit",
            [&] { return quire_block_manager_commit(manager, admission.sequence, nullptr, 30); });
  uint64_t forked = 0;
  unchanged("fork", [&] { return quire_block_manager_fork(manager, admission.sequence, &forked); });
  auto stats = sized<quire_pool_stats>();
  unchanged("pool_stats", [&] { return quire_block_manager_pool_stats(manager, 0, &stats); });
  EXPECT_EQ(appended, 1);
  EXPECT_EQ(stats.num_in_use, 8);
  EXPECT_EQ(quire_block_manager_validate(manager), QUIRE_OK);
  EXPECT_EQ(quire_prompt_destroy(prompt), QUIRE_OK);
  EXPECT_EQ(quire_block_manager_destroy(manager), QUIRE_OK);
}

TEST(CFailure, Scheduler) {
  quire_block_manager* manager = attempt_manager();
  quire_prompt* prompt = attempt_prompt();
  auto* scheduler = attempt_create<quire_scheduler>("scheduler_create", [&](quire_scheduler** out) {
    return quire_scheduler_create(nullptr, manager, out);
  });
  auto request = sized<quire_request>();
  request.prompt = prompt;
  request.max_new_tokens = 3;
  uint64_t id = 0;
  EXPECT_GT(attempt("submit", [&] { return quire_scheduler_submit(scheduler, &request, &id); }), 0);
  for (int step = 0; step < 3; ++step) {
    auto batch = sized<quire_scheduled_batch>();
    attempt("schedule", [&] { return quire_scheduler_schedule(scheduler, &batch); });
    EXPECT_EQ(batch.num_tokens, step == 0 ? 30 : 1);
    auto result = sized<quire_step_result>();
    attempt("commit", [&] { return quire_scheduler_commit(scheduler, &result); });
    EXPECT_EQ(result.num_ready, 1);
    attempt("extend", [&] { return quire_scheduler_extend(scheduler, id, &step, 1, nullptr, 0); });
  }
  int64_t unfinished = -1;
  EXPECT_EQ(quire_scheduler_num_unfinished(scheduler, &unfinished), QUIRE_OK);
  EXPECT_EQ(unfinished, 0);
  EXPECT_EQ(quire_scheduler_validate(scheduler), QUIRE_OK);
  EXPECT_EQ(quire_prompt_destroy(prompt), QUIRE_OK);
  EXPECT_EQ(quire_scheduler_destroy(scheduler), QUIRE_OK);
  EXPECT_EQ(quire_block_manager_destroy(manager), QUIRE_OK);
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
// The backends of this machine and the conformance suite, through the C interface.
#include <string.h>

#include "capi/client.h"

void test_info(void) {
  quire_info* info = NULL;
  CHECK_OK(quire_info_create(&info));
  int64_t num_backends = 0;
  CHECK_OK(quire_info_num_backends(info, &num_backends));
  CHECK(num_backends >= 2);
  int num_found = 0;
  for (int64_t i = 0; i < num_backends; ++i) {
    quire_backend_info backend = {QUIRE_SIZED(quire_backend_info)};
    CHECK_OK(quire_info_backend(info, i, &backend));
    CHECK(strlen(backend.name) > 0 && strlen(backend.summary) > 0);
    CHECK(backend.available == 1 || backend.num_reasons > 0);
    const char* text = NULL;
    for (int64_t reason = 0; reason < backend.num_reasons; ++reason) {
      CHECK_OK(quire_info_reason(info, i, reason, &text));
      CHECK(strlen(text) > 0);
    }
    CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "reason",
                quire_info_reason(info, i, backend.num_reasons, &text));
    CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "level",
                quire_info_isa_level(info, i, backend.num_isa_levels, &text));
    if (strcmp(backend.name, "reference") == 0) ++num_found;
    if (strcmp(backend.name, "cpu") != 0) continue;
    ++num_found;
    CHECK(backend.available == 1 && backend.plugin == 0 && backend.batch_invariant == 1);
    CHECK_OK(quire_info_isa_level(info, i, 0, &text));
    CHECK(backend.num_isa_levels >= 1 && strlen(text) > 0);
  }
  CHECK(num_found == 2);
  quire_backend_info beyond = {QUIRE_SIZED(quire_backend_info)};
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "backend", quire_info_backend(info, num_backends, &beyond));
  const char* json = NULL;
  CHECK_OK(quire_info_json(info, &json));
  CHECK(strstr(json, "\"name\": \"cpu\"") != NULL && json[0] == '{');
  CHECK_OK(quire_info_destroy(info));
}

typedef struct Run {
  int64_t num_cases, num_passed, stop_after;
} Run;

static int32_t count_case(void* context, const quire_case_result* result) {
  Run* run = context;
  CHECK(result->index == run->num_cases && result->num_cases > 0);
  CHECK(strncmp(result->name, "decode/", 7) == 0);
  ++run->num_cases;
  run->num_passed += result->status == QUIRE_CASE_PASSED;
  return run->num_cases == run->stop_after;
}

void test_check(void) {
  quire_backend* backend = client_backend("cpu");
  Run run = {0, 0, -1};
  quire_check_options options = {QUIRE_SIZED(quire_check_options), .filter = "decode/*",
                                 .on_case = count_case, .context = &run};
  quire_check_result result = {QUIRE_SIZED(quire_check_result)};
  CHECK_OK(quire_check(backend, &options, &result));
  CHECK(result.num_passed > 0 && result.num_failed == 0 && result.seconds > 0);
  CHECK(run.num_passed == result.num_passed);
  CHECK(run.num_cases == result.num_passed + result.num_skipped);

  run = (Run){0, 0, 1};  // stopped after the first
  CHECK_OK(quire_check(backend, &options, &result));
  CHECK(result.num_passed + result.num_skipped == 1);
  options.filter = "nothing/*";
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "nothing", quire_check(backend, &options, &result));
  options.suite = 3;
  CHECK_FAILS(QUIRE_INVALID_ARGUMENT, "suite", quire_check(backend, &options, &result));
  CHECK_OK(quire_backend_destroy(backend));
}

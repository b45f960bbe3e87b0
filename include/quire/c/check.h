// SPDX-License-Identifier: Apache-2.0
// The C interface: the conformance suite on a backend of this machine, as `quire check` runs it.
#pragma once

#include "quire/c/base.h"
#include "quire/c/kv_cache.h"

// NOLINTBEGIN(modernize-use-using,modernize-redundant-void-arg): also C
#ifdef __cplusplus
extern "C" {
#endif

// Each suite holds the ones before it: seconds, about a minute, and everything.
enum { QUIRE_SUITE_SMOKE = 0, QUIRE_SUITE_STANDARD = 1, QUIRE_SUITE_FULL = 2 };
enum { QUIRE_CASE_PASSED = 0, QUIRE_CASE_FAILED = 1, QUIRE_CASE_SKIPPED = 2 };

// Strings are valid during the call.
typedef struct quire_case_result {
  uint32_t struct_bytes;
  uint32_t struct_version;
  const char* name;    // "decode/plain/16"
  const char* reason;  // every reason why it was skipped, or the first difference; else ""
  int64_t index;       // of [0, num_cases)
  int64_t num_cases;
  double max_error;  // of the outputs, where they were compared
  double max_limit;  // what it may be
  int32_t status;    // QUIRE_CASE_PASSED, ...
  int32_t reserved;
} quire_case_result;

typedef struct quire_check_options {
  uint32_t struct_bytes;
  uint32_t struct_version;
  const char* filter;  // only cases whose name matches, as in "decode/*,mixed/*"; NULL: all
  // After every case; another result than 0 ends the run. NULL: none.
  int32_t (*on_case)(void* context, const quire_case_result* result);
  void* context;
  int32_t suite;     // QUIRE_SUITE_SMOKE, ...
  int32_t reserved;  // 0
} quire_check_options;

typedef struct quire_check_result {
  uint32_t struct_bytes;
  uint32_t struct_version;
  int64_t num_passed;
  int64_t num_failed;   // 0: what the backend takes, it computes right
  int64_t num_skipped;  // refused by the backend, with its reasons
  double seconds;
} quire_check_result;

// QUIRE_OK also if cases fail: look at the counts. `options` may be NULL.
QUIRE_API quire_status quire_check(quire_backend* backend, const quire_check_options* options,
                                   quire_check_result* result);

#ifdef __cplusplus
}
#endif
// NOLINTEND(modernize-use-using,modernize-redundant-void-arg)

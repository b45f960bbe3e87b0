// SPDX-License-Identifier: Apache-2.0
// The C interface: the backends of this machine, each with the reasons why it cannot be used, as
// values and as JSON.
#pragma once

#include "quire/c/base.h"
#include "quire/c/kv_cache.h"

// NOLINTBEGIN(modernize-use-using,modernize-redundant-void-arg): also C
#ifdef __cplusplus
extern "C" {
#endif

typedef struct quire_info quire_info;

// Strings are never NULL.
typedef struct quire_backend_info {
  uint32_t struct_bytes;
  uint32_t struct_version;
  const char* name;
  const char* summary;
  const char* version;  // of the library behind it; "" if it is not available
  const char* isa;      // the level in use, or ""
  int32_t available;
  int32_t automatic;  // may be chosen without being named
  int32_t plugin;     // a shared object of its own
  int32_t batch_invariant;
  int32_t device_kind;
  int32_t device_index;
  int64_t num_reasons;     // why it is not available, or a level of it is not
  int64_t num_isa_levels;  // usable on this machine, best first
} quire_backend_info;

// Asks every backend. Plug-ins are loaded for it.
QUIRE_API quire_status quire_info_create(quire_info** info);
QUIRE_API quire_status quire_info_destroy(quire_info* info);
QUIRE_API quire_status quire_info_num_backends(const quire_info* info, int64_t* num_backends);
QUIRE_API quire_status quire_info_backend(const quire_info* info, int64_t index,
                                          quire_backend_info* backend);
// `reason` of [0, num_reasons), `level` of [0, num_isa_levels).
QUIRE_API quire_status quire_info_reason(const quire_info* info, int64_t index, int64_t reason,
                                         const char** text);
QUIRE_API quire_status quire_info_isa_level(const quire_info* info, int64_t index, int64_t level,
                                            const char** text);
// All of it, the machine and the support matrix included, as `quire info --json` prints it.
QUIRE_API quire_status quire_info_json(const quire_info* info, const char** text);

// The same values of a backend that has been made; strings are valid as long as the handle.
QUIRE_API quire_status quire_backend_describe(const quire_backend* backend,
                                              quire_backend_info* info);

#ifdef __cplusplus
}
#endif
// NOLINTEND(modernize-use-using,modernize-redundant-void-arg)

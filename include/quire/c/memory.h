// SPDX-License-Identifier: Apache-2.0
// The C interface: memory and streams of the device of a backend (quire/device.h in C++). Programs
// that have a runtime of that device may use it instead.
#pragma once

#include "quire/c/base.h"
#include "quire/c/kv_cache.h"

// NOLINTBEGIN(modernize-use-using,modernize-redundant-void-arg): also C
#ifdef __cplusplus
extern "C" {
#endif

// At least 64-byte aligned, uninitialised.
QUIRE_API quire_status quire_memory_allocate(quire_backend* backend, int64_t size_bytes,
                                             void** data);
// REQUIRES: `data` of quire_memory_allocate of this backend, not freed yet; or NULL.
QUIRE_API quire_status quire_memory_free(quire_backend* backend, void* data);
// Host memory that copies to and from the device run fastest with.
QUIRE_API quire_status quire_memory_allocate_host(quire_backend* backend, int64_t size_bytes,
                                                  void** data);
QUIRE_API quire_status quire_memory_free_host(quire_backend* backend, void* data);
// Ordered on `stream`; `host` [size_bytes] stays alive and unchanged until the stream has passed.
QUIRE_API quire_status quire_memory_copy_to_device(quire_backend* backend, void* device,
                                                   const void* host, int64_t size_bytes,
                                                   void* stream);
QUIRE_API quire_status quire_memory_copy_to_host(quire_backend* backend, void* host,
                                                 const void* device, int64_t size_bytes,
                                                 void* stream);
QUIRE_API quire_status quire_stream_create(quire_backend* backend, void** stream);
QUIRE_API quire_status quire_stream_destroy(quire_backend* backend, void* stream);
QUIRE_API quire_status quire_stream_synchronize(quire_backend* backend, void* stream);

#ifdef __cplusplus
}
#endif
// NOLINTEND(modernize-use-using,modernize-redundant-void-arg)

// SPDX-License-Identifier: Apache-2.0
// The C interface: status codes, the error text, sized structs and tensors. See quire/quire.h.
#pragma once

#include <stddef.h>  // NOLINT(modernize-deprecated-headers): also C
#include <stdint.h>  // NOLINT(modernize-deprecated-headers): also C

#include "quire/export.h"
#include "quire/version.h"

// NOLINTBEGIN(modernize-use-using,modernize-redundant-void-arg): also C
#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t quire_status;
enum {
  QUIRE_OK = 0,
  QUIRE_INVALID_ARGUMENT = 1,  // the caller broke a stated precondition
  QUIRE_UNSUPPORTED = 2,       // valid, but this backend refuses it: the text holds every reason
  QUIRE_OUT_OF_MEMORY = 3,     // host or device memory
  QUIRE_DEVICE = 4,            // a device or a vendor library failed
  QUIRE_IO = 5,                // a file could not be read or written
  QUIRE_INTERNAL = 6           // a broken invariant of quire itself
};

// "major.minor.patch" of the library, which may differ from the macros of version.h.
QUIRE_API const char* quire_version(void);
// "invalid_argument", ...; "unknown" for other numbers.
QUIRE_API const char* quire_status_name(quire_status status);
// What the last call of this thread that failed had to say; "" before one has. Never NULL. Valid
// until the next call of this thread that fails.
QUIRE_API const char* quire_error_message(void);
// Frees a text that a call has given to the caller; NULL is allowed.
QUIRE_API void quire_text_free(char* text);

// The first fields of every struct, in C (programs in C++ have quire/quire.hpp):
//   quire_tensor q = {QUIRE_SIZED(quire_tensor), .data = data, .rank = 3, .shape = {n, 8, 128}};
#define QUIRE_STRUCT_VERSION 1
#define QUIRE_SIZED(type) .struct_bytes = sizeof(type), .struct_version = QUIRE_STRUCT_VERSION

// The size of a struct in this library by its name ("quire_tensor"), 0 for an unknown name: for
// bindings that declare structs by hand.
QUIRE_API size_t quire_struct_bytes(const char* name);

// Numbers of a tensor.
enum {
  QUIRE_F32 = 0,
  QUIRE_F16 = 1,
  QUIRE_BF16 = 2,
  QUIRE_F8E4M3 = 3,
  QUIRE_F8E5M2 = 4,
  QUIRE_I8 = 5
};
// "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i8"; "unknown" for other numbers.
QUIRE_API const char* quire_dtype_name(int32_t dtype);

// Where memory lies.
enum {
  QUIRE_HOST = 0,
  QUIRE_CUDA = 1,
  QUIRE_ROCM = 2,
  QUIRE_CUSTOM = 3  // a device of a backend outside the project
};

// A strided tensor in memory of the caller. A pointer to const is a tensor that is only looked at:
// whether `data` is read or written, the call says.
#define QUIRE_MAX_RANK 5
typedef struct quire_tensor {
  uint32_t struct_bytes;
  uint32_t struct_version;
  void* data;                       // of `shape`
  int64_t shape[QUIRE_MAX_RANK];    // [rank]
  int64_t strides[QUIRE_MAX_RANK];  // [rank], in elements; all 0: dense, the last axis fastest
  int32_t dtype;                    // QUIRE_F32, ...
  int32_t rank;                     // at least 1
  int32_t device_kind;              // QUIRE_HOST, ...
  int32_t device_index;
} quire_tensor;

#ifdef __cplusplus
}
#endif
// NOLINTEND(modernize-use-using,modernize-redundant-void-arg)

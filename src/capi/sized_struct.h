// SPDX-License-Identifier: Apache-2.0
// Structs of the C interface, of whatever size the caller was compiled with.
//
// A struct that is read is copied into one of this library's size: what the caller does not have is
// 0, and what this library does not know must be 0. One that is written gets as much as it has room
// for. The sizes of version 1 stand below for ever: a smaller struct is an error that names it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "capi/guard.h"
#include "quire/quire.h"

// X(type, bytes in version 1).
#define QUIRE_SIZED_STRUCTS(X)       \
  X(quire_admission, 32)             \
  X(quire_admit_options, 32)         \
  X(quire_attention_output, 24)      \
  X(quire_attention_params, 40)      \
  X(quire_attention_spec, 96)        \
  X(quire_backend_info, 80)          \
  X(quire_backend_options, 48)       \
  X(quire_batch, 152)                \
  X(quire_batch_bounds, 48)          \
  X(quire_block_manager_options, 80) \
  X(quire_block_pool, 32)            \
  X(quire_block_stats, 128)          \
  X(quire_case_result, 64)           \
  X(quire_check_options, 40)         \
  X(quire_check_result, 40)          \
  X(quire_executor, 32)              \
  X(quire_extra_key, 40)             \
  X(quire_finished_request, 40)      \
  X(quire_group_copies, 72)          \
  X(quire_kv_cache_options, 32)      \
  X(quire_kv_cache_view, 200)        \
  X(quire_kv_event, 96)              \
  X(quire_kv_source, 32)             \
  X(quire_layer_group, 48)           \
  X(quire_partial, 24)               \
  X(quire_pool_stats, 64)            \
  X(quire_prefix_scope, 64)          \
  X(quire_ready_request, 32)         \
  X(quire_request, 48)               \
  X(quire_scheduled_batch, 56)       \
  X(quire_scheduled_sequence, 72)    \
  X(quire_scheduler_options, 128)    \
  X(quire_scheduler_stats, 152)      \
  X(quire_sequence_info, 32)         \
  X(quire_step_arrays, 72)           \
  X(quire_step_result, 40)           \
  X(quire_step_sizes, 32)            \
  X(quire_support, 24)               \
  X(quire_tensor, 112)               \
  X(quire_workspace, 40)

namespace quire::capi {

struct StructType {
  const char* name;
  std::size_t first_bytes;  // in version 1
  std::size_t known_bytes;  // in this library
};

template <class T>
inline constexpr StructType kStructType{};  // of a struct that the list lacks: refuses to compile

#define QUIRE_STRUCT_TYPE(type, bytes)                                         \
  template <>                                                                  \
  inline constexpr StructType kStructType<type>{#type, (bytes), sizeof(type)}; \
  static_assert(sizeof(type) >= (bytes), #type " is smaller than in version 1");
QUIRE_SIZED_STRUCTS(QUIRE_STRUCT_TYPE)
#undef QUIRE_STRUCT_TYPE

// The bytes that the caller says it has. Throws naming `what`.
std::size_t given_bytes(const void* given, const StructType& type, const char* what);
// Fills known[type.known_bytes].
void read_bytes(const void* given, const StructType& type, const char* what, void* known);

template <class T>
T read_struct(const T* given, const char* what) {
  static_assert(kStructType<T>.known_bytes == sizeof(T));
  T known;
  read_bytes(given, kStructType<T>, what, &known);
  return known;
}

// The same where NULL means all defaults.
template <class T>
T read_optional_struct(const T* given, const char* what) {
  return given == nullptr ? T{} : read_struct(given, what);
}

// A struct that a call will fill: checked first, so that nothing is done for a result that cannot
// be given.
template <class T>
class OutStruct {
 public:
  OutStruct(T* given, const char* what)
      : given_(given), bytes_(given_bytes(given, kStructType<T>, what)) {}

  void set(T value) noexcept {
    std::memcpy(&value, given_, 2 * sizeof(std::uint32_t));  // the caller's size and version
    std::memcpy(given_, &value, std::min(bytes_, sizeof(T)));
    if (bytes_ > sizeof(T)) {
      std::memset(reinterpret_cast<std::byte*>(given_) + sizeof(T), 0, bytes_ - sizeof(T));
    }
  }

 private:
  T* given_;
  std::size_t bytes_;
};

// Calls each(i, element) for an array of structs that are as far apart as the first is large.
template <class T, class Each>
void for_each_struct(const T* first, std::int64_t size, const char* what, Each&& each) {
  require_array(first, size, what);
  if (size == 0) return;
  const std::size_t stride = given_bytes(first, kStructType<T>, what);
  const auto* place = reinterpret_cast<const std::byte*>(first);
  for (std::int64_t i = 0; i < size; ++i, place += stride) {
    const auto* element = reinterpret_cast<const T*>(place);
    const std::size_t bytes = given_bytes(element, kStructType<T>, what);
    require(bytes == stride, what, ": struct ", i, " has ", bytes, " bytes, the first ", stride);
    each(i, read_struct(element, what));
  }
}

// A struct that the library hands out, with its two first fields.
template <class T>
T make_struct() {
  T made{};
  made.struct_bytes = sizeof(T);
  made.struct_version = QUIRE_STRUCT_VERSION;
  return made;
}

}  // namespace quire::capi

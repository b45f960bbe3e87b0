// SPDX-License-Identifier: Apache-2.0
#include "capi/sized_struct.h"

#include <string_view>

namespace quire::capi {
namespace {

// No struct will ever be so large: what says so was not initialised.
constexpr std::size_t kMaxStructBytes = 4096;

}  // namespace

std::size_t given_bytes(const void* given, const StructType& type, const char* what) {
  require(given != nullptr, what, ": is NULL, not a ", type.name);
  std::uint32_t head[2];
  std::memcpy(head, given, sizeof(head));
  require(head[0] >= type.first_bytes && head[0] <= kMaxStructBytes, what, ": struct_bytes of a ",
          type.name, " cannot be ", head[0], ", it has at least ", type.first_bytes,
          " (was it set to sizeof?)");
  require(head[1] >= 1 && head[1] <= QUIRE_STRUCT_VERSION, what, ": struct_version of a ",
          type.name, " cannot be ", head[1], ", this library knows ", QUIRE_STRUCT_VERSION);
  return head[0];
}

void read_bytes(const void* given, const StructType& type, const char* what, void* known) {
  const std::size_t bytes = given_bytes(given, type, what);
  const auto* place = static_cast<const unsigned char*>(given);
  for (std::size_t i = type.known_bytes; i < bytes; ++i) {
    require(place[i] == 0, what, ": a ", type.name, " of ", bytes,
            " bytes is newer than this library, which knows ", type.known_bytes,
            " of them, and byte ", i, " is not 0");
  }
  std::memset(known, 0, type.known_bytes);
  std::memcpy(known, given, std::min(bytes, type.known_bytes));
}

}  // namespace quire::capi

size_t quire_struct_bytes(const char* name) {
  if (name == nullptr) return 0;
#define QUIRE_STRUCT_SIZE(type, bytes) \
  if (std::string_view(name) == #type) return sizeof(type);
  QUIRE_SIZED_STRUCTS(QUIRE_STRUCT_SIZE)
#undef QUIRE_STRUCT_SIZE
  return 0;
}

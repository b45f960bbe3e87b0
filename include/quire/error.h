// SPDX-License-Identifier: Apache-2.0
// The one exception type of quire, and the value that carries asynchronous errors.
//
// Expected outcomes (no free block, nothing to schedule, unsupported spec) are values. Misuse and a
// failing environment throw Error before anything is written. The message names the sequence, the
// index, the value and the limit, in that order, with the values last.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "quire/export.h"

namespace quire {

enum class ErrorCode : std::uint8_t {
  kOk = 0,
  kInvalidArgument,  // the caller broke a stated precondition
  kUnsupported,      // valid, but this backend refuses it: the message holds every reason
  kOutOfMemory,      // host or device memory
  kDevice,           // a device or a vendor library failed
  kIo,               // a file could not be read or written
  kInternal,         // a broken invariant of quire itself
};

QUIRE_API const char* error_code_name(ErrorCode code) noexcept;

class QUIRE_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

// What an asynchronous call came to: AttentionBackend::poll returns it.
struct [[nodiscard]] Status {
  ErrorCode code = ErrorCode::kOk;
  std::string message;
  bool ok() const noexcept { return code == ErrorCode::kOk; }
};

}  // namespace quire

// SPDX-License-Identifier: Apache-2.0
#include "capi/guard.h"

#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>

#include "quire/dtype.h"

namespace quire::capi {
namespace {

static_assert(QUIRE_OK == static_cast<int>(ErrorCode::kOk) &&
              QUIRE_INVALID_ARGUMENT == static_cast<int>(ErrorCode::kInvalidArgument) &&
              QUIRE_UNSUPPORTED == static_cast<int>(ErrorCode::kUnsupported) &&
              QUIRE_OUT_OF_MEMORY == static_cast<int>(ErrorCode::kOutOfMemory) &&
              QUIRE_DEVICE == static_cast<int>(ErrorCode::kDevice) &&
              QUIRE_IO == static_cast<int>(ErrorCode::kIo) &&
              QUIRE_INTERNAL == static_cast<int>(ErrorCode::kInternal));

// The text of the last error of a thread: `constant` where there was no memory to keep it.
struct ErrorText {
  std::string text;
  const char* constant = "";
};
thread_local ErrorText last_error;

quire_status keep(ErrorCode code, const char* message) noexcept {
  try {
    last_error.text = message;
    last_error.constant = nullptr;
  } catch (...) {
    last_error.constant = "out of host memory, also for the text of the error";
  }
  return static_cast<quire_status>(code);
}

}  // namespace

quire_status report_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return keep(error.code() == ErrorCode::kOk ? ErrorCode::kInternal : error.code(), error.what());
  } catch (const std::bad_alloc&) {
    last_error.constant = "out of host memory";
    return QUIRE_OUT_OF_MEMORY;
  } catch (const std::length_error& error) {
    return keep(ErrorCode::kInvalidArgument, error.what());
  } catch (const std::exception& error) {
    return keep(ErrorCode::kInternal, error.what());
  } catch (...) {
    return keep(ErrorCode::kInternal, "an exception of unknown type");
  }
}

quire_status report_status(const Status& status) noexcept {
  return status.ok() ? QUIRE_OK : keep(status.code, status.message.c_str());
}

char* copy_text(std::string_view text) {
  // malloc, so that freeing needs no knowledge of C++.
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

}  // namespace quire::capi

const char* quire_version(void) {
  return quire::version();
}

const char* quire_status_name(quire_status status) {
  if (status < QUIRE_OK || status > QUIRE_INTERNAL) return "unknown";
  return quire::error_code_name(static_cast<quire::ErrorCode>(status));
}

const char* quire_error_message(void) {
  const quire::capi::ErrorText& error = quire::capi::last_error;
  return error.constant != nullptr ? error.constant : error.text.c_str();
}

void quire_text_free(char* text) {
  std::free(text);
}

const char* quire_dtype_name(int32_t dtype) {
  if (dtype < QUIRE_F32 || dtype > QUIRE_I8) return "unknown";
  return quire::dtype_name(static_cast<quire::DType>(dtype));
}

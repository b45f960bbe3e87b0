// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/guarded.h"

#include <c10/util/Exception.h>

#include <exception>
#include <new>

#include "backends/torch/sdpa.h"
#include "base/check.h"

namespace quire::torch_sdpa {
namespace {

[[noreturn]] void fail_at(ErrorCode code, const char* what, const std::string& configuration,
                          const char* message) {
  fail(code, "torch ", version(), " failed at ", configuration, ": ", what, ": ", message);
}

}  // namespace

void rethrow_as_ours(const char* what, const std::string& configuration) {
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    fail_at(ErrorCode::kOutOfMemory, what, configuration, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    fail_at(ErrorCode::kDevice, what, configuration, error.what_without_backtrace());
  } catch (const std::bad_alloc& error) {
    fail_at(ErrorCode::kOutOfMemory, what, configuration, error.what());
  } catch (const std::exception& error) {
    fail_at(ErrorCode::kDevice, what, configuration, error.what());
  } catch (...) {
    fail_at(ErrorCode::kDevice, what, configuration, "something that is no exception was thrown");
  }
}

}  // namespace quire::torch_sdpa

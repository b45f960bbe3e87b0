// SPDX-License-Identifier: Apache-2.0
// What torch throws, and the standard library inside of it, as errors of quire that name torch's
// version, the configuration and what was being done.
#pragma once

#include <string>

namespace quire::torch_sdpa {

// Throws what is being handled: memory that torch did not get as Error(kOutOfMemory), errors of
// quire as they are, everything else as Error(kDevice). REQUIRES: within a handler.
[[noreturn]] void rethrow_as_ours(const char* what, const std::string& configuration);

// configuration() is asked only when something is wrong.
template <class Configuration, class F>
void guarded(const char* what, Configuration&& configuration, F&& f) {
  try {
    f();
  } catch (...) {
    rethrow_as_ours(what, configuration());
  }
}

}  // namespace quire::torch_sdpa

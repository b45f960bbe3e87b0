// SPDX-License-Identifier: Apache-2.0
// Every operator new of a test program counted, and made to fail on demand. A program that links
// allocations.cc has its own operators for the whole of it.
#pragma once

#include <cstdint>
#include <new>

namespace quire::test {

// Of all threads since the program began.
std::int64_t num_allocations() noexcept;

// How many more of this thread succeed; negative: all. Backends that compute in threads of their
// own do so without allocating.
void allow_allocations(std::int64_t count) noexcept;

// Fails the first, the second, ... allocation of `call` until it needs no more of them.
// `after_failure(allowed)` runs after each; it returns false to end the attempts.
template <class F, class AfterFailure>
void fail_every_allocation(const F& call, const AfterFailure& after_failure) {
  for (std::int64_t allowed = 0;; ++allowed) {
    bool failed = false;
    allow_allocations(allowed);
    try {
      call();
    } catch (const std::bad_alloc&) {
      failed = true;
    } catch (...) {
      allow_allocations(-1);
      throw;
    }
    allow_allocations(-1);
    if (!failed || !after_failure(allowed)) return;
  }
}

}  // namespace quire::test

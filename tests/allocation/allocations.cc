// SPDX-License-Identifier: Apache-2.0
#include "allocation/allocations.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>

namespace {

std::atomic<std::int64_t> num_made{0};
thread_local std::int64_t num_allowed = -1;

void* allocate_or_null(std::size_t size) noexcept {
  num_made.fetch_add(1, std::memory_order_relaxed);
  if (num_allowed == 0) return nullptr;
  if (num_allowed > 0) --num_allowed;
  return std::malloc(size == 0 ? 1 : size);
}

void* allocate(std::size_t size) {
  void* const memory = allocate_or_null(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

namespace quire::test {

std::int64_t num_allocations() noexcept {
  return num_made.load(std::memory_order_relaxed);
}

void allow_allocations(std::int64_t count) noexcept {
  num_allowed = count;
}

}  // namespace quire::test

// Not inlined: the compiler would take malloc and delete for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t size) {
  return allocate(size);
}
[[gnu::noinline]] void* operator new[](std::size_t size) {
  return allocate(size);
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return allocate_or_null(size);
}
[[gnu::noinline]] void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return allocate_or_null(size);
}
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

// SPDX-License-Identifier: Apache-2.0
// Fences and atomics of a kernel on the emulator, with the memory model that simt.h states. An
// atomic is one step: no other thread runs inside it. A thread that repeats atomics (a spin) lets
// the others run now and then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gpu/emulator/site.h"

namespace quire::simt {

namespace internal {
// The bits of a value in the low end of a word.
template <class T>
std::uint64_t to_bits(T value) noexcept {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  if constexpr (sizeof(T) == 4) {
    return __builtin_bit_cast(std::uint32_t, value);
  } else {
    return __builtin_bit_cast(std::uint64_t, value);
  }
}
template <class T>
T from_bits(std::uint64_t bits) noexcept {
  if constexpr (sizeof(T) == 4) {
    return __builtin_bit_cast(T, static_cast<std::uint32_t>(bits));
  } else {
    return __builtin_bit_cast(T, bits);
  }
}
}  // namespace internal

void fence_block() noexcept;   // orders for the threads of this block
void fence_device() noexcept;  // orders for every block of the launch

enum class Order : std::uint8_t { kRelaxed, kAcquire, kRelease, kAcquireRelease };

namespace internal {
// Replaces *address by update(*address, operand, expected), returns what was there.
using AtomicUpdate = std::uint64_t (*)(std::uint64_t old, std::uint64_t operand,
                                       std::uint64_t expected);
struct AtomicOperation {
  AtomicUpdate update = nullptr;  // null: a load
  bool reads = true;              // false: a store, which continues no chain of atomics
  std::uint64_t operand = 0;
  std::uint64_t expected = 0;
  Order order = Order::kRelaxed;
};
std::uint64_t atomic(void* address, std::size_t bytes, const AtomicOperation& operation,
                     Site site) noexcept;
}  // namespace internal

// On shared or global memory, T of 4 or 8 bytes; each returns the old value. Device scope.
template <class T>
T atomic_add(T* address, std::type_identity_t<T> value, Order order = Order::kRelaxed,
             Site site = Site::here()) noexcept {
  const auto add = [](std::uint64_t old, std::uint64_t operand, std::uint64_t) {
    return internal::to_bits<T>(
        static_cast<T>(internal::from_bits<T>(old) + internal::from_bits<T>(operand)));
  };
  return internal::from_bits<T>(internal::atomic(
      address, sizeof(T), {.update = add, .operand = internal::to_bits<T>(value), .order = order},
      site));
}
template <class T>
T atomic_max(T* address, std::type_identity_t<T> value, Order order = Order::kRelaxed,
             Site site = Site::here()) noexcept {
  const auto larger = [](std::uint64_t old, std::uint64_t operand, std::uint64_t) {
    return internal::from_bits<T>(old) < internal::from_bits<T>(operand) ? operand : old;
  };
  return internal::from_bits<T>(internal::atomic(
      address, sizeof(T),
      {.update = larger, .operand = internal::to_bits<T>(value), .order = order}, site));
}
template <class T>
T atomic_min(T* address, std::type_identity_t<T> value, Order order = Order::kRelaxed,
             Site site = Site::here()) noexcept {
  const auto smaller = [](std::uint64_t old, std::uint64_t operand, std::uint64_t) {
    return internal::from_bits<T>(operand) < internal::from_bits<T>(old) ? operand : old;
  };
  return internal::from_bits<T>(internal::atomic(
      address, sizeof(T),
      {.update = smaller, .operand = internal::to_bits<T>(value), .order = order}, site));
}
template <class T>
T atomic_or(T* address, std::type_identity_t<T> value, Order order = Order::kRelaxed,
            Site site = Site::here()) noexcept {
  const auto either = [](std::uint64_t old, std::uint64_t operand, std::uint64_t) {
    return old | operand;
  };
  return internal::from_bits<T>(internal::atomic(
      address, sizeof(T),
      {.update = either, .operand = internal::to_bits<T>(value), .order = order}, site));
}
template <class T>
T atomic_exchange(T* address, std::type_identity_t<T> value, Order order = Order::kRelaxed,
                  Site site = Site::here()) noexcept {
  const auto replace = [](std::uint64_t, std::uint64_t operand, std::uint64_t) { return operand; };
  return internal::from_bits<T>(internal::atomic(
      address, sizeof(T),
      {.update = replace, .operand = internal::to_bits<T>(value), .order = order}, site));
}
// Stores `value` where `expected` stands, bit for bit.
template <class T>
T atomic_compare_exchange(T* address, std::type_identity_t<T> expected,
                          std::type_identity_t<T> value, Order order = Order::kRelaxed,
                          Site site = Site::here()) noexcept {
  const auto choose = [](std::uint64_t old, std::uint64_t operand, std::uint64_t wanted) {
    return old == wanted ? operand : old;
  };
  return internal::from_bits<T>(internal::atomic(address, sizeof(T),
                                                 {.update = choose,
                                                  .operand = internal::to_bits<T>(value),
                                                  .expected = internal::to_bits<T>(expected),
                                                  .order = order},
                                                 site));
}
template <class T>
T atomic_load(const T* address, Order order = Order::kRelaxed, Site site = Site::here()) noexcept {
  return internal::from_bits<T>(
      internal::atomic(const_cast<T*>(address), sizeof(T), {.order = order}, site));
}
template <class T>
void atomic_store(T* address, std::type_identity_t<T> value, Order order = Order::kRelaxed,
                  Site site = Site::here()) noexcept {
  const auto replace = [](std::uint64_t, std::uint64_t operand, std::uint64_t) { return operand; };
  internal::atomic(
      address, sizeof(T),
      {.update = replace, .reads = false, .operand = internal::to_bits<T>(value), .order = order},
      site);
}

}  // namespace quire::simt

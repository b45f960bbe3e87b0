// SPDX-License-Identifier: Apache-2.0
// What compilers call for C++ atomics in code built with -fsanitize=thread (hooks.cc). Kernels use
// simt::atomic_add and its like; these serve headers of the host that are compiled along with them,
// and counters of coverage builds, and so do plainly what they say. On the memory of a kernel a C++
// atomic would pass unchecked: there it is a fault.
#include <cstdint>

#include "gpu/emulator/launch_state.h"

namespace {

using quire::simt::internal::Launch;
using quire::simt::internal::running_launch;

void refuse_in_kernel(const volatile void* address, const void* pc) {
  if (running_launch == nullptr || running_launch->inside()) return;
  Launch::enter([&](Launch& launch) {
    if (!launch.checker().is_device_memory(reinterpret_cast<std::uintptr_t>(address))) return;
    launch.raise(quire::simt::FaultKind::kCheckFailed,
                 "a C++ atomic in a kernel; use those of atomics.h", {}, pc);
  });
}

}  // namespace

#define QUIRE_SIMT_HOOK(result, name, symbol, ...)                                        \
  extern "C" __attribute__((used)) result quire_simt_##name(__VA_ARGS__) __asm__(symbol); \
  result quire_simt_##name(__VA_ARGS__)

// NOLINTBEGIN(bugprone-macro-parentheses): types cannot have them
#define QUIRE_SIMT_FETCH(bits, type, operation)                                           \
  QUIRE_SIMT_HOOK(type, atomic##bits##_##operation, "__tsan_atomic" #bits "_" #operation, \
                  type* address, type value, int) {                                       \
    refuse_in_kernel(address, __builtin_return_address(0));                               \
    return __atomic_##operation(address, value, __ATOMIC_SEQ_CST);                        \
  }
#define QUIRE_SIMT_COMPARE_EXCHANGE(bits, type, form)                                              \
  QUIRE_SIMT_HOOK(int, atomic##bits##_compare_exchange_##form,                                     \
                  "__tsan_atomic" #bits "_compare_exchange_" #form, type* address, type* expected, \
                  type desired, int, int) {                                                        \
    refuse_in_kernel(address, __builtin_return_address(0));                                        \
    return __atomic_compare_exchange_n(address, expected, desired, false, __ATOMIC_SEQ_CST,        \
                                       __ATOMIC_SEQ_CST)                                           \
               ? 1                                                                                 \
               : 0;                                                                                \
  }
#define QUIRE_SIMT_ATOMICS(bits, type)                                                             \
  QUIRE_SIMT_HOOK(type, atomic##bits##_load, "__tsan_atomic" #bits "_load", const type* address,   \
                  int) {                                                                           \
    refuse_in_kernel(address, __builtin_return_address(0));                                        \
    return __atomic_load_n(address, __ATOMIC_SEQ_CST);                                             \
  }                                                                                                \
  QUIRE_SIMT_HOOK(void, atomic##bits##_store, "__tsan_atomic" #bits "_store", type* address,       \
                  type value, int) {                                                               \
    refuse_in_kernel(address, __builtin_return_address(0));                                        \
    __atomic_store_n(address, value, __ATOMIC_SEQ_CST);                                            \
  }                                                                                                \
  QUIRE_SIMT_HOOK(type, atomic##bits##_exchange, "__tsan_atomic" #bits "_exchange", type* address, \
                  type value, int) {                                                               \
    refuse_in_kernel(address, __builtin_return_address(0));                                        \
    return __atomic_exchange_n(address, value, __ATOMIC_SEQ_CST);                                  \
  }                                                                                                \
  QUIRE_SIMT_HOOK(type, atomic##bits##_compare_exchange_val,                                       \
                  "__tsan_atomic" #bits "_compare_exchange_val", type* address, type expected,     \
                  type desired, int, int) {                                                        \
    refuse_in_kernel(address, __builtin_return_address(0));                                        \
    __atomic_compare_exchange_n(address, &expected, desired, false, __ATOMIC_SEQ_CST,              \
                                __ATOMIC_SEQ_CST);                                                 \
    return expected;                                                                               \
  }                                                                                                \
  QUIRE_SIMT_FETCH(bits, type, fetch_add)                                                          \
  QUIRE_SIMT_FETCH(bits, type, fetch_sub)                                                          \
  QUIRE_SIMT_FETCH(bits, type, fetch_and)                                                          \
  QUIRE_SIMT_FETCH(bits, type, fetch_or)                                                           \
  QUIRE_SIMT_FETCH(bits, type, fetch_xor)                                                          \
  QUIRE_SIMT_FETCH(bits, type, fetch_nand)                                                         \
  QUIRE_SIMT_COMPARE_EXCHANGE(bits, type, strong)                                                  \
  QUIRE_SIMT_COMPARE_EXCHANGE(bits, type, weak)

// NOLINTEND(bugprone-macro-parentheses)

QUIRE_SIMT_ATOMICS(8, std::uint8_t)
QUIRE_SIMT_ATOMICS(16, std::uint16_t)
QUIRE_SIMT_ATOMICS(32, std::uint32_t)
QUIRE_SIMT_ATOMICS(64, std::uint64_t)

QUIRE_SIMT_HOOK(void, atomic_thread_fence, "__tsan_atomic_thread_fence", int) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
QUIRE_SIMT_HOOK(void, atomic_signal_fence, "__tsan_atomic_signal_fence", int) {}

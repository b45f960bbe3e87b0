// SPDX-License-Identifier: Apache-2.0
// What compilers call before the loads and stores of code built with -fsanitize=thread. Kernels are
// built so, but linked with these functions instead of ThreadSanitizer's: inside a launch every
// access goes to its checker, outside they do nothing but what the program asked for.
//
// The linker may choose an instrumented copy of an inline function for the emulator itself. So the
// hooks call nothing of the standard library before Launch::enter, which lets them see who runs.
//
// memcpy, memmove and memset are wrapped (the linker's --wrap), because compilers turn copies of
// structures into calls of them. The sanitizer's own forms of them (__tsan_memcpy, ...), which
// newer compilers use, come to the same place.
#include "gpu/emulator/hooks.h"

#include <cstddef>
#include <cstdint>

#include "gpu/emulator/launch_state.h"

namespace quire::simt::internal {
namespace {

// Stack that the emulator itself may need below a function of the kernel.
constexpr std::size_t kStackReserve = 24 * 1024;

inline void note(const void* address, std::size_t bytes, AccessKind kind, const void* pc) {
  Launch* const launch = running_launch;
  if (launch == nullptr) return;
  launch->hooked_access(reinterpret_cast<std::uintptr_t>(address), bytes, kind, pc);
}

void note_range(const void* address, std::size_t bytes, AccessKind kind, const void* pc) {
  if (bytes != 0) note(address, bytes, kind, pc);
}

void check_stack(const void* pc) {
  Launch* const launch = running_launch;
  if (launch == nullptr || launch->inside()) return;
  const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  if (here - launch->scheduler().stack_low() >= kStackReserve) [[likely]]
    return;
  Launch::enter([pc](Launch& overflowing) {
    overflowing.raise(FaultKind::kStackOverflow, "the functions of the kernel need too much stack",
                      {}, pc);
  });
}

}  // namespace
}  // namespace quire::simt::internal

using quire::simt::internal::AccessKind;
using quire::simt::internal::check_stack;
using quire::simt::internal::note;
using quire::simt::internal::note_range;

// A function that the compiler or the linker calls under a name that programs must not use.
#define QUIRE_SIMT_HOOK(result, name, symbol, ...)                                        \
  extern "C" __attribute__((used)) result quire_simt_##name(__VA_ARGS__) __asm__(symbol); \
  result quire_simt_##name(__VA_ARGS__)

#define QUIRE_SIMT_ACCESS(name, bytes, kind)                          \
  QUIRE_SIMT_HOOK(void, name, "__tsan_" #name, const void* address) { \
    note(address, bytes, kind, __builtin_return_address(0));          \
  }
// A load and a store of the same address in one call.
#define QUIRE_SIMT_UPDATE(name, bytes)                                     \
  QUIRE_SIMT_HOOK(void, name, "__tsan_" #name, const void* address) {      \
    note(address, bytes, AccessKind::kRead, __builtin_return_address(0));  \
    note(address, bytes, AccessKind::kWrite, __builtin_return_address(0)); \
  }
#define QUIRE_SIMT_ACCESSES(bytes)                                     \
  QUIRE_SIMT_ACCESS(read##bytes, bytes, AccessKind::kRead)             \
  QUIRE_SIMT_ACCESS(write##bytes, bytes, AccessKind::kWrite)           \
  QUIRE_SIMT_ACCESS(unaligned_read##bytes, bytes, AccessKind::kRead)   \
  QUIRE_SIMT_ACCESS(unaligned_write##bytes, bytes, AccessKind::kWrite) \
  QUIRE_SIMT_ACCESS(volatile_read##bytes, bytes, AccessKind::kRead)    \
  QUIRE_SIMT_ACCESS(volatile_write##bytes, bytes, AccessKind::kWrite)  \
  QUIRE_SIMT_UPDATE(read_write##bytes, bytes)                          \
  QUIRE_SIMT_UPDATE(unaligned_read_write##bytes, bytes)

QUIRE_SIMT_ACCESSES(1)
QUIRE_SIMT_ACCESSES(2)
QUIRE_SIMT_ACCESSES(4)
QUIRE_SIMT_ACCESSES(8)
QUIRE_SIMT_ACCESSES(16)

QUIRE_SIMT_HOOK(void, read_range, "__tsan_read_range", const void* address, std::size_t bytes) {
  note_range(address, bytes, AccessKind::kRead, __builtin_return_address(0));
}
QUIRE_SIMT_HOOK(void, write_range, "__tsan_write_range", const void* address, std::size_t bytes) {
  note_range(address, bytes, AccessKind::kWrite, __builtin_return_address(0));
}
QUIRE_SIMT_HOOK(void, vptr_update, "__tsan_vptr_update", const void* address, const void*) {
  note(address, sizeof(void*), AccessKind::kWrite, __builtin_return_address(0));
}
QUIRE_SIMT_HOOK(void, vptr_read, "__tsan_vptr_read", const void* address) {
  note(address, sizeof(void*), AccessKind::kRead, __builtin_return_address(0));
}

QUIRE_SIMT_HOOK(void, init, "__tsan_init", ) {
  quire::simt::internal::hooks_are_linked = true;
}
QUIRE_SIMT_HOOK(void, func_entry, "__tsan_func_entry", const void*) {
  check_stack(__builtin_return_address(0));
}
QUIRE_SIMT_HOOK(void, func_exit, "__tsan_func_exit", ) {}

QUIRE_SIMT_HOOK(void*, real_memcpy, "__real_memcpy", void*, const void*, std::size_t);
QUIRE_SIMT_HOOK(void*, real_memmove, "__real_memmove", void*, const void*, std::size_t);
QUIRE_SIMT_HOOK(void*, real_memset, "__real_memset", void*, int, std::size_t);

#define QUIRE_SIMT_COPY(name, symbol, real)                                             \
  QUIRE_SIMT_HOOK(void*, name, symbol, void* to, const void* from, std::size_t bytes) { \
    note_range(from, bytes, AccessKind::kRead, __builtin_return_address(0));            \
    note_range(to, bytes, AccessKind::kWrite, __builtin_return_address(0));             \
    return quire_simt_##real(to, from, bytes);                                          \
  }
#define QUIRE_SIMT_FILL(name, symbol)                                           \
  QUIRE_SIMT_HOOK(void*, name, symbol, void* to, int byte, std::size_t bytes) { \
    note_range(to, bytes, AccessKind::kWrite, __builtin_return_address(0));     \
    return quire_simt_real_memset(to, byte, bytes);                             \
  }

QUIRE_SIMT_COPY(wrap_memcpy, "__wrap_memcpy", real_memcpy)
QUIRE_SIMT_COPY(wrap_memmove, "__wrap_memmove", real_memmove)
QUIRE_SIMT_FILL(wrap_memset, "__wrap_memset")
QUIRE_SIMT_COPY(tsan_memcpy, "__tsan_memcpy", real_memcpy)
QUIRE_SIMT_COPY(tsan_memmove, "__tsan_memmove", real_memmove)
QUIRE_SIMT_FILL(tsan_memset, "__tsan_memset")

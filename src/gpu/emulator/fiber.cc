// SPDX-License-Identifier: Apache-2.0
#include "gpu/emulator/fiber.h"

#include <pthread.h>
#include <sys/mman.h>

#include "base/check.h"
#include "gpu/emulator/address_sanitizer.h"

#if !defined(__x86_64__) && !defined(QUIRE_SIMT_UCONTEXT)
#define QUIRE_SIMT_UCONTEXT
#endif
#if defined(QUIRE_SIMT_UCONTEXT)
#include <ucontext.h>
#endif

#if !defined(QUIRE_SIMT_UCONTEXT)
// Saves what a called function must keep, stores the stack pointer to *rdi, and goes on where rsi
// was stored. Floating point modes are the same in all fibers.
extern "C" void quire_simt_switch_stack(void** from, void* to);
asm(R"(
  .text
  .globl quire_simt_switch_stack
  .hidden quire_simt_switch_stack
  .type quire_simt_switch_stack, @function
quire_simt_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size quire_simt_switch_stack, . - quire_simt_switch_stack
)");
#endif

namespace quire::simt::internal {
namespace {

void annotate_leaving([[maybe_unused]] FiberContext* from,
                      [[maybe_unused]] const FiberContext& to) {
#if QUIRE_HAS_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(from == nullptr ? nullptr : &from->fake_stack, to.stack_low,
                                 to.stack_bytes);
#endif
}

void annotate_arrived([[maybe_unused]] void* fake_stack) {
#if QUIRE_HAS_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void jump(FiberContext& from, FiberContext& to) {
#if defined(QUIRE_SIMT_UCONTEXT)
  if (from.portable == nullptr) from.portable = std::make_shared<ucontext_t>();
  swapcontext(static_cast<ucontext_t*>(from.portable.get()),
              static_cast<ucontext_t*>(to.portable.get()));
#else
  quire_simt_switch_stack(&from.stack_pointer, to.stack_pointer);
#endif
}

void switch_context(FiberContext& from, FiberContext& to) {
  annotate_leaving(&from, to);
  jump(from, to);
  annotate_arrived(from.fake_stack);
}

// The stack of the calling thread.
StackRange this_stack() {
  pthread_attr_t attributes;
  void* low = nullptr;
  std::size_t bytes = 0;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    pthread_attr_getstack(&attributes, &low, &bytes);
    pthread_attr_destroy(&attributes);
  }
  return {reinterpret_cast<std::uintptr_t>(low), bytes};
}

}  // namespace

FiberSet::FiberSet(std::size_t max_fibers, Entry entry) : entry_(entry) {
  arena_bytes_ = max_fibers * kStride;
  void* arena =
      mmap(nullptr, arena_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED) {
    fail(ErrorCode::kOutOfMemory, "no address space for ", max_fibers, " stacks");
  }
  arena_ = reinterpret_cast<std::uintptr_t>(arena);
  fibers_.reserve(max_fibers);
  const StackRange host = this_stack();
  host_.stack_low = reinterpret_cast<const void*>(host.low);
  host_.stack_bytes = host.bytes;
}

FiberSet::~FiberSet() {
  munmap(reinterpret_cast<void*>(arena_), arena_bytes_);
}

void FiberSet::prepare(std::size_t count) {
  require(count <= fibers_.capacity(), "fibers: ", count, " of at most ", fibers_.capacity());
  while (fibers_.size() < count) {
    const std::size_t index = fibers_.size();
    void* const low = reinterpret_cast<void*>(stack_low(index));
    if (mprotect(low, kStackBytes, PROT_READ | PROT_WRITE) != 0) {
      fail(ErrorCode::kOutOfMemory, "no memory for the stack of thread ", index);
    }
    fibers_.emplace_back();
    start(fibers_.back(), index);
  }
}

void FiberSet::reset(std::size_t index) {
  unpoison(reinterpret_cast<void*>(stack_low(index)), kStackBytes);
  start(fibers_[index], index);
}

void FiberSet::start(FiberContext& context, std::size_t index) {
  // Tops at different offsets: else the busiest lines of all stacks share a few sets of the caches.
  constexpr std::size_t kColours = 64;
  constexpr std::size_t kColourBytes = 192;
  const std::uintptr_t low = stack_low(index);
  const std::uintptr_t top = low + kStackBytes - (index % kColours) * kColourBytes;
  context.stack_low = reinterpret_cast<const void*>(low);
  context.stack_bytes = kStackBytes;
  context.fake_stack = nullptr;
#if defined(QUIRE_SIMT_UCONTEXT)
  auto portable = std::make_shared<ucontext_t>();
  getcontext(portable.get());
  portable->uc_stack.ss_sp = reinterpret_cast<void*>(low);
  portable->uc_stack.ss_size = top - low;
  portable->uc_link = nullptr;
  makecontext(portable.get(), entry_, 0);
  context.portable = std::move(portable);
#else
  // What quire_simt_switch_stack pops: six registers, then the entry as its return address; above
  // it a return address of zero ends every backtrace, and leaves the alignment of a called
  // function.
  constexpr std::size_t kSavedRegisters = 6;
  auto* const frame = reinterpret_cast<std::uintptr_t*>(top) - (kSavedRegisters + 2);
  for (std::size_t i = 0; i < kSavedRegisters; ++i) frame[i] = 0;
  frame[kSavedRegisters] = reinterpret_cast<std::uintptr_t>(entry_);
  frame[kSavedRegisters + 1] = 0;
  context.stack_pointer = frame;
#endif
}

void FiberSet::resume(std::size_t index) {
  switch_context(host_, fibers_[index]);
}

void FiberSet::switch_fiber(std::size_t from, std::size_t to) {
  switch_context(fibers_[from], fibers_[to]);
}

void FiberSet::return_to_host(std::size_t from) {
  switch_context(fibers_[from], host_);
}

void FiberSet::leave_for_good(std::size_t from) {
  annotate_leaving(nullptr, host_);
  jump(fibers_[from], host_);
  __builtin_unreachable();
}

void FiberSet::finish_first_switch() {
  annotate_arrived(nullptr);
}

}  // namespace quire::simt::internal

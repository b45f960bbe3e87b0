// SPDX-License-Identifier: Apache-2.0
// What the handles of the C interface point to. Each begins with its kind, so that a handle of
// another kind is an error, and shares what it is made from, so that the order of destruction does
// not matter.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capi/guard.h"
#include "quire/block_manager.h"
#include "quire/quire.h"
#include "quire/registry.h"
#include "quire/scheduler.h"

namespace quire::capi {

// Any 64 bits that no other object begins with by chance.
enum class HandleKind : std::uint64_t {
  kDestroyed = 0x7175697265000000,
  kBackend,
  kPreparedBatch,
  kKvCache,
  kPrompt,
  kBlockManager,
  kScheduler,
  kInfo,
};

// "a backend", ...
const char* handle_kind_name(std::uint64_t kind) noexcept;

// Events of a block manager on their way to a function of the caller.
class EventSink : public KvEventSink {
 public:
  EventSink(void (*function)(void*, const quire_kv_event*), void* context)
      : function_(function), context_(context) {}
  void on_event(const KvEvent& event) noexcept override;

 private:
  void (*function_)(void*, const quire_kv_event*);
  void* context_;
};

struct ManagedBlocks {
  std::unique_ptr<EventSink> events;
  BlockManager manager;
  CopyLists copies;        // of the last take_copies
  bool is_driven = false;  // by a scheduler
};

}  // namespace quire::capi

struct quire_backend {
  static constexpr auto kKind = quire::capi::HandleKind::kBackend;
  quire::capi::HandleKind kind = kKind;
  std::shared_ptr<quire::AttentionBackend> backend;
  quire::BackendInfo info;
};

struct quire_prepared_batch {
  static constexpr auto kKind = quire::capi::HandleKind::kPreparedBatch;
  quire::capi::HandleKind kind = kKind;
  std::shared_ptr<quire::AttentionBackend> backend;
  std::unique_ptr<quire::WorkspaceBuffer> workspace;  // none: the caller's
  std::unique_ptr<quire::PreparedBatch> prepared;     // ends first
  bool has_batch = false;                             // the last prepare succeeded
};

struct quire_kv_cache {
  static constexpr auto kKind = quire::capi::HandleKind::kKvCache;
  quire::capi::HandleKind kind = kKind;
  std::shared_ptr<quire::AttentionBackend> backend;
  quire::KvCache cache;  // ends first
};

struct quire_prompt {
  static constexpr auto kKind = quire::capi::HandleKind::kPrompt;
  quire::capi::HandleKind kind = kKind;
  quire::Prompt prompt;
};

struct quire_block_manager {
  static constexpr auto kKind = quire::capi::HandleKind::kBlockManager;
  quire::capi::HandleKind kind = kKind;
  std::shared_ptr<quire::capi::ManagedBlocks> blocks;
};

struct quire_scheduler {
  static constexpr auto kKind = quire::capi::HandleKind::kScheduler;
  quire::capi::HandleKind kind = kKind;
  std::shared_ptr<quire::capi::ManagedBlocks> blocks;
  quire::Scheduler scheduler;                    // ends first
  const quire::ScheduledBatch* batch = nullptr;  // of the last schedule
  quire::StepResult result;                      // of the last commit
};

namespace quire::capi {

template <class Handle>
Handle& open(Handle* handle, const char* what) {
  require(handle != nullptr, what, ": is NULL");
  std::uint64_t kind = 0;
  std::memcpy(&kind, static_cast<const void*>(handle), sizeof(kind));
  constexpr auto kExpected = static_cast<std::uint64_t>(std::remove_const_t<Handle>::kKind);
  require(kind == kExpected, what, ": this handle is ", handle_kind_name(kind), ", not ",
          handle_kind_name(kExpected));
  return *handle;
}

template <class Handle>
quire_status destroy(Handle* handle, const char* what) noexcept {
  return guarded([&] {
    if (handle == nullptr) return;
    open(handle, what).kind = HandleKind::kDestroyed;
    delete handle;
  });
}

}  // namespace quire::capi

// SPDX-License-Identifier: Apache-2.0
// Python's BlockManager: with the events it has made since they were last taken.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "fail.h"
#include "quire/block_manager.h"

namespace quire::python {

struct CollectedEvent {
  KvEvent event;  // its tokens are in `tokens`
  std::vector<Token> tokens;
};

class EventCollector final : public KvEventSink {
 public:
  void on_event(const KvEvent& event) noexcept override;
  std::vector<CollectedEvent> take() { return std::exchange(events_, {}); }
  std::int64_t num_lost() const noexcept { return num_lost_; }

 private:
  std::vector<CollectedEvent> events_;
  std::int64_t num_lost_ = 0;  // for want of memory
};

struct ManagerObject {
  std::unique_ptr<EventCollector> events;  // before the manager, which calls it
  std::unique_ptr<BlockManager> manager;
  bool is_driven = false;  // by a scheduler: for ever, as its sequences stay

  // To change it.
  BlockManager& own() const {
    require(!is_driven, "BlockManager: a scheduler drives it, so nobody else may change it");
    return *manager;
  }
};

}  // namespace quire::python

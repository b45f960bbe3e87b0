// SPDX-License-Identifier: Apache-2.0
// What a replay drives: scheduler and block manager alone, or a whole engine that computes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "quire/block_manager.h"
#include "quire/request.h"
#include "quire/scheduled_batch.h"
#include "quire/scheduler.h"

namespace quire::replay {

// Rows of outputs that were compared with the reference.
struct Verification {
  std::int64_t num_rows = 0;
  std::int64_t num_violations = 0;
  double max_error = 0;
  std::vector<std::string> messages{};  // of the first few violations
};

class StepRunner {
 public:
  using BatchObserver = std::function<void(const ScheduledBatch&)>;

  StepRunner() = default;
  StepRunner(const StepRunner&) = delete;
  StepRunner& operator=(const StepRunner&) = delete;
  virtual ~StepRunner() = default;

  virtual RequestId submit(Request request) = 0;
  // One step; `observe` sees its batch, if it has one, before it is computed.
  virtual StepResult step(const BatchObserver& observe) = 0;
  virtual void extend(RequestId id, Token token) = 0;
  virtual void forget(RequestId id) = 0;  // it has ended
  virtual std::int64_t num_unfinished() const = 0;

  virtual const Scheduler& scheduler() const = 0;
  virtual const BlockManager& block_manager() const = 0;
  // Of the last step, without the making of Q, K and V; nothing is measured where nothing computes.
  virtual double computing_seconds() const { return 0; }
  virtual Verification verification() const { return {}; }
};

// Scheduler and block manager without memory behind the blocks.
class MemoryRunner : public StepRunner {
 public:
  MemoryRunner(const SchedulerOptions& scheduler, const BlockManagerOptions& blocks)
      : block_manager_(blocks), scheduler_(scheduler, block_manager_.options()) {}

  RequestId submit(Request request) override { return scheduler_.submit(std::move(request)); }
  StepResult step(const BatchObserver& observe) override {
    const ScheduledBatch& batch = scheduler_.schedule(block_manager_);
    if (!batch.empty()) observe(batch);
    return scheduler_.commit(batch);
  }
  void extend(RequestId id, Token token) override { scheduler_.extend(id, token); }
  void forget(RequestId /*id*/) override {}
  std::int64_t num_unfinished() const override { return scheduler_.num_unfinished(); }
  const Scheduler& scheduler() const override { return scheduler_; }
  const BlockManager& block_manager() const override { return block_manager_; }

 protected:
  BlockManager block_manager_;

 private:
  Scheduler scheduler_;
};

}  // namespace quire::replay

// SPDX-License-Identifier: Apache-2.0
// Drives a BlockManager and the naive one through the same operations, with a simulated cache that
// holds what the reported slots and copies put there, and compares everything after every step.
//
// An operation is one number, so that a failing run shrinks to a short list. A difference throws
// std::runtime_error that says which check found it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kv/block_manager_peek.h"
#include "model/naive_blocks.h"
#include "quire/block_manager.h"

namespace quire::test {

// Keeps what can be found according to the events.
class RecordingSink : public KvEventSink {
 public:
  void on_event(const KvEvent& event) noexcept override;
  std::set<std::pair<int, std::string>> stored;
  std::int64_t num_errors = 0;  // stored twice, removed without being there
};

struct HarnessConfig {
  const char* name = "";
  BlockManagerOptions options;
  bool with_events = false;
};

// Small caches in which everything happens often.
std::vector<HarnessConfig> harness_configs();

class BlockManagerHarness {
 public:
  explicit BlockManagerHarness(const HarnessConfig& config);

  void run(std::uint32_t operation);  // and check()
  void check();
  // The last operations, the latest last.
  std::string history() const;
  std::int64_t num_operations() const { return num_operations_; }
  const BlockManager& manager() const { return manager_; }

 private:
  struct Live {
    SequenceId id;
    std::size_t naive = 0;
  };
  struct LateCopy {
    std::uint64_t ticket = 0;
    int pool = 0;
    BlockId src = 0;
    BlockId dst = 0;
  };
  struct Ticket {
    std::uint64_t number = 0;
    std::size_t num_copies = 0;
    std::vector<std::pair<int, PlacedBlock>> blocks;  // pool, block
  };

  std::uint32_t draw(std::uint32_t limit);  // [0, limit), from the operation's number
  NaivePrompt draw_prompt();
  Prompt make_prompt(const NaivePrompt& prompt, bool hashed) const;
  Live* draw_live(bool swapped);
  NaiveSequence& naive_of(const Live& live) { return naive_sequences_[live.naive]; }
  std::size_t free_naive();

  void admit(bool fill);
  void append();
  void commit_some();
  void rollback();
  void fork();
  void free_one();
  void truncate();
  void swap_out();
  void swap_in();
  void take_copies();
  void complete_copies();
  void reset();
  void resize();
  void misuse();
  void step_batch();
  void drain();

  void run_step(Live& live, std::int64_t num_accepted);
  void check_step_arrays(const std::vector<SequenceId>& ids, int group);
  void write_slots(const Live& live, const std::vector<Content>& accepted);
  void flush_late(std::uint64_t ticket);
  Content& memory(int pool, Side side, BlockId block, std::int64_t offset);
  Content read(int pool, Side side, BlockId block, std::int64_t offset);
  void copy_block(int pool, PlacedBlock src, PlacedBlock dst);

  void check_counts();
  void check_tables();
  void check_contents(const Live& live);
  void check_eviction_order();
  void check_flights();
  void check_events();

  HarnessConfig config_;
  RecordingSink sink_;
  BlockManager manager_;
  NaiveBlocks naive_;
  std::vector<Live> live_;
  std::vector<NaiveSequence> naive_sequences_;
  std::vector<bool> naive_used_;
  std::map<std::pair<int, BlockId>, int> number_of_;  // device: (pool, block) -> naive block
  std::vector<SequenceId> dead_;
  std::vector<std::array<std::vector<Content>, 2>> memory_;  // [pools][sides]
  std::vector<LateCopy> late_;
  std::vector<Ticket> tickets_;
  std::uint64_t drawn_ = 0;
  std::int64_t num_operations_ = 0;
  std::vector<const char*> history_;
  Content last_garbage_ = 0;
};

}  // namespace quire::test

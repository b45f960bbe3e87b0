// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/device_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "base/check.h"
#include "layout/kv_offset.h"

namespace quire::torch_sdpa {
namespace {

class Planner {
 public:
  Planner(const AttentionSpec& spec, const BatchView& batch, DevicePlan& plan)
      : spec_(spec), batch_(batch), plan_(plan) {}

  void add_calls(bool takes_ragged) {
    group();
    if (takes_ragged && spec_.mask.chunk <= 0 &&
        static_cast<std::int64_t>(by_lengths_.size()) > kMaxCallsByLength) {
      join();
    }
    for (const auto& [lengths, sequences] : by_lengths_) add_call(sequences, false);
    for (const std::int64_t s : trees_) add_call({s}, false);
    for (const auto& sequences : ragged_) {
      if (!sequences.empty()) add_call(sequences, true);
    }
  }

  void add_new_tokens() {
    const std::int64_t block_size = spec_.kv.block_size;
    for (std::int64_t i = 0; i < batch_.kv.slots.size; ++i) {
      const std::int64_t slot = batch_.kv.slots[i];
      if (slot < 0) continue;
      plan_.new_rows.push_back(i);
      plan_.new_blocks.push_back(slot / block_size);
      plan_.new_tokens.push_back(slot % block_size);
    }
  }

 private:
  using Lengths = std::pair<std::int64_t, std::int64_t>;

  bool has_tree(const SequenceView& sequence) const {
    return spec_.alignment == Alignment::kAligned && sequence.tree_bits != nullptr;
  }
  KeyRange keys_of(const SequenceView& sequence) const {
    KeyRange keys = keys_seen(spec_.mask, spec_.alignment, sequence, 0, sequence.q_len);
    keys.end = std::min(keys.end, sequence.kv_len);
    if (has_tree(sequence) && first_readable(sequence, keys) >= keys.end) return {};
    return keys.empty() ? KeyRange{} : keys;
  }
  // Whether some query of the sequence sees key j.
  bool is_readable(const SequenceView& sequence, std::int64_t first_old, std::int64_t j) const {
    return !has_tree(sequence) || is_seen_in_tree(spec_.mask, sequence, first_old, j);
  }
  std::int64_t first_readable(const SequenceView& sequence, KeyRange keys) const {
    if (!has_tree(sequence)) return keys.begin;
    const std::int64_t first_old = first_old_key_seen(spec_.mask, sequence);
    std::int64_t j = keys.begin;
    while (j < keys.end && !is_readable(sequence, first_old, j)) ++j;
    return j;
  }

  void group() {
    for (std::int64_t s = 0; s < batch_.num_sequences(); ++s) {
      const SequenceView sequence = sequence_view(batch_, s);
      if (sequence.q_len == 0) continue;
      if (has_tree(sequence)) {
        trees_.push_back(s);
      } else {
        by_lengths_[Lengths(sequence.q_len, sequence.kv_len)].push_back(s);
      }
    }
  }

  // Sequences of one query apart from the others: kernels treat them better.
  void join() {
    for (auto i = by_lengths_.begin(); i != by_lengths_.end();) {
      if (keys_of(sequence_view(batch_, i->second.front())).empty()) {
        ++i;
        continue;
      }
      std::vector<std::int64_t>& target = ragged_[i->first.first == 1 ? 0 : 1];
      target.insert(target.end(), i->second.begin(), i->second.end());
      i = by_lengths_.erase(i);
    }
    for (auto& sequences : ragged_) std::sort(sequences.begin(), sequences.end());
  }

  void add_call(const std::vector<std::int64_t>& sequences, bool is_ragged) {
    DeviceCall call;
    call.sequences = sequences;
    call.is_ragged = is_ragged;
    call.first_row = std::ssize(plan_.rows);
    call.first_key = std::ssize(plan_.key_blocks);
    call.first_bound = std::ssize(plan_.q_bounds);
    call.first_pattern = std::ssize(plan_.patterns);
    call.first_key_seen = keys_of(sequence_view(batch_, sequences.front())).begin;
    call.hiding = Hiding::kNothing;
    for (const std::int64_t s : sequences) add_sequence(s, call);
    if (is_ragged) add_bounds(call);
    call.num_rows = std::ssize(plan_.rows) - call.first_row;
    call.total_keys = std::ssize(plan_.key_blocks) - call.first_key;
    call.q_begin = plan_.rows[static_cast<std::size_t>(call.first_row)];
    for (std::int64_t i = 0; i < call.num_rows; ++i) {
      if (plan_.rows[static_cast<std::size_t>(call.first_row + i)] == call.q_begin + i) continue;
      call.q_begin = -1;
      break;
    }
    plan_.calls.push_back(std::move(call));
  }

  void add_bounds(const DeviceCall& call) {
    plan_.q_bounds.push_back(ragged_bound(std::ssize(plan_.rows) - call.first_row, "queries"));
    plan_.key_bounds.push_back(ragged_bound(std::ssize(plan_.key_blocks) - call.first_key, "keys"));
  }

  void add_sequence(std::int64_t s, DeviceCall& call) {
    if (call.is_ragged) add_bounds(call);
    const SequenceView sequence = sequence_view(batch_, s);
    const KeyRange keys = keys_of(sequence);
    call.q_len = std::max(call.q_len, sequence.q_len);
    call.num_keys = std::max(call.num_keys, keys.size());
    if (keys.empty()) {
      call.hiding = Hiding::kAll;
    } else if (has_tree(sequence)) {
      call.hiding = Hiding::kTree;
    }
    for (std::int64_t i = 0; i < sequence.q_len; ++i) add_row(s, sequence, i, keys, call);
    add_keys(s, sequence, keys);
    if (call.hiding == Hiding::kTree) add_pattern(sequence, keys);
  }

  void add_row(std::int64_t s, const SequenceView& sequence, std::int64_t i, KeyRange keys,
               DeviceCall& call) {
    plan_.rows.push_back(batch_.queries.begins[s] + i);
    plan_.row_positions.push_back(query_position(sequence, i));
    const KeyRange seen = keys_seen(spec_.mask, spec_.alignment, sequence, i, i + 1);
    const std::int64_t begin = std::clamp(seen.begin, keys.begin, keys.end);
    const std::int64_t end = std::clamp(seen.end, begin, keys.end);
    plan_.range_begins.push_back(begin - keys.begin);
    plan_.range_ends.push_back(end - keys.begin);
    plan_.row_first_keys.push_back(std::ssize(plan_.key_blocks) - call.first_key);
    if (begin == end) call.has_empty_rows = true;
    if (call.hiding == Hiding::kNothing && end - begin != keys.size()) {
      call.hiding = spec_.mask.chunk > 0 ? Hiding::kRanges : Hiding::kBand;
    }
  }

  // A key of a tree that no query sees may lie nowhere: one that is seen stands in for it.
  void add_keys(std::int64_t s, const SequenceView& sequence, KeyRange keys) {
    const std::int64_t block_size = spec_.kv.block_size;
    const std::int64_t first_old =
        has_tree(sequence) ? first_old_key_seen(spec_.mask, sequence) : 0;
    const std::int64_t stand_in = first_readable(sequence, keys);
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      const std::int64_t key = is_readable(sequence, first_old, j) ? j : stand_in;
      const std::int64_t slot = key_slot(batch_.kv.blocks, block_size, s, key);
      plan_.key_blocks.push_back(slot / block_size);
      plan_.key_tokens.push_back(slot % block_size);
      plan_.key_positions.push_back(key_position(sequence, j));
    }
  }

  void add_pattern(const SequenceView& sequence, KeyRange keys) {
    for (std::int64_t i = 0; i < sequence.q_len; ++i) {
      for (std::int64_t j = keys.begin; j < keys.end; ++j) {
        plan_.patterns.push_back(is_visible(spec_.mask, spec_.alignment, sequence, i, j) ? 1 : 0);
      }
    }
  }

  const AttentionSpec& spec_;
  const BatchView& batch_;
  DevicePlan& plan_;
  std::map<Lengths, std::vector<std::int64_t>> by_lengths_;
  std::vector<std::int64_t> trees_;
  std::vector<std::int64_t> ragged_[2];  // of one query, and of more
};

}  // namespace

void DevicePlan::clear() {
  calls.clear();
  for (auto* list : {&key_blocks, &key_tokens, &key_positions, &rows, &row_positions, &range_begins,
                     &range_ends, &row_first_keys, &new_rows, &new_blocks, &new_tokens}) {
    list->clear();
  }
  q_bounds.clear();
  key_bounds.clear();
  patterns.clear();
}

std::int32_t ragged_bound(std::int64_t value, const char* what) {
  if (value > std::numeric_limits<std::int32_t>::max()) {
    fail(ErrorCode::kUnsupported, "torch takes ragged batches of up to ",
         std::numeric_limits<std::int32_t>::max(), " ", what, ", this one has ", value);
  }
  return static_cast<std::int32_t>(value);
}

void make_device_plan(const AttentionSpec& spec, const BatchView& batch, bool takes_ragged,
                      DevicePlan& plan) {
  plan.clear();
  Planner planner(spec, batch, plan);
  planner.add_calls(takes_ragged);
  planner.add_new_tokens();
}

}  // namespace quire::torch_sdpa

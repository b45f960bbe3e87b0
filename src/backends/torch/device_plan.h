// SPDX-License-Identifier: Apache-2.0
// A batch as calls of dense attention on a device: which sequences share one, which keys and rows
// it takes, and what hides keys from rows. Metadata is read on the host; the lists of indices go to
// the device once per step.
//
// Sequences of equal lengths share a call, so that a batch of them is as few launches as torch's
// users would make. Where lengths differ too much for that, a kernel that takes lists of lengths
// serves all. Keys that no row of a sequence sees are in no list. Pure functions of the host.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/mask.h"
#include "quire/attention_spec.h"
#include "quire/batch.h"

namespace quire::torch_sdpa {

enum class Hiding : std::uint8_t {
  kAll,      // there is no key: rows are empty
  kNothing,  // every row sees every key
  kBand,     // causality and windows, the last row at the last key
  kRanges,   // a range of keys for every row
  kTree,     // any pattern; one sequence
};

// One call. Sequences and rows are in the order of the lists of the plan.
struct DeviceCall {
  std::vector<std::int64_t> sequences;
  Hiding hiding = Hiding::kNothing;
  bool is_ragged = false;  // lengths differ; the two below are the largest
  std::int64_t q_len = 0;
  std::int64_t num_keys = 0;
  std::int64_t first_key_seen = 0;  // of its first sequence: key 0 of the call
  std::int64_t first_row = 0;       // in the lists of rows
  std::int64_t num_rows = 0;
  std::int64_t first_key = 0;  // in the lists of keys
  std::int64_t total_keys = 0;
  std::int64_t first_bound =
      0;  // in the lists of bounds; ragged calls have one more than sequences
  std::int64_t first_pattern = 0;  // in the bytes of patterns
  std::int64_t q_begin = -1;       // rows follow each other from here on; -1: they do not
  bool has_empty_rows = false;
};

struct DevicePlan {
  std::vector<DeviceCall> calls;
  // By key of all calls: where it lies, and its position.
  std::vector<std::int64_t> key_blocks;
  std::vector<std::int64_t> key_tokens;
  std::vector<std::int64_t> key_positions;
  // By row: which row of Q, its position, and its range of keys of the call.
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> row_positions;
  std::vector<std::int64_t> range_begins;
  std::vector<std::int64_t> range_ends;
  std::vector<std::int64_t> row_first_keys;  // of its sequence: where ranges count from in the call
  // Of ragged calls: offsets of sequences in rows and keys.
  std::vector<std::int32_t> q_bounds;
  std::vector<std::int32_t> key_bounds;
  // 1: visible, [q_len, num_keys] of every call with a tree.
  std::vector<std::uint8_t> patterns;
  // New K and V that are stored: rows of them, and where to.
  std::vector<std::int64_t> new_rows;
  std::vector<std::int64_t> new_blocks;
  std::vector<std::int64_t> new_tokens;

  void clear();
};

// More different lengths than this become one call if `takes_ragged`.
inline constexpr std::int64_t kMaxCallsByLength = 4;

// A bound of a ragged call; kernels take 32 bits. Throws Error(kUnsupported) with a value that has
// more.
std::int32_t ragged_bound(std::int64_t value, const char* what);

// Keeps the memory of `plan`. REQUIRES: a valid batch in host memory.
void make_device_plan(const AttentionSpec& spec, const BatchView& batch, bool takes_ragged,
                      DevicePlan& plan);

}  // namespace quire::torch_sdpa

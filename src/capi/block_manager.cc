// SPDX-License-Identifier: Apache-2.0
// The block manager of the C interface: who holds which blocks. Steps are in block_step.cc.
#include <algorithm>
#include <memory>
#include <optional>
#include <span>

#include "capi/convert.h"
#include "capi/driven_blocks.h"
#include "capi/handles.h"
#include "capi/sized_struct.h"

namespace quire::capi {
namespace {

static_assert(QUIRE_ADMIT_NOW == static_cast<int>(AdmitStatus::kNow) &&
              QUIRE_ADMIT_LATER == static_cast<int>(AdmitStatus::kLater) &&
              QUIRE_ADMIT_NEVER == static_cast<int>(AdmitStatus::kNever));
static_assert(QUIRE_EVENT_STORED == static_cast<int>(KvEvent::Kind::kStored) &&
              QUIRE_EVENT_REMOVED == static_cast<int>(KvEvent::Kind::kRemoved) &&
              QUIRE_EVENT_CLEARED == static_cast<int>(KvEvent::Kind::kCleared));

int to_validate_interval(std::int32_t given) {
  if (given == 0) return BlockManagerOptions{}.validate_interval;
  return given == -1 ? 0 : given;
}

BlockManagerOptions to_manager_options(const quire_block_manager_options* pointer,
                                       std::unique_ptr<EventSink>& events) {
  const quire_block_manager_options given = read_struct(pointer, "options");
  BlockManagerOptions options;
  if (given.block_size != 0) options.block_size = given.block_size;
  if (given.digest_bits != 0) options.digest_bits = given.digest_bits;
  require(given.validate_interval >= -1, "validate_interval: cannot be ", given.validate_interval);
  options.validate_interval = to_validate_interval(given.validate_interval);
  options.prefix_cache = !to_bool(given.no_prefix_cache, "no_prefix_cache");
  options.share_tails = to_bool(given.share_tails, "share_tails");
  options.compare_tokens = to_bool(given.compare_tokens, "compare_tokens");
  for_each_struct(given.pools, given.num_pools, "pools",
                  [&](std::int64_t /*i*/, const quire_block_pool& pool) {
                    options.pools.push_back({.num_blocks = pool.num_blocks,
                                             .num_host_blocks = pool.num_host_blocks,
                                             .watermark_blocks = pool.watermark_blocks});
                  });
  for_each_struct(
      given.groups, given.num_groups, "groups",
      [&](std::int64_t /*i*/, const quire_layer_group& group) {
        options.groups.push_back({.pool = group.pool,
                                  .alignment = to_enum<Alignment>(group.alignment, 2, "alignment"),
                                  .mask = to_mask(group.not_causal, group.has_window_left,
                                                  group.window_left, group.chunk),
                                  .num_sink_tokens = group.num_sink_tokens});
      });
  if (given.on_event != nullptr) {
    events = std::make_unique<EventSink>(given.on_event, given.event_context);
    options.events = events.get();
  }
  return options;
}

AdmitOptions to_admit_options(const quire_admit_options* pointer) {
  const quire_admit_options given = read_optional_struct(pointer, "options");
  return {.num_lookahead = given.num_lookahead,
          .max_chunk = given.max_chunk,
          .num_cross_tokens = given.num_cross_tokens};
}

}  // namespace

void EventSink::on_event(const KvEvent& event) noexcept {
  auto given = make_struct<quire_kv_event>();
  given.kind = static_cast<std::int32_t>(event.kind);
  given.group = event.group;
  std::copy(event.digest.bytes.begin(), event.digest.bytes.end(), given.digest);
  std::copy(event.parent.bytes.begin(), event.parent.bytes.end(), given.parent);
  given.tokens = event.tokens.data();
  given.num_tokens = static_cast<std::int64_t>(event.tokens.size());
  function_(context_, &given);
}

}  // namespace quire::capi

using namespace quire::capi;

quire_status quire_block_manager_create(const quire_block_manager_options* options,
                                        quire_block_manager** manager) {
  return guarded([&] {
    quire_block_manager*& out = require_out(manager, "manager");
    std::unique_ptr<EventSink> events;
    quire::BlockManager made(to_manager_options(options, events));
    auto blocks = std::make_shared<ManagedBlocks>(
        ManagedBlocks{.events = std::move(events), .manager = std::move(made), .copies = {}});
    out = new quire_block_manager{.blocks = std::move(blocks)};
  });
}

quire_status quire_block_manager_destroy(quire_block_manager* manager) {
  return destroy(manager, "manager");
}

quire_status quire_block_manager_can_admit(const quire_block_manager* manager,
                                           const quire_prompt* prompt,
                                           const quire_admit_options* options, int32_t* status) {
  return guarded([&] {
    int32_t& out = require_out(status, "status");
    out = static_cast<int32_t>(
        blocks_of(manager).can_admit(open(prompt, "prompt").prompt, to_admit_options(options)));
  });
}

quire_status quire_block_manager_admit(quire_block_manager* manager, const quire_prompt* prompt,
                                       const quire_admit_options* options,
                                       quire_admission* admission) {
  return guarded([&] {
    OutStruct<quire_admission> out(admission, "admission");
    quire::BlockManager& blocks = own_blocks_of(manager);
    const quire::Prompt& asked = open(prompt, "prompt").prompt;
    const quire::AdmitOptions how = to_admit_options(options);
    auto value = make_struct<quire_admission>();
    if (const std::optional<quire::Admission> admitted = blocks.admit(asked, how)) {
      value.sequence = admitted->id.value;
      value.num_cached_tokens = admitted->num_cached_tokens;
    } else {
      value.status = static_cast<int32_t>(blocks.can_admit(asked, how));
    }
    out.set(value);
  });
}

quire_status quire_block_manager_num_cached_tokens(const quire_block_manager* manager,
                                                   const quire_prompt* prompt,
                                                   int64_t* num_tokens) {
  return guarded([&] {
    int64_t& out = require_out(num_tokens, "num_tokens");
    out = blocks_of(manager).num_cached_tokens(open(prompt, "prompt").prompt);
  });
}

quire_status quire_block_manager_num_blocks_to_admit(const quire_block_manager* manager,
                                                     const quire_prompt* prompt,
                                                     const quire_admit_options* options,
                                                     int32_t pool, int64_t* num_blocks) {
  return guarded([&] {
    int64_t& out = require_out(num_blocks, "num_blocks");
    out = blocks_of(manager).num_blocks_to_admit(open(prompt, "prompt").prompt,
                                                 to_admit_options(options), pool);
  });
}

quire_status quire_block_manager_can_append(const quire_block_manager* manager, uint64_t sequence,
                                            int64_t num_tokens, int32_t* can_append) {
  return guarded([&] {
    int32_t& out = require_out(can_append, "can_append");
    out = blocks_of(manager).can_append({sequence}, num_tokens) ? 1 : 0;
  });
}

quire_status quire_block_manager_append(quire_block_manager* manager, uint64_t sequence,
                                        int64_t num_tokens, int32_t* appended) {
  return guarded([&] {
    int32_t& out = require_out(appended, "appended");
    out = own_blocks_of(manager).append({sequence}, num_tokens) ? 1 : 0;
  });
}

quire_status quire_block_manager_num_blocks_to_append(const quire_block_manager* manager,
                                                      uint64_t sequence, int64_t num_tokens,
                                                      int32_t pool, int64_t* num_blocks) {
  return guarded([&] {
    int64_t& out = require_out(num_blocks, "num_blocks");
    out = blocks_of(manager).num_blocks_to_append({sequence}, num_tokens, pool);
  });
}

quire_status quire_block_manager_commit(quire_block_manager* manager, uint64_t sequence,
                                        const int32_t* tokens, int64_t num_tokens) {
  return guarded([&] {
    quire::BlockManager& blocks = own_blocks_of(manager);
    if (tokens == nullptr) {
      blocks.commit_prompt({sequence}, num_tokens);
      return;
    }
    require_array(tokens, num_tokens, "tokens");
    blocks.commit({sequence}, {tokens, static_cast<std::size_t>(num_tokens)});
  });
}

quire_status quire_block_manager_rollback(quire_block_manager* manager, uint64_t sequence,
                                          int64_t num_tokens) {
  return guarded([&] { own_blocks_of(manager).rollback({sequence}, num_tokens); });
}

quire_status quire_block_manager_fork(quire_block_manager* manager, uint64_t sequence,
                                      uint64_t* forked) {
  return guarded([&] {
    uint64_t& out = require_out(forked, "forked");
    out = own_blocks_of(manager).fork({sequence}).value;
  });
}

quire_status quire_block_manager_free_sequence(quire_block_manager* manager, uint64_t sequence) {
  return guarded([&] { own_blocks_of(manager).free({sequence}); });
}

quire_status quire_block_manager_truncate(quire_block_manager* manager, uint64_t sequence,
                                          int64_t num_tokens, int64_t* left) {
  return guarded([&] {
    int64_t& out = require_out(left, "left");
    out = own_blocks_of(manager).truncate({sequence}, num_tokens);
  });
}

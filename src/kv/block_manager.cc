// SPDX-License-Identifier: Apache-2.0
// Construction, sequence ids, and the steps that all calls are made of.
#include "quire/block_manager.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "attention/mask.h"
#include "base/check.h"
#include "kv/block_manager_state.h"
#include "kv/mutation.h"
#include "kv/reserve_more.h"

namespace quire {
namespace {

// An id is owner, generation, record. A record whose generations are used up is never used again.
constexpr int kRecordBits = 20;
constexpr int kGenerationBits = 20;
constexpr std::uint64_t kRecordMask = (std::uint64_t{1} << kRecordBits) - 1;
constexpr std::uint64_t kGenerationMask = (std::uint64_t{1} << kGenerationBits) - 1;
constexpr int kOwnerShift = kRecordBits + kGenerationBits;

std::uint64_t record_of(SequenceId id) noexcept {
  return id.value & kRecordMask;
}
std::uint64_t generation_of(SequenceId id) noexcept {
  return (id.value >> kRecordBits) & kGenerationMask;
}

// Differs between the managers of a process, also between those that follow at one address.
std::uint64_t make_owner(const void* address) noexcept {
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  const auto mixed = (reinterpret_cast<std::uintptr_t>(address) ^ static_cast<std::uint64_t>(now)) *
                     0x9E3779B97F4A7C15ULL;
  return mixed >> kOwnerShift;
}

// Lengths and numbers of blocks are below 2^31: adding one of these must not overflow.
constexpr std::int64_t kAddendLimit = std::int64_t{1} << 62;

void require_pool(const BlockPoolOptions& pool, std::size_t index) {
  constexpr std::int64_t kMaxBlocks = std::numeric_limits<BlockId>::max();
  require(pool.num_blocks >= 1 && pool.num_blocks <= kMaxBlocks, "pool ", index,
          ": num_blocks must be between 1 and ", kMaxBlocks, ", is ", pool.num_blocks);
  require(pool.num_host_blocks >= 0 && pool.num_host_blocks <= kMaxBlocks, "pool ", index,
          ": num_host_blocks must be between 0 and ", kMaxBlocks, ", is ", pool.num_host_blocks);
  require(pool.watermark_blocks >= 0 && pool.watermark_blocks < kAddendLimit, "pool ", index,
          ": watermark_blocks must be in [0, 2^62), is ", pool.watermark_blocks);
}

void require_layer_group(const LayerGroup& group, std::size_t index, std::size_t num_pools) {
  require(group.pool >= 0 && static_cast<std::size_t>(group.pool) < num_pools, "group ", index,
          ": pool must be one of the ", num_pools, " pools, is ", group.pool);
  require(group.mask.window_left >= -1 && group.mask.window_left < kAddendLimit &&
              group.mask.chunk >= 0 && group.mask.chunk < kAddendLimit,
          "group ", index, ": window_left must be in [-1, 2^62) and chunk in [0, 2^62), are ",
          group.mask.window_left, " and ", group.mask.chunk);
  require(group.num_sink_tokens >= 0 && group.num_sink_tokens < kAddendLimit, "group ", index,
          ": num_sink_tokens must be in [0, 2^62), is ", group.num_sink_tokens);
  const bool has_window = group.mask.window_left >= 0 || group.mask.chunk > 0;
  require(!has_window || group.mask.causal, "group ", index,
          ": a window without a causal mask has no use for a cache");
  require(group.alignment == Alignment::kAligned || !has_window, "group ", index,
          ": cross-attention has no window");
}

void require_options(const BlockManagerOptions& options) {
  require(options.block_size >= 1, "block_size must be at least 1, is ", options.block_size);
  require(!options.pools.empty() && !options.groups.empty(),
          "a block manager needs at least one pool and one group, has ", options.pools.size(),
          " and ", options.groups.size());
  for (std::size_t i = 0; i < options.pools.size(); ++i) require_pool(options.pools[i], i);
  for (std::size_t i = 0; i < options.groups.size(); ++i) {
    require_layer_group(options.groups[i], i, options.pools.size());
  }
  require(options.validate_interval >= 0, "validate_interval must not be negative, is ",
          options.validate_interval);
}

PrefixIndex::Options index_options(const BlockManagerOptions& options, std::int64_t num_blocks) {
  return {.num_blocks = options.prefix_cache ? num_blocks : 1,
          .block_size = options.block_size,
          .keep_tokens = options.compare_tokens || options.share_tails,
          .compare_tokens = options.compare_tokens,
          .digest_bits = options.digest_bits};
}

}  // namespace

std::ostream& operator<<(std::ostream& out, SequenceId id) {
  return out << record_of(id) << "." << generation_of(id);
}

std::string to_string(SequenceId id) {
  return concat(id);
}

BlockManager::State::State(const BlockManagerOptions& options_)
    : options(options_), copies(options_.groups.size()), found(options_.groups.size()) {
  require_options(options);
  for (const BlockPoolOptions& pool : options.pools) {
    const std::int64_t num_host = std::max<std::int64_t>(pool.num_host_blocks, 1);
    pools.push_back({.device = BlockPool(pool.num_blocks),
                     .index = PrefixIndex(index_options(options, pool.num_blocks)),
                     .host = BlockPool(num_host),
                     .host_index = PrefixIndex(index_options(options, num_host)),
                     .watermark = pool.watermark_blocks});
  }
  found_tails.resize(options.groups.size());
  owner = make_owner(this);
}

BlockManager::BlockManager(const BlockManagerOptions& options)
    : state_(std::make_unique<State>(options)) {}
BlockManager::~BlockManager() = default;
BlockManager::BlockManager(BlockManager&&) noexcept = default;
BlockManager& BlockManager::operator=(BlockManager&&) noexcept = default;

const BlockManagerOptions& BlockManager::options() const noexcept {
  return state_->options;
}

std::int64_t BlockManager::State::first_needed_block(int g, std::int64_t num_tokens) const {
  if (!has_window(g)) return 0;
  return positions_seen(group(g).mask, num_tokens, num_tokens + 1).begin / options.block_size;
}

std::int64_t BlockManager::State::window_tokens(int g) const {
  const Mask& mask = group(g).mask;
  if (mask.chunk <= 0) return mask.window_left;
  return mask.window_left < 0 ? mask.chunk - 1 : std::min(mask.window_left, mask.chunk - 1);
}

void BlockManager::State::require_group(int g) const {
  require(g >= 0 && g < num_groups(), "group ", g, " is not one of the ", num_groups(), " groups");
}

SequenceId BlockManager::State::id_of(std::size_t record) const noexcept {
  return {(owner << kOwnerShift) |
          (static_cast<std::uint64_t>(sequences[record].generation) << kRecordBits) | record};
}

const SequenceRecord& BlockManager::State::find(SequenceId id) const {
  const std::uint64_t record = record_of(id);
  if (id.value >> kOwnerShift != owner || record >= sequences.size()) [[unlikely]] {
    fail(ErrorCode::kInvalidArgument, "sequence ", id, " is not one of this block manager");
  }
  const SequenceRecord& sequence = sequences[record];
  if (sequence.status == SequenceRecord::Status::kFree || sequence.generation != generation_of(id))
      [[unlikely]] {
    fail(ErrorCode::kInvalidArgument, "sequence ", id, " has been freed");
  }
  return sequence;
}

SequenceRecord& BlockManager::State::find(SequenceId id) {
  return const_cast<SequenceRecord&>(std::as_const(*this).find(id));
}

const SequenceRecord& BlockManager::State::find_resident(SequenceId id, const char* what) const {
  const SequenceRecord& sequence = find(id);
  require(sequence.status == SequenceRecord::Status::kResident, "sequence ", id,
          " is swapped out: it cannot ", what);
  return sequence;
}

SequenceRecord& BlockManager::State::find_resident(SequenceId id, const char* what) {
  return const_cast<SequenceRecord&>(std::as_const(*this).find_resident(id, what));
}

void BlockManager::State::add_records(std::size_t count) {
  const std::size_t first = sequences.size();
  require(first + count <= kRecordMask + 1, "there are at most ", kRecordMask + 1,
          " sequences at a time");
  std::vector<SequenceRecord> added(count);
  for (SequenceRecord& sequence : added) {
    sequence.tables.resize(options.groups.size());
    sequence.tail.reserve(static_cast<std::size_t>(options.block_size));
  }
  reserve_more(sequences, count);
  if (free_records.capacity() < first + count) free_records.reserve(2 * (first + count));
  // From here on nothing throws. Below those that wait already: low records are used first.
  std::ranges::move(added, std::back_inserter(sequences));
  free_records.insert(free_records.begin(), count, 0);
  for (std::size_t i = 0; i < count; ++i) {
    free_records[i] = static_cast<std::uint32_t>(first + count - 1 - i);
  }
}

std::size_t BlockManager::State::make_record() {
  if (free_records.empty()) add_records(1);
  return free_records.back();
}

void BlockManager::State::free_record(SequenceRecord& sequence) noexcept {
  sequence.status = SequenceRecord::Status::kFree;
  sequence.prompt = Prompt();
  for (SequenceTable& table : sequence.tables) {
    table.blocks.clear();
    table.window_begin = 0;
  }
  sequence.tail.clear();
  sequence.num_tokens = sequence.num_appended = sequence.num_cross_tokens = 0;
  if (sequence.generation == kGenerationMask) return;
  ++sequence.generation;
  free_records.push_back(static_cast<std::uint32_t>(&sequence - sequences.data()));
}

void BlockManager::State::emit(KvEvent::Kind kind, const PrefixIndex::Key& key) const {
  if (options.events == nullptr) return;
  KvEvent event{.kind = kind, .group = key.group, .digest = key.digest};
  if (kind == KvEvent::Kind::kStored) {
    event.parent = key.parent;
    event.tokens = key.tokens;
  }
  options.events->on_event(event);
}

void BlockManager::State::forget(PoolState& pool, BlockId block) {
  const bool is_last = !pool.index.is_tail(block) && !pool.index.has_other_copy(block);
  if (is_last) emit(KvEvent::Kind::kRemoved, pool.index.key(block));
  pool.index.erase(block);
}

BlockId BlockManager::State::acquire(int g) {
  PoolState& pool = pool_of(g);
  const BlockPool::Allocation allocation = pool.device.allocate();
  QUIRE_CHECK(allocation.block != kNullBlock);
  if (allocation.evicted && !is_broken(Mutant::kKeepsKeyOfEvicted)) {
    forget(pool, allocation.block);
    ++counters.num_evictions;
  }
  return allocation.block;
}

void BlockManager::State::release(int g, BlockId block) {
  PoolState& pool = pool_of(g);
  if (!options.prefix_cache || pool.device.num_refs(block) > 1 || !pool.index.contains(block)) {
    pool.device.release_to_free(block);
  } else if (!is_broken(Mutant::kKeepsTwoUnreferenced) && pool.index.has_other_copy(block)) {
    pool.index.erase(block);
    pool.device.release_to_free(block);
  } else {
    pool.device.release_to_evictable(block);
  }
}

void BlockManager::State::release_host(int g, BlockId block) {
  PoolState& pool = pool_of(g);
  const bool is_known = options.prefix_cache && pool.host_index.contains(block);
  if (pool.host.release_to_free(block) && is_known) pool.host_index.erase(block);
}

void BlockManager::State::publish(int g, BlockId block, PrefixIndex::Key key) {
  PoolState& pool = pool_of(g);
  key.group = g;
  const BlockId known = pool.index.find(key);
  if (known == kNullBlock) {
    emit(KvEvent::Kind::kStored, key);
  } else {
    ++counters.num_duplicates;
    if (pool.device.is_evictable(known)) {
      pool.index.erase(known);
      pool.device.drop(known);
    }
  }
  pool.index.insert(block, key);
  ++counters.num_stored;
}

std::int64_t BlockManager::State::num_table_refs(int g, BlockId block) const {
  const BlockPool& device = pool_of(g).device;
  return device.num_refs(block) - device.num_pins(block);
}

PlacedBlock BlockManager::State::pin_source(int g, PlacedBlock src) {
  PoolState& pool = pool_of(g);
  BlockPool& blocks = src.side == Side::kDevice ? pool.device : pool.host;
  const std::int32_t note = blocks.is_in_use(src.block) ? blocks.note(src.block) : 0;
  if (note != 0 && !is_broken(Mutant::kChainsCopies)) src = copies.waiting(note).src;
  (src.side == Side::kDevice ? pool.device : pool.host).pin(src.block);
  return src;
}

void BlockManager::State::add_copy(int g, PlacedBlock src, PlacedBlock dst) {
  PoolState& pool = pool_of(g);
  BlockPool& blocks = dst.side == Side::kDevice ? pool.device : pool.host;
  blocks.pin(dst.block);
  blocks.set_note(dst.block, copies.add({.src = src, .dst = dst, .group = g}));
}

// A copy no longer needs the block. If nobody else does, it is queued for eviction: in front of the
// block that it follows, should that have been released while the copy ran.
void BlockManager::State::unpin(int g, PlacedBlock placed) {
  PoolState& pool = pool_of(g);
  const BlockId block = placed.block;
  if (placed.side == Side::kHost) {
    pool.host.unpin(block);
    return release_host(g, block);
  }
  pool.device.unpin(block);
  const bool is_last = options.prefix_cache && pool.device.num_refs(block) == 1;
  const bool is_kept = is_last && pool.index.contains(block) &&
                       (pool.index.is_tail(block) || !pool.index.has_other_copy(block));
  if (!is_kept) return release(g, block);
  BlockId before = kNullBlock;
  if (!has_window(g) && !is_broken(Mutant::kUnpinnedGoesLast)) {
    before = pool.index.find_digest(pool.index.key(block).parent, g);
    if (before != kNullBlock && !pool.device.is_evictable(before)) before = kNullBlock;
  }
  pool.device.release_to_evictable(block, before);
}

void BlockManager::State::release_last_entry(int g, SequenceRecord& sequence) {
  SequenceTable& table = sequence.table(g);
  if (table.blocks.back() != kNullBlock) release(g, table.blocks.back());
  table.blocks.pop_back();
}

void BlockManager::State::release_from(SequenceRecord& sequence, std::int64_t num_entries) {
  const std::int64_t size = num_blocks_for(sequence.num_tokens + sequence.num_appended);
  for (std::int64_t i = size; i > num_entries; --i) {
    for (int g = 0; g < num_groups(); ++g) {
      if (!is_cross(g)) release_last_entry(g, sequence);
    }
  }
}

void BlockManager::State::release_window(SequenceRecord& sequence) {
  for (int g = 0; g < num_groups(); ++g) {
    if (is_cross(g) || !has_window(g)) continue;
    SequenceTable& table = sequence.table(g);
    std::int64_t end = first_needed_block(g, sequence.num_tokens);
    if (is_broken(Mutant::kReleasesWindowEarly) && end > 0) ++end;
    end = std::min(end, static_cast<std::int64_t>(table.blocks.size()));
    const std::int64_t begin = std::max(table.window_begin, num_sink_blocks(g));
    for (std::int64_t i = begin; i < end; ++i) {
      BlockId& entry = table.blocks[static_cast<std::size_t>(i)];
      release(g, entry);
      entry = kNullBlock;
    }
    if (end > begin) table.window_begin = end;
  }
}

void BlockManager::State::changed() {
#ifndef NDEBUG
  if (options.validate_interval > 0 && ++num_changes % options.validate_interval == 0) {
    validate();
  }
#endif
}

}  // namespace quire

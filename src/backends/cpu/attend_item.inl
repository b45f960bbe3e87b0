// SPDX-License-Identifier: Apache-2.0
// The algorithm of the CPU backend, once, over the vectors of a level (vec.inl) and a way to
// multiply (Ops). Included into the level's namespace after the files that it uses.
//
//   load Q;  for each chunk of keys, for each kv head of the item:
//     S = Q K^T;  scale, cap, slope, bias, mask;  P = online softmax;  O += P V
//
// The heads of a chunk come before the next chunk, so that memory is read in whole blocks.

// The keys of `keys` up to the end of the chunk that holds the first.
inline KeyRange first_chunk(const KeyRange& keys, std::int64_t width) noexcept {
  return {keys.begin, std::min(keys.end, (keys.begin / width + 1) * width)};
}

// Keys of a step: more where an item holds many rows of one head, or where keys are small.
template <class Ops, class T>
inline std::int64_t chunk_width(const AttendCall& call, const WorkItem& item) noexcept {
  return item.rows.size() > kChunk / 2 ? Ops::kWideChunk : Ops::template few_rows_chunk<T>(call);
}

// The rows of an item in q or out.
inline void add_rows(const AttendCall& call, const TensorView& tensor, const WorkItem& item,
                     Pieces& pieces) noexcept {
  for (std::int64_t h = item.kv_heads.begin; h < item.kv_heads.end; ++h) {
    pieces.add_rows(call, tensor, item.sequence, h, item.rows);
  }
}

// What is fetched while the keys of a chunk are attended to: as a rule all of the next chunk, in
// the order of memory, which most memory gives fastest; or heads in the order in which they are
// read, K and V in turn, a short way ahead.
class KeysAhead {
 public:
  KeysAhead(const AttendCall& call, PrefetchWalk& ahead, bool by_heads) noexcept
      : call_(call),
        ahead_(ahead),
        by_heads_(by_heads),
        num_parts_(call.cache.format.v_in_k ? 1 : 2) {}

  bool by_heads() const noexcept { return by_heads_; }

  // The heads of a chunk are attended to next, then those of set_following(), if it is called.
  void begin_chunk(const Chunk& chunk, const IndexRange& kv_heads) noexcept {
    if (!by_heads_) {
      ahead_.clear();
      return;
    }
    current_ = 1 - current_;
    if (!has_following_) find_parts(chunk, current_);
    has_following_ = false;
    heads_[0] = kv_heads;
    heads_[1] = {0, 0};
    const std::int64_t part_bytes =
        chunk.width * call_.spec.head_dim * dtype_bytes(call_.cache.format.dtype);
    distance_ = std::min((kAheadBytes + part_bytes - 1) / part_bytes, kv_heads.size() * num_parts_);
  }
  void set_following(const Chunk& chunk, const IndexRange& kv_heads) noexcept {
    if (!by_heads_) {
      ahead_.pieces().add_chunk(call_, chunk, kv_heads);
      return;
    }
    find_parts(chunk, 1 - current_);
    has_following_ = true;
    heads_[1] = kv_heads;
  }
  // A head of the chunk is read next.
  void begin_head(std::int64_t kv_head) noexcept {
    if (!by_heads_) return;
    const std::int64_t part = (kv_head - heads_[0].begin) * num_parts_ + distance_;
    for (int i = 0; i < num_parts_; ++i) add_part(part + i);
  }

 private:
  static constexpr std::int64_t kAheadBytes = 32 << 10;

  // K and V of a chunk.
  void find_parts(const Chunk& chunk, int place) noexcept {
    for (int i = 0; i < num_parts_; ++i) {
      parts_[place][i].clear();
      parts_[place][i].add_first_head(call_, chunk, i == 0 ? KvTensor::kK : KvTensor::kV);
    }
  }
  // Part 0 is K of the chunk's first head, part 1 its V; those of the following chunk go on.
  void add_part(std::int64_t part) noexcept {
    const std::int64_t head = part / num_parts_;
    const int which = head < heads_[0].size() ? 0 : 1;
    const std::int64_t kv_head = heads_[which].begin + head - (which == 0 ? 0 : heads_[0].size());
    if (kv_head >= heads_[which].end) return;
    ahead_.add_head(parts_[which == 0 ? current_ : 1 - current_][part % num_parts_], kv_head);
  }

  const AttendCall& call_;
  PrefetchWalk& ahead_;
  const bool by_heads_;
  const int num_parts_;  // of a head: K and V, or what is both
  // Of kv head 0, of this chunk or the following one: keys of large blocks are few pieces.
  PiecesOf<16> parts_[2][2];
  int current_ = 0;
  bool has_following_ = false;
  IndexRange heads_[2] = {{0, 0}, {0, 0}};  // of this chunk and the following one
  std::int64_t distance_ = 0;               // parts
};

// Calls attend_head(chunk, kv_head) for every kv head of every chunk of an item, with what is
// needed after it to be fetched ahead. Chunks lie in `chunks`; one stays where it is until kKept
// others have followed.
//
// Many rows of one head wait for arithmetic, not for keys, which follow each other in a way that
// the processor foresees; the rows themselves do not. Nor is anything fetched for a short item
// alone where a level says so.
template <class Ops, class T, int kKept, class AttendHead>
inline void for_chunks(const AttendCall& call, const WorkItem& item, const WorkItem* next,
                       PrefetchWalk& ahead, Chunk (&chunks)[kKept + 1],
                       AttendHead&& attend_head) noexcept {
  const std::int64_t width = chunk_width<Ops, T>(call, item);
  const bool many_rows = item.rows.size() > kChunk / 2;
  const bool fetches_keys =
      !many_rows && (next != nullptr || item.keys.size() > Ops::kUnfetchedChunks * width);
  KeysAhead keys_ahead(call, ahead, fetches_keys && width > kChunk && call.fetches_by_heads());
  int current = 0;
  KeyRange keys = first_chunk(item.keys, width);
  if (!keys.empty()) locate(call, item.sequence, keys, width, chunks[current]);
  while (!keys.empty()) {
    const KeyRange left = {keys.end, item.keys.end};
    const int following = current == kKept ? 0 : current + 1;
    keys_ahead.begin_chunk(chunks[current], item.kv_heads);
    if (!left.empty()) {
      const KeyRange following_keys = first_chunk(left, width);
      locate(call, item.sequence, following_keys, width, chunks[following]);
      if (fetches_keys) keys_ahead.set_following(chunks[following], item.kv_heads);
      // The last chunk alone would be too short for all rows.
      if (many_rows && next != nullptr && following_keys.end == item.keys.end) {
        add_rows(call, call.q, *next, ahead.pieces());
      }
    } else {
      if (many_rows) {
        add_rows(call, call.output.out, item, ahead.pieces());
        if (next != nullptr && keys.begin == item.keys.begin) {
          add_rows(call, call.q, *next, ahead.pieces());
        }
      }
      if (next != nullptr && !next->keys.empty()) {
        const std::int64_t next_width = chunk_width<Ops, T>(call, *next);
        locate(call, next->sequence, first_chunk(next->keys, next_width), next_width,
               chunks[following]);
        keys_ahead.set_following(chunks[following], next->kv_heads);
      }
    }
    if constexpr (Ops::kTouchesPieces) {
      if (!keys_ahead.by_heads()) ahead.touch();
    }
    for (std::int64_t h = item.kv_heads.begin; h < item.kv_heads.end; ++h) {
      keys_ahead.begin_head(h);
      attend_head(chunks[current], h);
    }
    if (!many_rows) ahead.finish();  // those would wait for it more than they gain
    keys = left.empty() ? left : first_chunk(left, width);
    current = following;
  }
}

// Chunk by chunk, head by head, block by block of rows.
template <class Ops, class T>
inline void attend_in_turn(const AttendCall& call, const WorkItem& item, const WorkItem* next,
                           const Scratch& scratch, const SequenceView& sequence,
                           const RowRanges<Ops>& ranges) noexcept {
  // A few chunks alone are most likely near already: asking again took 6.0 instead of 5.3 us for a
  // step of one token at 128 keys on two threads of Zen5.
  constexpr std::int64_t kShort = 4 * kChunk;
  const bool is_short = next == nullptr && item.keys.size() <= kShort;
  PrefetchWalk ahead(call, is_short);
  ChunkOfHead<Ops, T> step(call, item, sequence, scratch, ahead);
  for (std::int64_t h = item.kv_heads.begin; h < item.kv_heads.end; ++h) {
    clear_rows(head_rows<Ops>(call, item, scratch, h).states, item.rows.size());
  }
  Chunk chunks[2];
  for_chunks<Ops, T, 1>(call, item, next, ahead, chunks, [&](const Chunk& chunk, std::int64_t h) {
    step.begin(chunk, h);
    step.attend(head_rows<Ops>(call, item, scratch, h), ranges);
  });
}

// The same with several blocks under way.
template <class Ops, class T>
inline void attend_pipelined(const AttendCall& call, const WorkItem& item, const WorkItem* next,
                             const Scratch& scratch, const SequenceView& sequence,
                             const RowRanges<Ops>& ranges) noexcept {
  using Step = ChunkOfHead<Ops, T>;
  constexpr int kDepth = Pipeline<Ops, T>::kDepth;
  PrefetchWalk ahead(call);
  Step steps[kDepth] = {Step(call, item, sequence, scratch, ahead),
                        Step(call, item, sequence, scratch, ahead),
                        Step(call, item, sequence, scratch, ahead)};
  int num_steps = 0;
  bool begun[kMaxStateRows / Ops::kRowBlock] = {};  // blocks of all heads with something in O
  Pipeline<Ops, T> pipeline(call, ahead);
  Chunk chunks[kDepth + 1];  // those of blocks that are under way to the end
  const auto attend_head = [&](const Chunk& chunk, std::int64_t h) {
    const HeadRows<Ops> head = head_rows<Ops>(call, item, scratch, h);
    bool* head_begun = begun + (h - item.kv_heads.begin) * ranges.count;
    Step& step = steps[num_steps++ % kDepth];
    step.begin(chunk, h);
    bool any = false;
    for (int i = 0; i < ranges.count; ++i) {
      const bool pushed = pipeline.push(step, head, ranges.range[i], !head_begun[i]);
      head_begun[i] = head_begun[i] || pushed;
      any = any || pushed;
    }
    // One that nobody sees would make those under way older than they may be.
    if (!any) pipeline.flush();
  };
  for_chunks<Ops, T, kDepth>(call, item, next, ahead, chunks, attend_head);
  pipeline.flush();
  for (std::int64_t h = item.kv_heads.begin; h < item.kv_heads.end; ++h) {
    const HeadRows<Ops> head = head_rows<Ops>(call, item, scratch, h);
    for (int i = 0; i < ranges.count; ++i) {
      if (begun[(h - item.kv_heads.begin) * ranges.count + i]) continue;
      const IndexRange& rows = ranges.range[i].rows;
      clear_rows(head.states.from(rows.begin - head.rows.begin), rows.size());
    }
  }
}

template <class Ops, class T>
void attend_item_of(const AttendCall& call, const WorkItem& item, const WorkItem* next,
                    const Scratch& scratch) noexcept {
  const SequenceView sequence = sequence_view(call.batch, item.sequence);
  const RowRanges<Ops> ranges(call, sequence, item.rows);
  for (std::int64_t h = item.kv_heads.begin; h < item.kv_heads.end; ++h) {
    begin_rows(call, item, head_rows<Ops>(call, item, scratch, h));
  }
  if constexpr (Ops::kPipelined) {
    if (ranges.count > 1) {
      attend_pipelined<Ops, T>(call, item, next, scratch, sequence, ranges);
    } else {
      attend_in_turn<Ops, T>(call, item, next, scratch, sequence, ranges);
    }
  } else {
    attend_in_turn<Ops, T>(call, item, next, scratch, sequence, ranges);
  }
  for (std::int64_t h = item.kv_heads.begin; h < item.kv_heads.end; ++h) {
    end_rows(call, head_rows<Ops>(call, item, scratch, h));
  }
}

// One of several items that go together.
template <class Ops, class T>
struct GroupMember {
  GroupMember(const AttendCall& call, const WorkItem& item_, const Scratch& scratch_,
              PrefetchWalk& ahead) noexcept
      : item(item_),
        scratch(scratch_),
        sequence(sequence_view(call.batch, item.sequence)),
        ranges(call, sequence, item.rows),
        step(call, item, sequence, scratch, ahead) {}
  GroupMember(const GroupMember&) = delete;
  GroupMember& operator=(const GroupMember&) = delete;

  const WorkItem& item;
  const Scratch scratch;
  const SequenceView sequence;
  const RowRanges<Ops> ranges;
  ChunkOfHead<Ops, T> step;
};

// Items of several sequences over the same blocks: a chunk of a head is read for all of them while
// it lies in a near cache. To each the same is done as if it were alone.
template <class Ops, class T>
inline void attend_group(const AttendCall& call, std::span<const WorkItem> items,
                         const WorkItem* next, const Scratch& scratch) noexcept {
  PrefetchWalk ahead(call);
  std::optional<GroupMember<Ops, T>> members[kMaxGroup];
  const IndexRange& heads = items[0].kv_heads;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const GroupMember<Ops, T>& member = members[i].emplace(
        call, items[i], scratch_of_item(scratch, call.spec, items[i], static_cast<std::int64_t>(i)),
        ahead);
    for (std::int64_t h = heads.begin; h < heads.end; ++h) {
      const HeadRows<Ops> head = head_rows<Ops>(call, items[i], member.scratch, h);
      begin_rows(call, items[i], head);
      clear_rows(head.states, items[i].rows.size());
    }
  }
  Chunk chunks[2];
  const auto attend_head = [&](const Chunk& chunk, std::int64_t h) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      GroupMember<Ops, T>& member = *members[i];
      member.step.begin(chunk, h);
      member.step.attend(head_rows<Ops>(call, items[i], member.scratch, h), member.ranges);
    }
  };
  for_chunks<Ops, T, 1>(call, items[0], next, ahead, chunks, attend_head);
  for (std::size_t i = 0; i < items.size(); ++i) {
    for (std::int64_t h = heads.begin; h < heads.end; ++h) {
      end_rows(call, head_rows<Ops>(call, items[i], members[i]->scratch, h));
    }
  }
}

template <class Ops, class T>
void attend_items_of(const AttendCall& call, std::span<const WorkItem> items, const WorkItem* next,
                     const Scratch& scratch) noexcept {
  if (items.size() == 1) {
    attend_item_of<Ops, T>(call, items[0], next, scratch);
  } else {
    attend_group<Ops, T>(call, items, next, scratch);
  }
}

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
inline std::int64_t chunk_width(const WorkItem& item) noexcept {
  return item.rows.size() > kChunk / 2 ? Ops::kWideChunk : Ops::template few_rows_chunk<T>();
}

// The rows of an item in q or out.
inline void add_rows(const AttendCall& call, const TensorView& tensor, const WorkItem& item,
                     PrefetchWalk& ahead) noexcept {
  for (std::int64_t h = item.kv_heads.begin; h < item.kv_heads.end; ++h) {
    ahead.add_rows(call, tensor, item.sequence, h, item.rows);
  }
}

// Calls attend_chunk(chunk) for every chunk of an item, with what is needed after it to be fetched
// ahead. Chunks lie in `chunks`; one stays where it is until kKept others have followed.
//
// Many rows of one head wait for arithmetic, not for keys, which follow each other in a way that
// the processor foresees; the rows themselves do not. Nor is anything fetched for a short item
// alone where a level says so.
template <class Ops, class T, int kKept, class AttendChunk>
inline void for_chunks(const AttendCall& call, const WorkItem& item, const WorkItem* next,
                       PrefetchWalk& ahead, Chunk (&chunks)[kKept + 1],
                       AttendChunk&& attend_chunk) noexcept {
  const std::int64_t width = chunk_width<Ops, T>(item);
  const bool many_rows = item.rows.size() > kChunk / 2;
  const bool fetches_keys =
      !many_rows && (next != nullptr || item.keys.size() > Ops::kUnfetchedChunks * width);
  int current = 0;
  KeyRange keys = first_chunk(item.keys, width);
  if (!keys.empty()) locate(call, item.sequence, keys, width, chunks[current]);
  while (!keys.empty()) {
    const KeyRange left = {keys.end, item.keys.end};
    const int following = current == kKept ? 0 : current + 1;
    ahead.clear();
    if (!left.empty()) {
      const KeyRange following_keys = first_chunk(left, width);
      locate(call, item.sequence, following_keys, width, chunks[following]);
      if (fetches_keys) ahead.add_chunk(call, chunks[following], item.kv_heads);
      // The last chunk alone would be too short for all rows.
      if (many_rows && next != nullptr && following_keys.end == item.keys.end) {
        add_rows(call, call.q, *next, ahead);
      }
    } else {
      if (many_rows) {
        add_rows(call, call.output.out, item, ahead);
        if (next != nullptr && keys.begin == item.keys.begin) add_rows(call, call.q, *next, ahead);
      }
      if (next != nullptr && !next->keys.empty()) {
        const std::int64_t next_width = chunk_width<Ops, T>(*next);
        locate(call, next->sequence, first_chunk(next->keys, next_width), next_width,
               chunks[following]);
        ahead.add_chunk(call, chunks[following], next->kv_heads);
      }
    }
    if constexpr (Ops::kTouchesPieces) ahead.touch();
    attend_chunk(chunks[current]);
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
  PrefetchWalk ahead(call.drops_prefetches && !is_short);
  ChunkOfHead<Ops, T> step(call, item, sequence, scratch, ahead);
  for (std::int64_t h = item.kv_heads.begin; h < item.kv_heads.end; ++h) {
    clear_rows(head_rows<Ops>(call, item, scratch, h).states, item.rows.size());
  }
  Chunk chunks[2];
  for_chunks<Ops, T, 1>(call, item, next, ahead, chunks, [&](const Chunk& chunk) {
    for (std::int64_t h = item.kv_heads.begin; h < item.kv_heads.end; ++h) {
      step.begin(chunk, h);
      step.attend(head_rows<Ops>(call, item, scratch, h), ranges);
    }
  });
}

// The same with several blocks under way.
template <class Ops, class T>
inline void attend_pipelined(const AttendCall& call, const WorkItem& item, const WorkItem* next,
                             const Scratch& scratch, const SequenceView& sequence,
                             const RowRanges<Ops>& ranges) noexcept {
  using Step = ChunkOfHead<Ops, T>;
  constexpr int kDepth = Pipeline<Ops, T>::kDepth;
  PrefetchWalk ahead(call.drops_prefetches);
  Step steps[kDepth] = {Step(call, item, sequence, scratch, ahead),
                        Step(call, item, sequence, scratch, ahead),
                        Step(call, item, sequence, scratch, ahead)};
  int num_steps = 0;
  bool begun[kMaxStateRows / Ops::kRowBlock] = {};  // blocks of all heads with something in O
  Pipeline<Ops, T> pipeline(call, ahead);
  Chunk chunks[kDepth + 1];  // those of blocks that are under way to the end
  for_chunks<Ops, T, kDepth>(call, item, next, ahead, chunks, [&](const Chunk& chunk) {
    for (std::int64_t h = item.kv_heads.begin; h < item.kv_heads.end; ++h) {
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
    }
  });
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
  PrefetchWalk ahead(call.drops_prefetches);
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
  for_chunks<Ops, T, 1>(call, items[0], next, ahead, chunks, [&](const Chunk& chunk) {
    for (std::int64_t h = heads.begin; h < heads.end; ++h) {
      for (std::size_t i = 0; i < items.size(); ++i) {
        GroupMember<Ops, T>& member = *members[i];
        member.step.begin(chunk, h);
        member.step.attend(head_rows<Ops>(call, items[i], member.scratch, h), member.ranges);
      }
    }
  });
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

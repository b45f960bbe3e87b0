// SPDX-License-Identifier: Apache-2.0
// Blocks of rows one after the other with three under way at once, for levels whose matrix unit
// works beside the vectors: the values of the first are added while half of the second is softened,
// and the scores of the third computed while the other half is. Chunks follow each other without a
// gap.

// As QuickSoftener for all other scores, whole rows at once.
template <class Ops>
class RowSoftener {
 public:
  RowSoftener(const ScoresOfChunk<Ops>& chunk, const RowBlock<Ops>& block, std::int64_t first,
              std::int64_t last, std::int64_t num_steps) noexcept
      : chunk_(chunk),
        block_(block),
        row_(first),
        last_(last),
        rows_per_step_(num_steps == 0 ? 0 : (last - first + num_steps - 1) / num_steps) {}

  static constexpr int kParts = 16;  // as a row of the other has, all of them empty
  struct Hand {};
  bool ready() const noexcept { return row_ < last_; }
  QUIRE_INLINE Hand take() const noexcept { return {}; }
  template <int kPart>
  QUIRE_INLINE void part(Hand& /*hand*/) const noexcept {}
  QUIRE_INLINE void put(const Hand& /*hand*/) noexcept {
    const std::int64_t end = std::min(row_ + rows_per_step_, last_);
    for (; row_ < end; ++row_) chunk_.soften_one(block_, row_);
  }
  void finish() noexcept {
    for (; row_ < last_; ++row_) chunk_.soften_one(block_, row_);
  }

 private:
  const ScoresOfChunk<Ops>& chunk_;
  const RowBlock<Ops>& block_;
  std::int64_t row_;
  const std::int64_t last_;
  const std::int64_t rows_per_step_;
};

template <class Ops, class T>
class Pipeline {
 public:
  using Step = ChunkOfHead<Ops, T>;
  // Blocks under way, the new one included; a step may be used again when it is this many old.
  static constexpr int kDepth = 3;

  explicit Pipeline(const AttendCall& call, PrefetchWalk& ahead) noexcept
      : call_(call), ahead_(ahead) {}

  // The block of rows that follows, unless it sees nothing. It takes the buffer of the one that is
  // done by then.
  bool push(Step& step, const HeadRows<Ops>& head, const RowRange& range, bool fresh) noexcept {
    Stage& next = stages_[(num_pushed_ + 1) % kDepth];
    next.step = &step;
    step.begin_block(head, range, num_pushed_ % 2, fresh, next.block);
    if (next.block.num_vectors == 0) return false;
    // Softening may scale rows, which must not be under way elsewhere.
    if (num_waiting_ > 0 && last().block.states.data == next.block.states.data) flush();
    ++num_pushed_;
    if (num_waiting_ == 0) {
      step.score(next.block);
    } else {
      const Stage& middle = stages_[(num_pushed_ + kDepth - 1) % kDepth];
      const std::int64_t half = num_waiting_ == 1 ? 0 : middle.block.rows.size() / 2;
      if (num_waiting_ > 1) {
        accumulate_while_softening(stages_[(num_pushed_ + kDepth - 2) % kDepth], middle, half);
      }
      score_while_softening(last(), middle, half);
    }
    num_waiting_ = std::min(num_waiting_ + 1, kDepth - 1);
    return true;
  }

  // Everything that is under way.
  void flush() noexcept {
    if (num_waiting_ == 0) return;
    const std::int64_t num_rows = last().block.rows.size();
    if (num_waiting_ > 1) {
      accumulate_while_softening(stages_[(num_pushed_ + kDepth - 1) % kDepth], last(), num_rows);
    } else {
      last().step->soften_rows(last().block);
    }
    last().step->accumulate(last().block);
    num_waiting_ = 0;
  }

 private:
  struct Stage {
    Step* step = nullptr;
    RowBlock<Ops> block;
  };

  const Stage& last() const noexcept { return stages_[num_pushed_ % kDepth]; }

  // Calls work(softener) with one for rows [first, last) of a block, and lets it finish.
  // `num_steps` counts the pairs of steps in which it may do so.
  template <class Work>
  static void with_softener(const Stage& stage, std::int64_t first, std::int64_t last,
                            std::int64_t num_steps, Work&& work) noexcept {
    const RowBlock<Ops>& block = stage.block;
    const auto run = [&](auto softener) {
      work(softener);
      softener.finish();
    };
    const auto run_quick = [&]<int kVectorsAtOnce, bool kPerToken>() {
      const auto run_masked = [&]<bool kMasked>() {
        using Softener = QuickSoftener<Ops, kVectorsAtOnce, kMasked, Ops::kWideChunk, kPerToken>;
        run(Softener(*stage.step, block, first, last));
      };
      block.all_visible ? run_masked.template operator()<false>()
                        : run_masked.template operator()<true>();
    };
    // As soften_rows chooses: whether a block waits alone must not decide its bits.
    if (!stage.step->only_scaled_by_token()) {
      run(RowSoftener<Ops>(*stage.step, block, first, last, num_steps));
    } else if (stage.step->per_token()) {
      run_quick.template operator()<1, true>();
    } else if (last - first <= num_steps) {
      run_quick.template operator()<1, false>();
    } else {
      run_quick.template operator()<2, false>();
    }
  }

  // The scores of one block, and the rows of another from `first` on softened meanwhile.
  void score_while_softening(const Stage& stage, const Stage& other, std::int64_t first) noexcept {
    const RowBlock<Ops>& block = stage.block;
    const std::int64_t num_steps =
        block.num_vectors / 2 * (padded_dims(call_.spec.head_dim) / Ops::kDimStep / 2);
    with_softener(other, first, other.block.rows.size(), num_steps, [&](auto& meanwhile) {
      if (block.rows.size() <= Ops::kRowBlock / 2) {
        stage.step->score(block);
        return;
      }
      stage.step->score_from(block, [&]<class Keys>(const Keys& keys) {
        if constexpr (Ops::template is_pipelined<Keys>()) {
          Ops::multiply_meanwhile(block.q, block.q_stride, keys, block.num_vectors, block.scores,
                                  stage.step->score_stride(), true, ahead_, meanwhile);
        }
      });
    });
  }

  // The values of one block, and the rows of another up to `last` softened meanwhile.
  void accumulate_while_softening(const Stage& stage, const Stage& other,
                                  std::int64_t last) noexcept {
    const RowBlock<Ops>& block = stage.block;
    const std::int64_t columns = (call_.spec.value_dim + 2 * kLanes - 1) / (2 * kLanes);
    const std::int64_t num_steps = columns * (block.num_vectors * kLanes / Ops::kKeyStep / 2);
    with_softener(other, 0, last, num_steps, [&](auto& meanwhile) {
      if (stage.step->per_token() || block.rows.size() <= Ops::kRowBlock / 2) {
        stage.step->accumulate(block);
        return;
      }
      stage.step->accumulate_from(
          block, [&]<class Values>(const Values& values, std::int64_t vectors) {
            if constexpr (Ops::template is_pipelined<Values>()) {
              Ops::multiply_meanwhile(block.weights, stage.step->weight_stride(), values, vectors,
                                      block.states.data, block.states.stride, block.fresh, ahead_,
                                      meanwhile);
            }
          });
    });
  }

  const AttendCall& call_;
  PrefetchWalk& ahead_;
  Stage stages_[kDepth];
  int num_pushed_ = 0;
  int num_waiting_ = 0;  // pushed and not done, at most two
};

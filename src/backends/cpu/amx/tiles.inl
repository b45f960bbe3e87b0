// SPDX-License-Identifier: Apache-2.0
// Pairs of bf16 by AMX tiles: C [16 x 16 f32] += A [16 x 32 bf16] B [16 pairs x 16 columns].
// Registers: C 0..3 (two row tiles x two column tiles), A 4 and 5, B 6 and 7; for few rows C 0 and
// 1, A 2..5, B 6 and 7.

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

// Where the 16 rows of one B tile lie.
struct TilePlace {
  const void* data;
  std::int64_t stride_bytes;
};

struct AmxDot : Bf16Base {
  static constexpr std::int64_t kKeyStep = 32;   // keys of one step of PV
  static constexpr std::int64_t kRowBlock = 32;  // two row tiles: S of a block stays in L1
  static constexpr std::int64_t kWideChunk = kMaxChunk;
  static constexpr std::int64_t kDimStep = 32;
  static constexpr bool kPipelined = true;  // tiles and vectors are units apart
  static constexpr bool kWeightsInPlace = true;
  static constexpr std::int64_t kPlainRows = 16;
  static constexpr std::int64_t kPlainDimStep = 32;
  // Of an item alone. Fetching the second chunk ahead takes loads from the tiles of the first: 13.7
  // instead of 11.8 us for 128 keys of 8 heads in the second cache, and 47.6 instead of 46.2 from
  // memory (one thread of a Xeon). For four chunks it would be 26.2 and 20.5, but 86.6 and 90.4.
  static constexpr std::int64_t kUnfetchedChunks = 2;
  static constexpr bool kTouchesPieces = false;
  static constexpr bool kFetchesWhileSoftening = false;
  using Pair = __m512i;
  QUIRE_INLINE static Vec power_of_two(Vec x) noexcept { return exp2_by_table(x); }
  // bf16 needs no conversion, or only for one block of rows.
  template <class T>
  static constexpr std::int64_t in_place_rows() noexcept {
    return std::is_same_v<T, BFloat16> ? kRowTile : kRowBlock;
  }
  // More rows would interleave the rows of V again and again.
  template <class T>
  static constexpr std::int64_t plain_value_rows() noexcept {
    return kPlainRows;
  }
  // What many rows read: see in_place_rows.
  template <class B>
  static constexpr bool is_pipelined() noexcept {
    return std::is_same_v<B, PanelSource<AmxDot>> ||
           std::is_same_v<B, TiledKeys<AmxDot, BFloat16>> ||
           std::is_same_v<B, TiledValues<AmxDot, BFloat16>>;
  }
  // Tiles of 32 keys, or few rows that make do with copies of two halves.
  template <class T>
  static bool reads_in_place(const T* const* units, std::int64_t num_rows) noexcept {
    return num_rows <= kRowBlock || units[1] == units[0] + kPairTile * kPairTile;
  }

  // Tiles of `num_rows` rows, or of 16 if there are more. Plain rows of K are a factor of their own
  // and need more tiles of 16. REQUIRES: request_tiles() was true.
  static void begin(std::int64_t num_rows, bool plain) noexcept {
    TileConfig config;
    const auto rows = static_cast<std::uint8_t>(std::min<std::int64_t>(16, num_rows));
    for (int tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = 64;
      config.rows[tile] = tile < (plain ? 4 : 6) ? rows : 16;
    }
    QUIRE_TILE_CONFIGURE(config);
  }
  static void end() noexcept { QUIRE_TILE_RELEASE(); }

  // B tile of columns 16 column .. and k 32 step ..; `buffer` holds what must be converted.
  static TilePlace place(const PanelSource<AmxDot>& b, std::int64_t column, std::int64_t step,
                         BFloat16* /*buffer*/) noexcept {
    return {b.data + step * 16 * 2 * b.stride + column * 32, b.stride * 4};
  }
  template <class T>
  QUIRE_INLINE static TilePlace place(const TiledKeys<AmxDot, T>& b, std::int64_t column,
                                      std::int64_t step, BFloat16* buffer) noexcept {
    const T* tile = b.units[column] + step * 512;
    if constexpr (std::is_same_v<T, BFloat16>) return {tile, 64};
    QUIRE_UNROLL
    for (int i = 0; i < 8; ++i) convert(tile + 64 * i, buffer + 64 * i);
    return {buffer, 64};
  }
  template <class T>
  QUIRE_INLINE static TilePlace place(const TiledValues<AmxDot, T>& b, std::int64_t column,
                                      std::int64_t step, BFloat16* buffer) noexcept {
    const T* first = b.units[2 * step] + column * b.tile_stride;
    const T* second = b.units[2 * step + 1] + column * b.tile_stride;
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (second == first + 256) return {first, 64};
    }
    QUIRE_UNROLL
    for (int i = 0; i < 4; ++i) {
      convert(first + 64 * i, buffer + 64 * i);
      convert(second + 64 * i, buffer + 256 + 64 * i);
    }
    return {buffer, 64};
  }
  // The tiles of two columns: K and V in tiles one after the other, plain rows of V together. The
  // latter fetch as much ahead as they read, row by row.
  template <class B>
  QUIRE_INLINE static void place_two(const B& b, std::int64_t column, std::int64_t step,
                                     BFloat16 (&buffers)[2][512], TilePlace (&tiles)[2],
                                     PrefetchWalk& /*ahead*/) noexcept {
    tiles[0] = place(b, column, step, buffers[0]);
    tiles[1] = place(b, column + 1, step, buffers[1]);
  }
  template <class T>
  QUIRE_INLINE static void place_two(const PlainValues<AmxDot, T>& b, std::int64_t column,
                                     std::int64_t step, BFloat16 (&buffers)[2][512],
                                     TilePlace (&tiles)[2], PrefetchWalk& ahead) noexcept {
    const T* const* rows = b.rows + 32 * step;
    QUIRE_UNROLL
    for (int i = 0; i < 16; ++i) {
      const Bf16x64 x = interleave(load_bf16x32(rows[2 * i] + 16 * column),
                                   load_bf16x32(rows[2 * i + 1] + 16 * column));
      _mm512_store_si512(buffers[0] + 32 * i, x.low);
      _mm512_store_si512(buffers[1] + 32 * i, x.high);
      ahead.template steps<static_cast<int>(2 * sizeof(T) / sizeof(BFloat16))>();
    }
    tiles[0] = {buffers[0], 64};
    tiles[1] = {buffers[1], 64};
  }
  template <class T>
  QUIRE_INLINE static void convert(const T* p, BFloat16* out) noexcept {
    const Bf16x64 x = load_bf16x64(p);
    _mm512_store_si512(out, x.low);
    _mm512_store_si512(out + 32, x.high);
  }

  // Plain rows of V: two columns at a time, always.
  template <class B>
  static constexpr bool is_plain(const B*) noexcept {
    return false;
  }
  template <class T>
  static constexpr bool is_plain(const PlainValues<AmxDot, T>*) noexcept {
    return true;
  }

  // Lines of memory behind one B tile; those behind a panel were seen to when it was made, those of
  // plain rows are when they are placed.
  static constexpr int tile_lines(const PanelSource<AmxDot>*) noexcept { return 0; }
  template <class T>
  static constexpr int tile_lines(const PlainValues<AmxDot, T>*) noexcept {
    return 0;
  }
  template <template <class, class> class Source, class T>
  static constexpr int tile_lines(const Source<AmxDot, T>*) noexcept {
    return static_cast<int>(16 * sizeof(T) / sizeof(BFloat16));
  }

  static std::int64_t num_steps(const PanelSource<AmxDot>& b) noexcept { return b.pairs / 16; }
  template <class T>
  static std::int64_t num_steps(const TiledKeys<AmxDot, T>& b) noexcept {
    return b.pairs / 16;
  }
  template <class T>
  static std::int64_t num_steps(const TiledValues<AmxDot, T>& b) noexcept {
    return b.num_segments / 2;
  }
  template <class T>
  static std::int64_t num_steps(const PlainValues<AmxDot, T>& b) noexcept {
    return b.pairs / 16;
  }

  // Parts of other work that fit into one step of 32 rows.
  static constexpr int kStepParts = 8;
  // Work beside the products: none.
  struct Nothing {
    static constexpr int kParts = 2 * kStepParts;
    struct Hand {};
    static constexpr bool ready() noexcept { return false; }
    static constexpr Hand take() noexcept { return {}; }
    template <int kPart>
    static constexpr void part(Hand& /*hand*/) noexcept {}
    static constexpr void put(const Hand& /*hand*/) noexcept {}
  };

  // C tiles of up to 16 rows and 32 columns: zero, or from memory.
  template <bool kTwoColumns>
  QUIRE_INLINE static void begin_sums(const float* c, std::int64_t c_stride,
                                      bool from_zero) noexcept {
    if (from_zero) {
      QUIRE_TILE_ZERO(0);
      if constexpr (kTwoColumns) QUIRE_TILE_ZERO(1);
      return;
    }
    QUIRE_TILE_LOAD(0, c, c_stride * 4);
    if constexpr (kTwoColumns) QUIRE_TILE_LOAD(1, c + 16, c_stride * 4);
  }
  // C tiles of up to 32 rows and columns to memory.
  template <bool kTwoRows, bool kTwoColumns>
  QUIRE_INLINE static void end_sums(float* c, std::int64_t c_stride) noexcept {
    float* c1 = c + 16 * c_stride;
    QUIRE_TILE_STORE(0, c, c_stride * 4);
    if constexpr (kTwoColumns) QUIRE_TILE_STORE(1, c + 16, c_stride * 4);
    if constexpr (kTwoRows) QUIRE_TILE_STORE(2, c1, c_stride * 4);
    if constexpr (kTwoRows && kTwoColumns) QUIRE_TILE_STORE(3, c1 + 16, c_stride * 4);
  }

  // Up to 16 rows of up to 32 columns. With kLow, A is the sum of two: the other lies kLowWeights
  // further on.
  template <bool kTwoColumns, bool kLow, int kFetch, class B>
  QUIRE_INLINE static void multiply_one_row(const BFloat16* a, std::int64_t a_stride, const B& b,
                                            std::int64_t column, float* c, std::int64_t c_stride,
                                            bool from_zero, PrefetchWalk& ahead) noexcept {
    alignas(64) BFloat16 buffers[2][512];
    begin_sums<kTwoColumns>(c + column * 16, c_stride, from_zero);
    const std::int64_t steps = num_steps(b);
    for (std::int64_t step = 0; step < steps; ++step, a += 32) {
      TilePlace tiles[2];
      if constexpr (kTwoColumns) {
        place_two(b, column, step, buffers, tiles, ahead);
      } else {
        tiles[0] = place(b, column, step, buffers[0]);
      }
      QUIRE_TILE_LOAD(2, a, a_stride * 2);
      QUIRE_TILE_STREAM(6, tiles[0].data, tiles[0].stride_bytes);
      QUIRE_TILE_DOT(0, 2, 6);
      if constexpr (kTwoColumns) {
        QUIRE_TILE_STREAM(7, tiles[1].data, tiles[1].stride_bytes);
        QUIRE_TILE_DOT(1, 2, 7);
      }
      if constexpr (kFetch > 0) ahead.template steps<kFetch>();
      if constexpr (kLow) {
        QUIRE_TILE_LOAD(2, a + kLowWeights, a_stride * 2);
        QUIRE_TILE_DOT(0, 2, 6);
        if constexpr (kTwoColumns) QUIRE_TILE_DOT(1, 2, 7);
      }
    }
    end_sums<false, kTwoColumns>(c + column * 16, c_stride);
  }

  // The C tiles of 32 rows, two columns at a time. A tile that is stored at once holds up what
  // follows until its last product is there, so it stays until its register is needed again.
  struct Sums {
    float* c;                   // of the columns under way
    float* unstored = nullptr;  // of those before, if their tiles are still to be stored
    std::int64_t stride;
    bool from_zero;

    // Makes room for the columns under way in one tile.
    template <int kTile>
    QUIRE_INLINE void turn() const noexcept {
      const std::int64_t at = kTile / 2 * 16 * stride + kTile % 2 * 16;
      if (unstored != nullptr) {
        if constexpr (kTile == 0) QUIRE_TILE_STORE(0, unstored + at, stride * 4);
        if constexpr (kTile == 1) QUIRE_TILE_STORE(1, unstored + at, stride * 4);
        if constexpr (kTile == 2) QUIRE_TILE_STORE(2, unstored + at, stride * 4);
        if constexpr (kTile == 3) QUIRE_TILE_STORE(3, unstored + at, stride * 4);
      }
      if (from_zero) {
        if constexpr (kTile == 0) QUIRE_TILE_ZERO(0);
        if constexpr (kTile == 1) QUIRE_TILE_ZERO(1);
        if constexpr (kTile == 2) QUIRE_TILE_ZERO(2);
        if constexpr (kTile == 3) QUIRE_TILE_ZERO(3);
      } else {
        if constexpr (kTile == 0) QUIRE_TILE_LOAD(0, c + at, stride * 4);
        if constexpr (kTile == 1) QUIRE_TILE_LOAD(1, c + at, stride * 4);
        if constexpr (kTile == 2) QUIRE_TILE_LOAD(2, c + at, stride * 4);
        if constexpr (kTile == 3) QUIRE_TILE_LOAD(3, c + at, stride * 4);
      }
    }
  };

  // One step of 32 rows: the products of two tiles of A and one or two of B. After each of its
  // tile operations a part of some other work: the core does both at once.
  template <bool kTwoColumns, int kFirstPart, class B, class Meanwhile, class Hand>
  QUIRE_INLINE static void multiply_step(const BFloat16* a, std::int64_t a_stride, const B& b,
                                         std::int64_t column, std::int64_t step, const Sums& sums,
                                         BFloat16 (&buffers)[2][512], Meanwhile& meanwhile,
                                         Hand& hand) noexcept {
    const bool first = kFirstPart == 0 && step == 0;
    const TilePlace b0 = place(b, column, step, buffers[0]);
    QUIRE_TILE_LOAD(4, a, a_stride * 2);
    meanwhile.template part<kFirstPart>(hand);
    QUIRE_TILE_STREAM(6, b0.data, b0.stride_bytes);
    meanwhile.template part<kFirstPart + 1>(hand);
    QUIRE_TILE_LOAD(5, a + 16 * a_stride, a_stride * 2);
    meanwhile.template part<kFirstPart + 2>(hand);
    if constexpr (kTwoColumns) {
      const TilePlace b1 = place(b, column + 1, step, buffers[1]);
      QUIRE_TILE_STREAM(7, b1.data, b1.stride_bytes);
    }
    meanwhile.template part<kFirstPart + 3>(hand);
    if (first) sums.turn<0>();
    QUIRE_TILE_DOT(0, 4, 6);
    meanwhile.template part<kFirstPart + 4>(hand);
    if (first) sums.turn<2>();
    QUIRE_TILE_DOT(2, 5, 6);
    meanwhile.template part<kFirstPart + 5>(hand);
    if constexpr (kTwoColumns) {
      if (first) sums.turn<1>();
      QUIRE_TILE_DOT(1, 4, 7);
    }
    meanwhile.template part<kFirstPart + 6>(hand);
    if constexpr (kTwoColumns) {
      if (first) sums.turn<3>();
      QUIRE_TILE_DOT(3, 5, 7);
    }
    meanwhile.template part<kFirstPart + 7>(hand);
  }

  // 17 to 32 rows of up to 32 columns, with other work in every step or two. The sums stay in their
  // tiles. With kLow, A is the sum of two: the other lies kLowWeights further on.
  template <bool kTwoColumns, bool kLow, int kFetch, class B, class Meanwhile>
  QUIRE_INLINE static void multiply_two_rows(const BFloat16* a, std::int64_t a_stride, const B& b,
                                             std::int64_t column, const Sums& sums,
                                             PrefetchWalk& ahead, Meanwhile& meanwhile) noexcept {
    alignas(64) BFloat16 buffers[2][512];
    const std::int64_t steps = num_steps(b);
    std::int64_t step = 0;
    constexpr int kSteps = Meanwhile::kParts / kStepParts;
    static_assert(kSteps == 1 || kSteps == 2);
    for (; step + kSteps <= steps && meanwhile.ready(); step += kSteps, a += 32 * kSteps) {
      auto hand = meanwhile.take();
      multiply_step<kTwoColumns, 0>(a, a_stride, b, column, step, sums, buffers, meanwhile, hand);
      if constexpr (kFetch > 0) ahead.template steps<kSteps * kFetch>();
      if constexpr (kSteps == 2) {
        multiply_step<kTwoColumns, kStepParts>(a + 32, a_stride, b, column, step + 1, sums, buffers,
                                               meanwhile, hand);
      }
      meanwhile.put(hand);
    }
    Nothing nothing;
    Nothing::Hand none;
    for (; step < steps; ++step, a += 32) {
      multiply_step<kTwoColumns, 0>(a, a_stride, b, column, step, sums, buffers, nothing, none);
      if constexpr (kFetch > 0) ahead.template steps<kFetch>();
      if constexpr (kLow) {
        QUIRE_TILE_LOAD(4, a + kLowWeights, a_stride * 2);
        QUIRE_TILE_DOT(0, 4, 6);
        if constexpr (kTwoColumns) QUIRE_TILE_DOT(1, 4, 7);
        QUIRE_TILE_LOAD(5, a + kLowWeights + 16 * a_stride, a_stride * 2);
        QUIRE_TILE_DOT(2, 5, 6);
        if constexpr (kTwoColumns) QUIRE_TILE_DOT(3, 5, 7);
      }
    }
  }

  // Columns from `column` on of up to 32 rows, kFetch lines ahead for every tile of B. REQUIRES:
  // no other work with kLow or with up to 16 rows.
  template <int kRowTiles, bool kLow, int kFetch, class B, class Meanwhile>
  QUIRE_INLINE static void multiply_rows(const BFloat16* a, std::int64_t a_stride, const B& b,
                                         std::int64_t column, std::int64_t num_vectors, float* c,
                                         std::int64_t c_stride, bool from_zero, PrefetchWalk& ahead,
                                         Meanwhile& meanwhile) noexcept {
    Sums sums{.c = nullptr, .stride = c_stride, .from_zero = from_zero};
    const auto multiply_columns_at = [&]<bool kTwo>(std::int64_t at) QUIRE_INLINE_LAMBDA {
      constexpr int kLines = kTwo ? 2 * kFetch : kFetch;
      if constexpr (kRowTiles == 1) {
        multiply_one_row<kTwo, kLow, kLines>(a, a_stride, b, at, c, c_stride, from_zero, ahead);
      } else {
        sums.c = c + at * 16;
        multiply_two_rows<kTwo, kLow, kLines>(a, a_stride, b, at, sums, ahead, meanwhile);
        sums.unstored = sums.c;
      }
    };
    for (; column + 2 <= num_vectors; column += 2) {
      multiply_columns_at.template operator()<true>(column);
    }
    if (sums.unstored != nullptr) end_sums<true, true>(sums.unstored, c_stride);
    if constexpr (!is_plain(static_cast<const B*>(nullptr))) {
      if (column == num_vectors) return;
      sums.unstored = nullptr;
      multiply_columns_at.template operator()<false>(column);
      if constexpr (kRowTiles == 2) end_sums<true, false>(sums.c, c_stride);
    }
  }

  // C tile 0 or 1 += A tile kA times B tile 6 or 7.
  template <int kA>
  QUIRE_INLINE static void dot_left() noexcept {
    if constexpr (kA == 2) QUIRE_TILE_DOT(0, 2, 6);
    if constexpr (kA == 3) QUIRE_TILE_DOT(0, 3, 6);
    if constexpr (kA == 4) QUIRE_TILE_DOT(0, 4, 6);
    if constexpr (kA == 5) QUIRE_TILE_DOT(0, 5, 6);
  }
  template <int kA>
  QUIRE_INLINE static void dot_right() noexcept {
    if constexpr (kA == 2) QUIRE_TILE_DOT(1, 2, 7);
    if constexpr (kA == 3) QUIRE_TILE_DOT(1, 3, 7);
    if constexpr (kA == 4) QUIRE_TILE_DOT(1, 4, 7);
    if constexpr (kA == 5) QUIRE_TILE_DOT(1, 5, 7);
  }

  // Up to 16 rows with A in tiles 2..5 for all columns, kSteps of them, and as many again with
  // kLow. What B must be converted to is converted one step ahead, so that no tile waits for it.
  // Returns the columns done: all but one, if their number is odd.
  template <int kSteps, bool kLow, int kLines, class B>
  static std::int64_t multiply_few(const BFloat16* a, std::int64_t a_stride, const B& b,
                                   std::int64_t num_vectors, float* c, std::int64_t c_stride,
                                   bool from_zero, PrefetchWalk& ahead) noexcept {
    static_assert(kSteps * (kLow ? 2 : 1) <= 4);
    constexpr int kLow2 = kLow ? 2 + kSteps : 6;  // the first tile of the low part
    alignas(64) BFloat16 buffers[2][2][512];
    if (num_vectors < 2) return 0;
    QUIRE_TILE_LOAD(2, a, a_stride * 2);
    if constexpr (kSteps > 1) QUIRE_TILE_LOAD(3, a + 32, a_stride * 2);
    if constexpr (kSteps > 2) QUIRE_TILE_LOAD(4, a + 64, a_stride * 2);
    if constexpr (kSteps > 3) QUIRE_TILE_LOAD(5, a + 96, a_stride * 2);
    if constexpr (kLow && kSteps == 1) QUIRE_TILE_LOAD(3, a + kLowWeights, a_stride * 2);
    if constexpr (kLow && kSteps == 2) {
      QUIRE_TILE_LOAD(4, a + kLowWeights, a_stride * 2);
      QUIRE_TILE_LOAD(5, a + kLowWeights + 32, a_stride * 2);
    }
    TilePlace next[2];
    place_two(b, 0, 0, buffers[0], next, ahead);
    int parity = 0;
    std::int64_t column = 0;
    for (; column + 2 <= num_vectors; column += 2) {
      float* c0 = c + column * 16;
      if (from_zero) {
        QUIRE_TILE_ZERO(0);
        QUIRE_TILE_ZERO(1);
      } else {
        QUIRE_TILE_LOAD(0, c0, c_stride * 4);
        QUIRE_TILE_LOAD(1, c0 + 16, c_stride * 4);
      }
      const auto multiply_step = [&]<int kStep>() QUIRE_INLINE_LAMBDA {
        if constexpr (kStep >= kSteps) return;
        constexpr bool kLast = kStep + 1 == kSteps;
        const bool more = !kLast || column + 4 <= num_vectors;
        const std::int64_t next_column = kLast ? column + 2 : column;
        constexpr int kNextStep = kLast ? 0 : kStep + 1;
        const TilePlace now[2] = {next[0], next[1]};
        parity = 1 - parity;
        constexpr bool kTogether = is_plain(static_cast<const B*>(nullptr));
        if (more) {
          if constexpr (kTogether) {
            place_two(b, next_column, kNextStep, buffers[parity], next, ahead);
          } else {
            next[0] = place(b, next_column, kNextStep, buffers[parity][0]);
          }
        }
        QUIRE_TILE_STREAM(6, now[0].data, now[0].stride_bytes);
        dot_left<2 + kStep>();
        dot_left<kLow2 + kStep>();
        if constexpr (kLines > 0) ahead.template steps<kLines>();
        if constexpr (!kTogether) {
          if (more) next[1] = place(b, next_column + 1, kNextStep, buffers[parity][1]);
        }
        QUIRE_TILE_STREAM(7, now[1].data, now[1].stride_bytes);
        dot_right<2 + kStep>();
        dot_right<kLow2 + kStep>();
        if constexpr (kLines > 0) ahead.template steps<kLines>();
      };
      multiply_step.template operator()<0>();
      multiply_step.template operator()<1>();
      multiply_step.template operator()<2>();
      multiply_step.template operator()<3>();
      QUIRE_TILE_STORE(0, c0, c_stride * 4);
      QUIRE_TILE_STORE(1, c0 + 16, c_stride * 4);
    }
    return column;
  }

  // 16 plain rows of K, 32 dims, as an A tile: where they lie if they are equally far apart.
  template <class T>
  QUIRE_INLINE static TilePlace place_rows(const T* const* rows, bool regular, std::int64_t dim,
                                           BFloat16* buffer) noexcept {
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (regular) return {rows[0] + dim, (rows[1] - rows[0]) * 2};
    }
    QUIRE_UNROLL
    for (int i = 0; i < 16; ++i) {
      _mm512_store_si512(buffer + 32 * i, load_bf16x32(rows[i] + dim));
    }
    return {buffer, 64};
  }
  template <class T>
  static bool are_regular(const T* const* rows) noexcept {
    const std::ptrdiff_t stride = rows[1] - rows[0];
    bool regular = true;
    for (int i = 2; i < 16; ++i) regular = regular && rows[i] - rows[i - 1] == stride;
    return regular;
  }

  // S = q.k of plain rows of K, all there: S^T = K Q^T needs no transposed K. Tiles: C 4 and 5, K
  // 6, Q^T 7. Lines are fetched ahead a few at a time: many at once hold up the loads behind them.
  // REQUIRES: num_rows <= kPlainRows, dims % kPlainDimStep == 0, begin(_, true).
  template <class T>
  static void score_rows(const BFloat16* q, std::int64_t q_stride, std::int64_t num_rows,
                         const T* const* rows, std::int64_t width, std::int64_t dims, float* s,
                         std::int64_t s_stride, PrefetchWalk& ahead) noexcept {
    constexpr std::int64_t kMaxSteps = 16;  // of dims; more begin again from the sums so far
    constexpr int kLines = static_cast<int>(16 * sizeof(T) / sizeof(BFloat16));
    alignas(64) BFloat16 q_tiles[kMaxSteps][512];
    alignas(64) BFloat16 k_tiles[2][512];
    alignas(64) float sums[2][256];
    for (std::int64_t first = 0; first < dims; first += 32 * kMaxSteps) {
      const std::int64_t steps = std::min(kMaxSteps, (dims - first) / 32);
      for (std::int64_t step = 0; step < steps; ++step) {
        transpose_rows(q + first + 32 * step, q_stride, num_rows, q_tiles[step]);
      }
      for (std::int64_t key = 0; key < width; key += 32) {
        const bool regular[2] = {are_regular(rows + key), are_regular(rows + key + 16)};
        QUIRE_TILE_ZERO(4);
        QUIRE_TILE_ZERO(5);
        for (std::int64_t step = 0; step < steps; ++step) {
          const std::int64_t dim = first + 32 * step;
          const TilePlace k0 = place_rows(rows + key, regular[0], dim, k_tiles[0]);
          const TilePlace k1 = place_rows(rows + key + 16, regular[1], dim, k_tiles[1]);
          QUIRE_TILE_LOAD(7, q_tiles[step], 64);
          ahead.template steps<kLines / 2>();
          QUIRE_TILE_LOAD(6, k0.data, k0.stride_bytes);
          ahead.template steps<kLines / 2>();
          QUIRE_TILE_DOT(4, 6, 7);
          ahead.template steps<kLines / 2>();
          QUIRE_TILE_LOAD(6, k1.data, k1.stride_bytes);
          ahead.template steps<kLines / 2>();
          QUIRE_TILE_DOT(5, 6, 7);
        }
        QUIRE_TILE_STORE(4, sums[0], 64);
        QUIRE_TILE_STORE(5, sums[1], 64);
        add_transposed(sums[0], num_rows, first > 0, s + key, s_stride);
        add_transposed(sums[1], num_rows, first > 0, s + key + 16, s_stride);
      }
    }
  }
  // In every 128-bit lane: element i of vector j becomes element j of vector i.
  QUIRE_INLINE static void transpose_lanes(Vec (&x)[4]) noexcept {
    const __m512d low01 = _mm512_castps_pd(_mm512_unpacklo_ps(x[0], x[1]));
    const __m512d high01 = _mm512_castps_pd(_mm512_unpackhi_ps(x[0], x[1]));
    const __m512d low23 = _mm512_castps_pd(_mm512_unpacklo_ps(x[2], x[3]));
    const __m512d high23 = _mm512_castps_pd(_mm512_unpackhi_ps(x[2], x[3]));
    x[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(low01, low23));
    x[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low01, low23));
    x[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high01, high23));
    x[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high01, high23));
  }
  // What follows for up to this many rows takes a third of the instructions.
  static constexpr std::int64_t kLaneRows = 4;

  // 32 dims of up to 16 rows as a B tile.
  static void transpose_rows(const BFloat16* rows, std::int64_t stride, std::int64_t num_rows,
                             BFloat16* tile) noexcept {
    if (num_rows <= kLaneRows) {
      Vec x[4];
      QUIRE_UNROLL
      for (int i = 0; i < 4; ++i) {
        x[i] = i < num_rows ? _mm512_castsi512_ps(_mm512_loadu_si512(rows + i * stride)) : zero();
      }
      transpose_lanes(x);
      const auto store_lane = [&]<int kLane>() QUIRE_INLINE_LAMBDA {
        QUIRE_UNROLL
        for (int i = 0; i < 4; ++i) {
          store_bf16(tile + 32 * (4 * kLane + i), _mm512_zextsi128_si512(_mm512_extracti32x4_epi32(
                                                      _mm512_castps_si512(x[i]), kLane)));
        }
      };
      store_lane.template operator()<0>();
      store_lane.template operator()<1>();
      store_lane.template operator()<2>();
      store_lane.template operator()<3>();
      return;
    }
    Vec block[16];
    for (int i = 0; i < 16; ++i) {
      block[i] = i < num_rows ? _mm512_castsi512_ps(_mm512_loadu_si512(rows + i * stride)) : zero();
    }
    transpose(block);
    for (int i = 0; i < 16; ++i) store_bf16(tile + 32 * i, _mm512_castps_si512(block[i]));
  }
  // Column r of a C tile becomes (or is added to) row r of S.
  static void add_transposed(const float* c, std::int64_t num_rows, bool adds, float* s,
                             std::int64_t s_stride) noexcept {
    const auto put_row = [&](std::int64_t r, Vec x) QUIRE_INLINE_LAMBDA {
      store(s + r * s_stride, adds ? add(load(s + r * s_stride), x) : x);
    };
    if (num_rows <= kLaneRows) {
      Vec x[4];  // lane l of x[i] is row 4 l + i of C
      QUIRE_UNROLL
      for (int i = 0; i < 4; ++i) {
        x[i] = _mm512_castps128_ps512(_mm_load_ps(c + 16 * i));
        x[i] = _mm512_mask_broadcast_f32x4(x[i], 0x00f0, _mm_load_ps(c + 16 * (4 + i)));
        x[i] = _mm512_mask_broadcast_f32x4(x[i], 0x0f00, _mm_load_ps(c + 16 * (8 + i)));
        x[i] = _mm512_mask_broadcast_f32x4(x[i], 0xf000, _mm_load_ps(c + 16 * (12 + i)));
      }
      transpose_lanes(x);
      QUIRE_UNROLL
      for (int r = 0; r < 4; ++r) {
        if (r < num_rows) put_row(r, x[r]);
      }
      return;
    }
    Vec block[16];
    QUIRE_UNROLL
    for (int i = 0; i < 16; ++i) block[i] = load(c + 16 * i);
    transpose(block);
    alignas(64) float columns[16][16];
    QUIRE_UNROLL
    for (int i = 0; i < 16; ++i) store(columns[i], block[i]);
    for (std::int64_t r = 0; r < num_rows; ++r) put_row(r, load(columns[r]));
  }

  // C (+)= A B; with `low` also what lies kLowWeights after A. REQUIRES: rows <= kRowBlock.
  template <class B>
  static void multiply(const BFloat16* a, bool low, std::int64_t a_stride, std::int64_t rows,
                       const B& b, std::int64_t num_vectors, float* c, std::int64_t c_stride,
                       bool from_zero, PrefetchWalk& ahead) noexcept {
    constexpr int kLines = tile_lines(static_cast<const B*>(nullptr));
    Nothing nothing;
    const auto multiply_all = [&]<int kRowTiles, bool kLow>(std::int64_t first) {
      multiply_rows<kRowTiles, kLow, kLines>(a, a_stride, b, first, num_vectors, c, c_stride,
                                             from_zero, ahead, nothing);
    };
    if constexpr (!is_plain(static_cast<const B*>(nullptr))) {
      if (rows > 16) {
        low ? multiply_all.template operator()<2, true>(0)
            : multiply_all.template operator()<2, false>(0);
        return;
      }
    }
    const auto multiply_most = [&]<int kSteps, bool kLow>() {
      return multiply_few<kSteps, kLow, kLines>(a, a_stride, b, num_vectors, c, c_stride, from_zero,
                                                ahead);
    };
    const std::int64_t steps = num_steps(b);
    // Plain rows, whose panels these may be, leave two tiles for A.
    constexpr bool kTwoTiles =
        std::is_same_v<B, PanelSource<AmxDot>> || is_plain(static_cast<const B*>(nullptr));
    if (low) {
      std::int64_t done = 0;
      if constexpr (!kTwoTiles) {
        if (steps == 2) done = multiply_most.template operator()<2, true>();
      }
      multiply_all.template operator()<1, true>(done);
    } else {
      std::int64_t done = 0;
      if (steps == 2) done = multiply_most.template operator()<2, false>();
      if constexpr (!kTwoTiles) {
        if (steps == 4) done = multiply_most.template operator()<4, false>();
      }
      multiply_all.template operator()<1, false>(done);
    }
  }

  // C (+)= A B of more than 16 rows, with other work between the products. That takes long: a few
  // lines at every step are enough.
  template <class B, class Meanwhile>
  static void multiply_meanwhile(const BFloat16* a, std::int64_t a_stride, const B& b,
                                 std::int64_t num_vectors, float* c, std::int64_t c_stride,
                                 bool from_zero, PrefetchWalk& ahead,
                                 Meanwhile& meanwhile) noexcept {
    constexpr int kLines = 2;
    multiply_rows<2, false, kLines>(a, a_stride, b, 0, num_vectors, c, c_stride, from_zero, ahead,
                                    meanwhile);
  }
};

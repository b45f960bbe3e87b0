// SPDX-License-Identifier: Apache-2.0
// Pairs of bf16 by AMX tiles: C [16 x 16 f32] += A [16 x 32 bf16] B [16 pairs x 16 columns].
// Registers: C 0..3 (two row tiles x two column tiles), A 4 and 5, B 6 and 7.

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
  static constexpr std::int64_t kInPlaceRows = kRowTile;
  static constexpr std::int64_t kDimStep = 32;
  static constexpr bool kPlainInPlace = false;
  static constexpr bool kPipelined = true;  // tiles and vectors are units apart
  using Pair = __m512i;

  // Tiles of `num_rows` rows, or of 16 if there are more. REQUIRES: request_tiles() was true.
  static void begin(std::int64_t num_rows) noexcept {
    TileConfig config;
    const auto rows = static_cast<std::uint8_t>(std::min<std::int64_t>(16, num_rows));
    for (int tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = 64;
      config.rows[tile] = tile < 6 ? rows : 16;
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
  template <class T>
  QUIRE_INLINE static void convert(const T* p, BFloat16* out) noexcept {
    const Bf16x64 x = load_bf16x64(p);
    _mm512_store_si512(out, x.low);
    _mm512_store_si512(out + 32, x.high);
  }

  // Lines of memory behind one B tile; those behind a panel were seen to when it was made.
  static constexpr int tile_lines(const PanelSource<AmxDot>*) noexcept { return 0; }
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

  // Up to 32 rows of up to 32 columns. With kLow, A is the sum of two: the other lies kLowWeights
  // further on.
  template <int kRowTiles, int kColumnTiles, bool kLow, class B, class Meanwhile>
  QUIRE_INLINE static void multiply_tiles(const BFloat16* a, std::int64_t a_stride, const B& b,
                                          std::int64_t column, float* c, std::int64_t c_stride,
                                          bool from_zero, PrefetchWalk& ahead,
                                          Meanwhile& meanwhile) noexcept {
    alignas(64) BFloat16 buffers[2][512];
    constexpr int kLines = tile_lines(static_cast<const B*>(nullptr));
    float* c0 = c + column * 16;
    float* c1 = c0 + 16 * c_stride;
    if (from_zero) {
      QUIRE_TILE_ZERO(0);
      if constexpr (kColumnTiles == 2) QUIRE_TILE_ZERO(1);
      if constexpr (kRowTiles == 2) QUIRE_TILE_ZERO(2);
      if constexpr (kRowTiles == 2 && kColumnTiles == 2) QUIRE_TILE_ZERO(3);
    } else {
      QUIRE_TILE_LOAD(0, c0, c_stride * 4);
      if constexpr (kColumnTiles == 2) QUIRE_TILE_LOAD(1, c0 + 16, c_stride * 4);
      if constexpr (kRowTiles == 2) QUIRE_TILE_LOAD(2, c1, c_stride * 4);
      if constexpr (kRowTiles == 2 && kColumnTiles == 2) QUIRE_TILE_LOAD(3, c1 + 16, c_stride * 4);
    }
    const std::int64_t steps = num_steps(b);
    for (std::int64_t step = 0; step < steps; ++step, a += 32) {
      const TilePlace b0 = place(b, column, step, buffers[0]);
      QUIRE_TILE_LOAD(4, a, a_stride * 2);
      QUIRE_TILE_STREAM(6, b0.data, b0.stride_bytes);
      QUIRE_TILE_DOT(0, 4, 6);
      if constexpr (kLines > 0) ahead.template steps<kLines>();
      if constexpr (kColumnTiles == 2) {
        const TilePlace b1 = place(b, column + 1, step, buffers[1]);
        QUIRE_TILE_STREAM(7, b1.data, b1.stride_bytes);
        QUIRE_TILE_DOT(1, 4, 7);
        if constexpr (kLines > 0) ahead.template steps<kLines>();
      }
      if constexpr (kRowTiles == 2) {
        QUIRE_TILE_LOAD(5, a + 16 * a_stride, a_stride * 2);
        QUIRE_TILE_DOT(2, 5, 6);
        if constexpr (kColumnTiles == 2) QUIRE_TILE_DOT(3, 5, 7);
      }
      if constexpr (kLow) {
        QUIRE_TILE_LOAD(4, a + kLowWeights, a_stride * 2);
        QUIRE_TILE_DOT(0, 4, 6);
        if constexpr (kColumnTiles == 2) QUIRE_TILE_DOT(1, 4, 7);
        if constexpr (kRowTiles == 2) {
          QUIRE_TILE_LOAD(5, a + kLowWeights + 16 * a_stride, a_stride * 2);
          QUIRE_TILE_DOT(2, 5, 6);
          if constexpr (kColumnTiles == 2) QUIRE_TILE_DOT(3, 5, 7);
        }
      }
      meanwhile();
    }
    QUIRE_TILE_STORE(0, c0, c_stride * 4);
    if constexpr (kColumnTiles == 2) QUIRE_TILE_STORE(1, c0 + 16, c_stride * 4);
    if constexpr (kRowTiles == 2) QUIRE_TILE_STORE(2, c1, c_stride * 4);
    if constexpr (kRowTiles == 2 && kColumnTiles == 2) QUIRE_TILE_STORE(3, c1 + 16, c_stride * 4);
  }

  template <int kRowTiles, bool kLow, class B, class Meanwhile>
  QUIRE_INLINE static void multiply_rows(const BFloat16* a, std::int64_t a_stride, const B& b,
                                         std::int64_t num_vectors, float* c, std::int64_t c_stride,
                                         bool from_zero, PrefetchWalk& ahead,
                                         Meanwhile& meanwhile) noexcept {
    std::int64_t column = 0;
    for (; column + 2 <= num_vectors; column += 2) {
      multiply_tiles<kRowTiles, 2, kLow>(a, a_stride, b, column, c, c_stride, from_zero, ahead,
                                         meanwhile);
    }
    if (column < num_vectors) {
      multiply_tiles<kRowTiles, 1, kLow>(a, a_stride, b, column, c, c_stride, from_zero, ahead,
                                         meanwhile);
    }
  }

  // C (+)= A B; with `low` also what lies kLowWeights after A. REQUIRES: rows <= kRowBlock.
  template <class B>
  static void multiply(const BFloat16* a, bool low, std::int64_t a_stride, std::int64_t rows,
                       const B& b, std::int64_t num_vectors, float* c, std::int64_t c_stride,
                       bool from_zero, PrefetchWalk& ahead) noexcept {
    const auto nothing = [] {};
    if (rows > 16 && low) {
      multiply_rows<2, true>(a, a_stride, b, num_vectors, c, c_stride, from_zero, ahead, nothing);
    } else if (rows > 16) {
      multiply_rows<2, false>(a, a_stride, b, num_vectors, c, c_stride, from_zero, ahead, nothing);
    } else if (low) {
      multiply_rows<1, true>(a, a_stride, b, num_vectors, c, c_stride, from_zero, ahead, nothing);
    } else {
      multiply_rows<1, false>(a, a_stride, b, num_vectors, c, c_stride, from_zero, ahead, nothing);
    }
  }

  // C (+)= A B of more than 16 rows; calls meanwhile() between the steps, for work that has nothing
  // to do with tiles: the core does both at once.
  template <class B, class Meanwhile>
  static void multiply_meanwhile(const BFloat16* a, std::int64_t a_stride, const B& b,
                                 std::int64_t num_vectors, float* c, std::int64_t c_stride,
                                 bool from_zero, PrefetchWalk& ahead,
                                 Meanwhile& meanwhile) noexcept {
    multiply_rows<2, false>(a, a_stride, b, num_vectors, c, c_stride, from_zero, ahead, meanwhile);
  }
};

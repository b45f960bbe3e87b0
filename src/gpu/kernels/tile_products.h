// SPDX-License-Identifier: Apache-2.0
// The two products with a tile of keys and values in shared memory, for either way in which the
// rows of an item may lie (fragment_map.h). 16-bit numbers are multiplied as what they are; 8-bit
// ones are widened to f16 in registers, in an order of the dims that needs no shuffling: a product
// does not care which dim is which, if both sides agree.
//
// The accumulators `s` and `o` are float [count][4] as the map says, and `number` is of the stored
// format (with_format).
#pragma once

#include <cstdint>

#include "gpu/device_api.h"
#include "gpu/kernels/fragment_map.h"
#include "gpu/kernels/key_tiles.h"

namespace quire::gpu {

template <class Stored, int kDims, class Map>
struct TileProducts;

template <class Stored, int kDims>
struct QueryDims {
  // The dim that number c of half `half` of a query's register in step `step` stands for; 8-bit
  // keys are read 16 neighbouring dims at a time.
  QUIRE_DEVICE static int query_dim(int step, int half, int c) {
    const int quarter = lane() % 4;
    if constexpr (sizeof(Stored) == 2) return 16 * step + 8 * half + 2 * quarter + c;
    return step / 4 * 64 + quarter * 16 + step % 4 * 4 + 2 * half + c;
  }
};

template <class Stored, int kDims, int kBlocks>
struct TileProducts<Stored, kDims, RowsDown<kBlocks>> : QueryDims<Stored, kDims> {
  using Tile = KeyTile<Stored, kDims>;
  using Compute = typename Tile::Compute;
  using Fragment = Words<4>;  // of Q: 16 rows by 16 dims

  // The dim of number i of accumulator n of the values.
  QUIRE_DEVICE static int value_dim(int n, int i) {
    const int column = 2 * (lane() % 4) + i % 2;
    const int dims = n / kBlocks;
    if constexpr (Tile::kIs16Bit) return 8 * dims + column;
    return dims / 4 * 32 + 4 * column + dims % 4;
  }

  // What follows from the lane of where it reads K and V in a tile, or rows of 16-bit Q.
  struct Own {
    int k;
    int v;  // and Q
  };
  QUIRE_DEVICE static Own own_places() {
    if constexpr (Tile::kIs16Bit) {
      // K: keys 0-7 of the lower and the upper eight dims, then keys 8-15.
      // V: keys 0-7 and 8-15 of the lower eight dims, then of the upper eight.
      return {Tile::matrix_own(lane() % 8 + lane() / 16 * 8, lane() / 8 % 2),
              Tile::matrix_own(lane() % 16, lane() / 16)};
    } else {
      return {Tile::k_own(), Tile::v_own(lane() / 16 * 16 + lane() / 4 % 4 * 4)};
    }
  }

  // s += Q K^T for kTiles tiles, one behind the other; q(block, step) is a fragment of Q.
  template <int kTiles, class Number, class Queries, class Scores>
  QUIRE_DEVICE static void multiply_keys(const unsigned char* tiles, const Own& own,
                                         const Queries& q, Scores& s, Number number) {
    constexpr int kPerTile = Tile::kKeys / 8;
    if constexpr (Tile::kIs16Bit) {
      // Each load is under way while the products of the one before are made.
      constexpr int kPairs = kTiles * kPerTile / 2;  // of eights of keys
      constexpr int kLoads = kDims / 16 * kPairs;
      const auto load = [tiles, own](std::uint32_t(&r)[4], int i) {
        const int n = 2 * (i % kPairs);
        load_matrices(r, tiles + n / kPerTile * Tile::kBytes +
                             Tile::matrix_row(own.k, i / kPairs, 8 * (n % kPerTile)));
      };
      Fragment a[2][kBlocks];
      std::uint32_t r[2][4];
      const auto begin = [&](int i) {
        load(r[i % 2], i);
        const int step = i / kPairs;
        if (i % kPairs != 0) return;
        QUIRE_UNROLL
        for (int block = 0; block < kBlocks; ++block) a[step % 2][block] = q(block, step);
      };
      begin(0);
      QUIRE_UNROLL
      for (int i = 0; i < kLoads; ++i) {
        if (i + 1 < kLoads) begin(i + 1);
        const int n = 2 * (i % kPairs);
        const auto& keys = r[i % 2];
        QUIRE_UNROLL
        for (int block = 0; block < kBlocks; ++block) {
          const auto& rows = a[i / kPairs % 2][block].x;
          multiply_add(s[n * kBlocks + block], rows, keys[0], keys[1], Compute{});
          multiply_add(s[(n + 1) * kBlocks + block], rows, keys[2], keys[3], Compute{});
        }
      }
    } else {
      QUIRE_UNROLL
      for (int part = 0; part < kTiles * kDims / 64; ++part) {
        const int t = part / (kDims / 64);
        const int dims = part % (kDims / 64);
        Sixteen keys[kPerTile];
        QUIRE_UNROLL
        for (int n = 0; n < kPerTile; ++n) {
          keys[n] = Tile::k_sixteen(tiles + t * Tile::kBytes, own.k, 8 * n, dims);
        }
        QUIRE_UNROLL
        for (int i = 0; i < 4; ++i) {
          QUIRE_UNROLL
          for (int block = 0; block < kBlocks; ++block) {
            const Fragment a = q(block, 4 * dims + i);
            QUIRE_UNROLL
            for (int n = 0; n < kPerTile; ++n) {
              multiply_add(s[(t * kPerTile + n) * kBlocks + block], a.x,
                           two_halves(keys[n].x[i], 0, number), two_halves(keys[n].x[i], 1, number),
                           Compute{});
            }
          }
        }
      }
    }
  }

  // o += P V for kTiles tiles.
  template <int kTiles, class Number, class Weights, class Values>
  QUIRE_DEVICE static void multiply_values(const unsigned char* tiles, const Own& own,
                                           const Weights& s, Values& o, Number number) {
    constexpr int kPerTile = Tile::kKeys / 16;
    std::uint32_t p[kBlocks][4];
    const auto take_weights = [&](int sixteen) {
      QUIRE_UNROLL
      for (int block = 0; block < kBlocks; ++block) {
        const float(&low)[4] = s[2 * sixteen * kBlocks + block];
        const float(&high)[4] = s[(2 * sixteen + 1) * kBlocks + block];
        p[block][0] = pack(low[0], low[1], Compute{});
        p[block][1] = pack(low[2], low[3], Compute{});
        p[block][2] = pack(high[0], high[1], Compute{});
        p[block][3] = pack(high[2], high[3], Compute{});
      }
    };
    if constexpr (Tile::kIs16Bit) {
      constexpr int kPairs = kDims / 16;  // of eights of dims
      constexpr int kLoads = kTiles * kPerTile * kPairs;
      const auto load = [tiles, own](std::uint32_t(&r)[4], int i) {
        const int sixteen = i / kPairs;
        load_matrices_transposed(
            r, tiles + sixteen / kPerTile * Tile::kBytes + Tile::kTensorBytes +
                   Tile::matrix_row(own.v, i % kPairs, 16 * (sixteen % kPerTile)));
      };
      std::uint32_t r[2][4];
      load(r[0], 0);
      QUIRE_UNROLL
      for (int i = 0; i < kLoads; ++i) {
        if (i + 1 < kLoads) load(r[(i + 1) % 2], i + 1);
        const int n = 2 * (i % kPairs);
        if (n == 0) take_weights(i / kPairs);
        const auto& values = r[i % 2];
        QUIRE_UNROLL
        for (int block = 0; block < kBlocks; ++block) {
          multiply_add(o[n * kBlocks + block], p[block], values[0], values[1], Compute{});
          multiply_add(o[(n + 1) * kBlocks + block], p[block], values[2], values[3], Compute{});
        }
      }
    } else {
      QUIRE_UNROLL
      for (int sixteen = 0; sixteen < kTiles * kPerTile; ++sixteen) {
        const unsigned char* values =
            tiles + sixteen / kPerTile * Tile::kBytes + Tile::kTensorBytes;
        take_weights(sixteen);
        QUIRE_UNROLL
        for (int part = 0; part < kDims / 32; ++part) {
          std::uint32_t words[4];  // four dims of each of four keys
          QUIRE_UNROLL
          for (int i = 0; i < 4; ++i) {
            words[i] = *reinterpret_cast<const std::uint32_t*>(
                values + (own.v ^ (32 * (part % 4))) + 128 * (part / 4) +
                Tile::key_of_four(sixteen % kPerTile, i) * Tile::kRowBytes);
          }
          std::uint32_t low[4];
          std::uint32_t high[4];
          QUIRE_UNROLL
          for (int i = 0; i < 4; i += 2) {
            Tile::widen_pairs(words[0], words[1], i, number, low[i], low[i + 1]);
            Tile::widen_pairs(words[2], words[3], i, number, high[i], high[i + 1]);
          }
          QUIRE_UNROLL
          for (int i = 0; i < 4; ++i) {
            QUIRE_UNROLL
            for (int block = 0; block < kBlocks; ++block) {
              multiply_add(o[(4 * part + i) * kBlocks + block], p[block], low[i], high[i],
                           Compute{});
            }
          }
        }
      }
    }
  }
};

template <class Stored, int kDims, int kGroups>
struct TileProducts<Stored, kDims, RowsAcross<kGroups>> : QueryDims<Stored, kDims> {
  using Tile = KeyTile<Stored, kDims>;
  using Compute = typename Tile::Compute;
  using Fragment = Words<2 * kGroups>;  // of Q: 16 dims by kGroups groups of 8 rows
  // 8-bit values: a lane reads this many neighbouring dims of a key, and the eight lanes that hold
  // the same keys all of them in kParts reads.
  static constexpr int kLaneDims = kDims < 128 ? kDims / 8 : 16;
  static constexpr int kParts = kDims / (8 * kLaneDims);

  QUIRE_DEVICE static int value_dim(int n, int i) {
    const int rows = n / kGroups;
    if constexpr (Tile::kIs16Bit) return 16 * rows + lane() / 4 + 8 * (i / 2);
    constexpr int kPairs = kLaneDims / 2;
    return (rows / kPairs * 8 + lane() / 4) * kLaneDims + rows % kPairs * 2 + i / 2;
  }

  // s += K Q^T; q(0, step) is a fragment of Q.
  template <int kTiles, class Number, class Queries, class Scores>
  QUIRE_DEVICE static void multiply_keys(const unsigned char* tile, const Queries& q, Scores& s,
                                         Number number) {
    static_assert(kTiles == 1);
    if constexpr (Tile::kIs16Bit) {
      QUIRE_UNROLL
      for (int rows = 0; rows < Tile::kKeys / 16; ++rows) {
        // Every other step adds to sums of its own: half as long a chain of products.
        float odd[kGroups][4] = {};
        QUIRE_UNROLL
        for (int step = 0; step < kDims / 16; ++step) {
          // Keys 0-7 and 8-15 of the lower eight dims, then of the upper eight.
          const int own = Tile::matrix_own(lane() % 16, lane() / 16);
          std::uint32_t a[4];
          load_matrices(a, tile + Tile::matrix_row(own, step, 16 * rows));
          const Fragment b = q(0, step);
          QUIRE_UNROLL
          for (int g = 0; g < kGroups; ++g) {
            multiply_add(step % 2 == 0 ? s[rows * kGroups + g] : odd[g], a, b.x[g],
                         b.x[kGroups + g], Compute{});
          }
        }
        QUIRE_UNROLL
        for (int g = 0; g < kGroups; ++g) {
          QUIRE_UNROLL
          for (int i = 0; i < 4; ++i) s[rows * kGroups + g][i] += odd[g][i];
        }
      }
    } else {
      const auto multiply = [&](int step, int rows, const std::uint32_t(&a)[4]) {
        const Fragment b = q(0, step);
        QUIRE_UNROLL
        for (int g = 0; g < kGroups; ++g) {
          multiply_add(s[rows * kGroups + g], a, b.x[g], b.x[kGroups + g], Compute{});
        }
      };
      const int own = Tile::k_own();
      QUIRE_UNROLL
      for (int part = 0; part < kDims / 64; ++part) {
        QUIRE_UNROLL
        for (int rows = 0; rows < Tile::kKeys / 16; ++rows) {
          const Sixteen low = Tile::k_sixteen(tile, own, 16 * rows, part);
          const Sixteen high = Tile::k_sixteen(tile, own, 16 * rows + 8, part);
          QUIRE_UNROLL
          for (int i = 0; i < 4; ++i) {
            const std::uint32_t a[4] = {
                two_halves(low.x[i], 0, number), two_halves(high.x[i], 0, number),
                two_halves(low.x[i], 1, number), two_halves(high.x[i], 1, number)};
            multiply(4 * part + i, rows, a);
          }
        }
      }
    }
  }

  // o += V^T P^T.
  template <class Number, class Weights, class Values>
  QUIRE_DEVICE static void multiply_values(const unsigned char* tile, const Weights& s, Values& o,
                                           Number number) {
    const unsigned char* values = tile + Tile::kTensorBytes;
    QUIRE_UNROLL
    for (int half = 0; half < Tile::kKeys / 16; ++half) {
      std::uint32_t p[kGroups][2];
      QUIRE_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        const float(&w)[4] = s[half * kGroups + g];
        p[g][0] = transpose_matrix(pack(w[0], w[1], Compute{}));
        p[g][1] = transpose_matrix(pack(w[2], w[3], Compute{}));
      }
      const auto multiply = [&](int rows, const std::uint32_t(&a)[4]) {
        QUIRE_UNROLL
        for (int g = 0; g < kGroups; ++g) {
          multiply_add(o[rows * kGroups + g], a, p[g][0], p[g][1], Compute{});
        }
      };
      if constexpr (Tile::kIs16Bit) {
        QUIRE_UNROLL
        for (int n = 0; n < kDims / 16; ++n) {
          // The lower and the upper eight dims of keys 0-7, then of keys 8-15.
          const int own = Tile::matrix_own(lane() % 8 + lane() / 16 * 8, lane() / 8 % 2);
          std::uint32_t a[4];
          load_matrices_transposed(a, values + Tile::matrix_row(own, n, 16 * half));
          multiply(n, a);
        }
      } else {
        const int own = Tile::v_own(lane() / 4 * kLaneDims);
        QUIRE_UNROLL
        for (int part = 0; part < kParts; ++part) {
          Words<kLaneDims / 4> dims[4];  // of keys 2 * (l % 4), + 1, + 8 and + 9
          QUIRE_UNROLL
          for (int i = 0; i < 4; ++i) {
            dims[i] = *reinterpret_cast<const Words<kLaneDims / 4>*>(
                values + own + part * 8 * kLaneDims + Tile::key_of_four(half, i) * Tile::kRowBytes);
          }
          QUIRE_UNROLL
          for (int j = 0; j < kLaneDims / 2; ++j) {
            const int word = j / 2;
            const int byte = j % 2 * 2;
            std::uint32_t a[4];
            Tile::widen_pairs(dims[0].x[word], dims[1].x[word], byte, number, a[0], a[1]);
            Tile::widen_pairs(dims[2].x[word], dims[3].x[word], byte, number, a[2], a[3]);
            multiply(part * (kLaneDims / 2) + j, a);
          }
        }
      }
    }
  }
};

// Adds the values of keys that have an infinite or NaN one, leaving out weights of 0: where some
// row does not see such a key, 0 * NaN must not reach it. weights [row of the block, Tile::kKeys]
// are in shared memory; o [Map::num_values(kDims)][4] is the copy of the accumulators, of which
// those of one block change.
template <class Stored, int kDims, class Map>
QUIRE_DEVICE_RARE void add_non_finite(const unsigned char* tile, DType stored, const float* weights,
                                      int block, float (*o)[4]) {
  using Tile = KeyTile<Stored, kDims>;
  using Products = TileProducts<Stored, kDims, Map>;
  constexpr int kBlockRows = Map::kRows / Map::kBlocks;
  QUIRE_NO_UNROLL
  for (int key = 0; key < Tile::kKeys; ++key) {
    if (!Tile::is_non_finite(tile, key, stored)) continue;
    QUIRE_NO_UNROLL
    for (int n = block; n < Map::num_values(kDims); n += Map::kBlocks) {
      QUIRE_NO_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int row = Map::row(Map::slot(n, i)) % kBlockRows;
        const float weight = weights[row * Tile::kKeys + key];
        if (weight != 0.0F) {
          o[n][i] += weight * Tile::value_at(tile, key, Products::value_dim(n, i), stored);
        }
      }
    }
  }
}

}  // namespace quire::gpu

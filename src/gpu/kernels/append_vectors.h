// SPDX-License-Identifier: Apache-2.0
// New K and V of 16 bits into rows of 16 or 8 bits, 16 bytes at a time: what append does wherever
// strides and addresses allow it. Every thread keeps its place within a token and walks over
// tokens; it has several rows and their slots in flight before it stores the first.
#pragma once

#include <cstdint>

#include "gpu/device_api.h"
#include "gpu/kernels/plan_items.h"
#include "gpu/transfer_args.h"

namespace quire::gpu {

struct alignas(8) Eight {
  std::uint32_t x[2];
};

// Two numbers as rounding to their own format leaves them: unchanged, but every NaN quiet.
QUIRE_DEVICE std::uint32_t quiet(std::uint32_t two, BFloat16) {
  return two | (((two & 0x7fff7fffU) + 0x007f007fU) & 0x80008000U) >> 9;
}
QUIRE_DEVICE std::uint32_t quiet(std::uint32_t two, Float16) {
  return two | (((two & 0x7fff7fffU) + 0x03ff03ffU) & 0x80008000U) >> 6;
}

QUIRE_DEVICE float magnitude_of(float x) {
  return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, x) & 0x7fffffffU);
}

// A scale that many numbers are divided by.
struct RowScale {
  float scale;
  float inverse;
  bool is_usual;  // so far from the ends of f32 that divide_usual stays within it
};

// Numbers up to here divided by a usual scale are finite.
inline constexpr float kUsualMost = 0x1p60F;

QUIRE_DEVICE bool is_usual_scale(float scale) {
  return scale >= 0x1p-60F && scale <= 0x1p60F;
}
QUIRE_DEVICE RowScale make_row_scale(float scale) {
  return {scale, number_formats_internal::ieee_divide(1.0F, scale), is_usual_scale(scale)};
}
// The same for a scale that token_head_scale gave (see divide_usual).
QUIRE_DEVICE RowScale make_token_scale(float scale) {
  return {scale, inverse_fast(scale), is_usual_scale(scale)};
}

// x / scale for a number x of 16 bits, as near as eight bits can tell from the nearest f32. The
// inverse is off by at most one unit in the last place and the product with it by less than 3; the
// step with the remainder leaves 2^-20 of one before the quotient is rounded to f32. So it could be
// rounded to the wrong neighbour only within 2^-20 of a unit from the middle M of two of them, and
// eight bits differ only if one of the two is T, where they round to the other side. As whole
// numbers x is A 2^k with A < 2^11, the scale B < 2^24, T of at most 9 bits followed by 15 or more
// zeros, and M = 2 T +- 1: then B M = A 2^k + e with |e| < 32. Its lower 16 bits say that
// B = b 2^16 +- e, and the 16 above that b is e times T's upper 9 bits, which are 256 or more: so
// B is 2^24 - 1 and x a power of two. Then the inverse must be the nearest, which make_row_scale
// gives; token_head_scale gives no such B (a test divides all numbers of 16 bits).
// The remainder is subtracted, so that -0 stays -0: by the sign of the inverse, since compilers
// take the sign of a fused product to its operands, which changes that of a zero.
QUIRE_DEVICE float divide_usual(float x, const RowScale& by) {
  const float quotient = x * by.inverse;
  const float excess = fused(quotient, by.scale, -x);
  return fused(excess, -by.inverse, quotient);
}

// The same for any number and scale. A factor that is a power of two brings the scale between
// 2^-60 and 2^60; where it takes the number out of f32, the quotient saturates or is zero anyway.
QUIRE_DEVICE float divide_any(float x, float scale) {
  constexpr float kSaturates = 0x1p20F;
  const float factor = scale < 0x1p-60F ? 0x1p90F : scale > 0x1p60F ? 0x1p-90F : 1.0F;
  const RowScale by = make_row_scale(scale * factor);
  const float first = x * factor * by.inverse;
  return magnitude_of(first) < kSaturates ? divide_usual(x * factor, by) : first;
}

template <class Source>
QUIRE_DEVICE void unpack_chunk(const Sixteen& chunk, float (&x)[kAppendChunk]) {
  QUIRE_UNROLL
  for (int i = 0; i < kAppendChunk / 2; ++i) unpack(chunk.x[i], x[2 * i], x[2 * i + 1], Source{});
}

// The largest magnitude of a chunk; NaN does not count.
QUIRE_DEVICE float largest_of(const float (&x)[kAppendChunk]) {
  float largest = 0.0F;
  QUIRE_UNROLL
  for (int i = 0; i < kAppendChunk; ++i) largest = max_of(largest, magnitude_of(x[i]));
  return largest;
}

// The same of the finite ones.
QUIRE_DEVICE float largest_finite(const float (&x)[kAppendChunk]) {
  float largest = 0.0F;
  QUIRE_UNROLL
  for (int i = 0; i < kAppendChunk; ++i) largest = max_of(largest, finite_magnitude(x[i]));
  return largest;
}

// are_small: no magnitude of the chunk is above kUsualMost, else that is looked at.
template <class Source, class Stored>
QUIRE_DEVICE Eight quantized(const Sixteen& chunk, const RowScale& by, bool are_small) {
  float x[kAppendChunk];
  unpack_chunk<Source>(chunk, x);
  if (by.is_usual && (are_small || largest_of(x) <= kUsualMost)) {
    QUIRE_UNROLL
    for (int i = 0; i < kAppendChunk; ++i) x[i] = divide_usual(x[i], by);
  } else {
    QUIRE_UNROLL
    for (int i = 0; i < kAppendChunk; ++i) x[i] = divide_any(x[i], by.scale);
  }
  return {
      {four_bytes(x[0], x[1], x[2], x[3], Stored{}), four_bytes(x[4], x[5], x[6], x[7], Stored{})}};
}

// Where a thread stands in an item.
struct AppendPlace {
  int side;  // K, V
  int head;
  int chunk;       // the first
  int num_chunks;  // from there on; none: no part in this item
  int lane;        // of those that share a row
  int token;       // of the first pass
};

QUIRE_DEVICE AppendPlace append_place(const AppendVectors& plan, int item) {
  AppendPlace place;
  place.lane = thread_index() & ((1 << plan.lane_bits) - 1);
  const int group = thread_index() >> plan.lane_bits;
  const int first = divide(group, plan.by_columns_per_pass);
  const int tile = divide(item, plan.by_column_tiles);
  const int column = (item - tile * plan.num_column_tiles) * plan.columns_per_pass + group -
                     first * plan.columns_per_pass;
  place.side = column >= plan.num_k_columns ? 1 : 0;
  const AppendSide& side = plan.sides[place.side];
  const int side_column = place.side != 0 ? column - plan.num_k_columns : column;
  place.head = divide(side_column, side.by_pieces);
  const int piece = side_column - place.head * side.num_pieces;
  place.chunk = ((piece * append_chunks(plan.sets_scales)) << plan.lane_bits) + place.lane;
  place.token = tile * (plan.tokens_per_pass * plan.rows) + first;
  const int rest = side.num_chunks - place.chunk + (1 << plan.lane_bits) - 1;
  const bool is_active = first < plan.tokens_per_pass && column < plan.num_columns;
  place.num_chunks = is_active ? rest >> plan.lane_bits : 0;
  return place;
}

// What a thread has in flight. Its chunks of a row are those of its lane and of kChunks - 1 lanes
// beyond the others.
template <bool kSetsScales>
struct AppendFlight {
  static constexpr int kChunks = append_chunks(kSetsScales);
  static constexpr int kRows = append_rows_in_flight(kSetsScales);
  Sixteen chunks[kRows][kChunks];
  std::int64_t slots[kRows];  // negative: nothing to store
};

QUIRE_DEVICE const unsigned char* first_chunk(const AppendSide& side, const AppendPlace& place) {
  return side.from + place.token * side.from_token + place.head * side.from_head +
         std::int64_t{16} * place.chunk;
}

// Brings near what a thread block begins with, while the last grid ends. Those that begin later ask
// for nothing twice: memory is busy then, and eight bits took 2 us of 15 longer for it.
template <bool kSetsScales>
QUIRE_DEVICE void prefetch_append(const AppendArgs& args) {
  const AppendVectors& plan = args.vectors;
  if (block_index() >= args.num_resident_blocks) return;
  const AppendPlace place = append_place(plan, block_index());
  if (place.lane != 0 || place.num_chunks <= 0) return;
  const AppendSide& side = plan.sides[place.side];
  const int most = append_chunks(kSetsScales) << plan.lane_bits;
  const int rest = side.num_chunks - place.chunk;
  const unsigned char* from = first_chunk(side, place);
  QUIRE_NO_UNROLL
  for (int k = 0; k < plan.rows; ++k) {
    const int token = place.token + k * plan.tokens_per_pass;
    if (token >= plan.num_tokens) return;
    prefetch(args.slots.data + token);
    prefetch_bytes(from, 16 * (rest < most ? rest : most));
    from += plan.tokens_per_pass * side.from_token;
  }
}

template <class Flight>
QUIRE_DEVICE void load_flight(const AppendArgs& args, const AppendPlace& place, Flight& flight) {
  const AppendVectors& plan = args.vectors;
  const AppendSide& side = plan.sides[place.side];
  const unsigned char* from = first_chunk(side, place);
  const std::int64_t step = plan.tokens_per_pass * side.from_token;
  QUIRE_UNROLL
  for (int k = 0; k < Flight::kRows; ++k) {
    const int token = place.token + k * plan.tokens_per_pass;
    const bool is_there = place.num_chunks > 0 && k < plan.rows && token < plan.num_tokens;
    flight.slots[k] = is_there ? args.slots.data[token] : -1;
    QUIRE_UNROLL
    for (int j = 0; j < Flight::kChunks; ++j) {
      const std::uint32_t offset = static_cast<std::uint32_t>(16 * j) << plan.lane_bits;
      const auto* at = reinterpret_cast<const Sixteen*>(from + offset);
      flight.chunks[k][j] = is_there && j < place.num_chunks ? *at : Sixteen{};
    }
    from += step;
  }
}

// Slots outside the cache are told of and not stored to: only metadata that came on the device can
// hold them.
QUIRE_DEVICE bool is_stored(const AppendArgs& args, const AppendPlace& place, std::int64_t slot,
                            int k) {
  if (slot < args.num_slots) return slot >= 0;
  if (place.lane == 0) {
    const int token = place.token + k * args.vectors.tokens_per_pass;
    report_fault(args.counts, args.host_fault, fault_code(Fault::kSlot, 0, token));
  }
  return false;
}

template <class Source, class Stored>
QUIRE_DEVICE void store_chunk(const Sixteen& chunk, unsigned char* to, const RowScale& by,
                              bool are_small) {
  if constexpr (sizeof(Stored) == sizeof(Source)) {
    Sixteen rounded;
    QUIRE_UNROLL
    for (int i = 0; i < 4; ++i) rounded.x[i] = quiet(chunk.x[i], Source{});
    *reinterpret_cast<Sixteen*>(to) = rounded;
  } else {
    *reinterpret_cast<Eight*>(to) = quantized<Source, Stored>(chunk, by, are_small);
  }
}

// The largest magnitude of a row, over the lanes that share it; not finite if one of them is not.
// As whole numbers magnitudes of 16 bits have the same order, NaN last.
template <class Source, int kChunks>
QUIRE_DEVICE float find_largest(const Sixteen (&chunks)[kChunks], int lane_bits) {
  std::uint32_t largest = 0;
  QUIRE_UNROLL
  for (const Sixteen& chunk : chunks) {
    QUIRE_UNROLL
    for (const std::uint32_t two : chunk.x) largest = max_halves(largest, two & 0x7fff7fffU);
  }
  for (int step = 1 << lane_bits >> 1; step > 0; step /= 2) {
    const int other = shuffle_xor(static_cast<int>(largest), step);
    largest = max_halves(largest, static_cast<std::uint32_t>(other));
  }
  float low;
  float high;
  unpack(max_halves(largest, largest >> 16), low, high, Source{});
  return low;
}

// The same of those that are finite.
template <class Source, int kChunks>
QUIRE_DEVICE float find_largest_finite(const Sixteen (&chunks)[kChunks], int lane_bits) {
  float largest = 0.0F;
  QUIRE_UNROLL
  for (const Sixteen& chunk : chunks) {
    float x[kAppendChunk];
    unpack_chunk<Source>(chunk, x);
    largest = max_of(largest, largest_finite(x));
  }
  for (int step = 1 << lane_bits >> 1; step > 0; step /= 2) {
    largest = max_of(largest, shuffle_xor(largest, step));
  }
  return largest;
}

// kSetsScales: of rows that are one piece each, and their lanes one team's.
template <class Source, class Stored, bool kSetsScales>
QUIRE_DEVICE void append_as(const AppendArgs& args) {
  constexpr bool kQuantizes = sizeof(Stored) == 1;
  using Flight = AppendFlight<kSetsScales>;
  const AppendVectors& plan = args.vectors;
  for (int item = block_index(); item < plan.num_items; item += num_blocks()) {
    const AppendPlace place = append_place(plan, item);
    const AppendSide& side = plan.sides[place.side];
    Flight flight;
    load_flight(args, place, flight);
    bool are_small = false;
    RowScale by{1.0F, 1.0F, true};
    if constexpr (kSetsScales) {
      static_assert(Flight::kRows == 1);
      float largest = find_largest<Source>(flight.chunks[0], plan.lane_bits);
      are_small = largest <= kUsualMost;
      if (QUIRE_UNLIKELY(any(!(largest <= max_finite(DType::kF32))))) {
        largest = find_largest_finite<Source>(flight.chunks[0], plan.lane_bits);
      }
      by = make_token_scale(token_head_scale(kDTypeOf<Stored>, largest));
    } else if (kQuantizes && side.scales != nullptr && place.num_chunks > 0) {
      by = make_row_scale(side.scales[place.head * side.scale_strides.head]);
    }
    constexpr int kChunkBytes = kAppendChunk * static_cast<int>(sizeof(Stored));
    unsigned char* column =
        side.to + place.head * side.to_head + std::int64_t{kChunkBytes} * place.chunk;
    QUIRE_UNROLL
    for (int k = 0; k < Flight::kRows; ++k) {
      if (!is_stored(args, place, flight.slots[k], k)) continue;
      const auto slot = static_cast<std::int32_t>(flight.slots[k]);
      const std::int32_t block = divide(slot, plan.by_block_size);
      const std::int32_t token = slot - block * plan.block_size;
      if constexpr (kSetsScales) {
        float* scale = side.scales + strided_offset(side.scale_strides, block, place.head, token);
        if (place.lane == 0) *scale = by.scale;
      }
      unsigned char* to = column + block * side.to_block + token * side.to_token;
      QUIRE_UNROLL
      for (int j = 0; j < Flight::kChunks; ++j) {
        if (j >= place.num_chunks) continue;
        const std::uint32_t offset = static_cast<std::uint32_t>(kChunkBytes * j) << plan.lane_bits;
        store_chunk<Source, Stored>(flight.chunks[k][j], to + offset, by, are_small);
      }
    }
  }
}

template <class Source, bool kSetsScales>
QUIRE_DEVICE void append_from(const AppendArgs& args) {
  switch (args.cache.format.dtype) {
    case DType::kF8E4M3:
      return append_as<Source, Float8E4M3, kSetsScales>(args);
    case DType::kF8E5M2:
      return append_as<Source, Float8E5M2, kSetsScales>(args);
    case DType::kI8:
      return append_as<Source, std::int8_t, kSetsScales>(args);
    default:
      if constexpr (!kSetsScales) append_as<Source, Source, false>(args);
  }
}

// REQUIRES: the host found that rows can be taken in chunks; kSetsScales is plan.sets_scales.
template <bool kSetsScales>
QUIRE_DEVICE void append_vectors(const AppendArgs& args) {
  if (args.new_kv.k.dtype == DType::kBF16) {
    append_from<BFloat16, kSetsScales>(args);
  } else {
    append_from<Float16, kSetsScales>(args);
  }
}

}  // namespace quire::gpu

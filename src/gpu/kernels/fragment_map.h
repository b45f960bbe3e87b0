// SPDX-License-Identifier: Apache-2.0
// Which row of an item, and which key or dim, the numbers are that a lane holds of a matrix product
// (device_api.h has the fragments).
//
//   RowsDown    S = Q K^T, O = P V: they are the 16 rows of each of kBlocks products with the same
//               keys. For many rows.
//   RowsAcross  S^T = K Q^T, O^T = V^T P^T: they are the 8 columns of each of kGroups products, and
//               16 keys or dims are the rows. Few rows then cost half the products and registers.
//
// Accumulators are float [count][4], those of the blocks or groups for the same keys or dims next
// to each other. Slots are the rows that a lane has a part of.
#pragma once

#include "gpu/device_api.h"

namespace quire::gpu {

template <int kCount>
struct alignas(4 * kCount) Words {
  std::uint32_t x[kCount];
};

template <int kNumBlocks>
struct RowsDown {
  static constexpr int kBlocks = kNumBlocks;
  static constexpr int kRows = 16 * kBlocks;
  static constexpr int kSlots = 2 * kBlocks;
  // Lanes that hold other keys or dims of the same rows differ in these bits of their number.
  static constexpr int kFirstOther = 1;
  static constexpr int kLastOther = 2;
  static constexpr bool kMayLackHalf = false;

  static constexpr int num_scores(int keys) { return keys / 8 * kBlocks; }
  static constexpr int num_values(int dims) { return dims / 8 * kBlocks; }
  QUIRE_DEVICE static int row(int slot) { return 16 * (slot / 2) + lane() / 4 + 8 * (slot % 2); }
  QUIRE_DEVICE static constexpr int block(int n) { return n % kBlocks; }
  QUIRE_DEVICE static constexpr int slot(int n, int i) { return 2 * block(n) + i / 2; }
  // The first key of accumulator n, and that of its number i.
  QUIRE_DEVICE static constexpr int first_key(int n) { return 8 * (n / kBlocks); }
  QUIRE_DEVICE static int key(int n, int i) { return first_key(n) + 2 * (lane() % 4) + i % 2; }
};

template <int kGroups>
struct RowsAcross {
  static constexpr int kBlocks = 1;
  static constexpr int kRows = 8 * kGroups;
  static constexpr int kSlots = 2 * kGroups;
  static constexpr int kFirstOther = 4;
  static constexpr int kLastOther = 16;
  // The upper half of the rows may not exist, and is then left out.
  static constexpr bool kMayLackHalf = kGroups > 1;

  static constexpr int num_scores(int keys) { return keys / 16 * kGroups; }
  static constexpr int num_values(int dims) { return dims / 16 * kGroups; }
  QUIRE_DEVICE static int row(int slot) { return 8 * (slot / 2) + 2 * (lane() % 4) + slot % 2; }
  QUIRE_DEVICE static constexpr int block(int n) {
    (void)n;
    return 0;
  }
  QUIRE_DEVICE static constexpr int slot(int n, int i) { return 2 * (n % kGroups) + i % 2; }
  QUIRE_DEVICE static constexpr int first_key(int n) { return 16 * (n / kGroups); }
  QUIRE_DEVICE static int key(int n, int i) { return first_key(n) + lane() / 4 + 8 * (i / 2); }
};

}  // namespace quire::gpu

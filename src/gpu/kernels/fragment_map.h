// SPDX-License-Identifier: Apache-2.0
// Which row of an item, and which key or dim, the numbers are that a lane holds of a matrix product
// (device_api.h has the fragments).
//
//   RowsDown    S = Q K^T, O = P V: the item's rows are the 16 rows of a product. For many rows.
//   RowsAcross  S^T = K Q^T, O^T = V^T P^T: they are the 8 columns of each of kGroups products, and
//               16 keys or dims are the rows. Few rows then cost half the products and registers.
//
// Accumulators are float [count][4]. Slots are the rows that a lane has a part of; halves are rows
// 0-7 and 8-15.
#pragma once

#include "gpu/device_api.h"

namespace quire::gpu {

template <int kCount>
struct alignas(4 * kCount) Words {
  std::uint32_t x[kCount];
};

struct RowsDown {
  static constexpr int kRows = 16;
  static constexpr int kSlots = 2;
  // Lanes that hold other keys or dims of the same rows differ in these bits of their number.
  static constexpr int kFirstOther = 1;
  static constexpr int kLastOther = 2;

  static constexpr int num_scores(int keys) { return keys / 8; }
  static constexpr int num_values(int dims) { return dims / 8; }
  QUIRE_DEVICE static int row(int slot) { return lane() / 4 + 8 * slot; }
  QUIRE_DEVICE static constexpr int half(int slot) { return slot; }
  QUIRE_DEVICE static constexpr int slot(int n, int i) {
    (void)n;
    return i / 2;
  }
  QUIRE_DEVICE static int key(int n, int i) { return 8 * n + 2 * (lane() % 4) + i % 2; }
};

template <int kGroups>
struct RowsAcross {
  static constexpr int kRows = 8 * kGroups;
  static constexpr int kSlots = 2 * kGroups;
  static constexpr int kFirstOther = 4;
  static constexpr int kLastOther = 16;

  static constexpr int num_scores(int keys) { return keys / 16 * kGroups; }
  static constexpr int num_values(int dims) { return dims / 16 * kGroups; }
  QUIRE_DEVICE static int row(int slot) { return 8 * (slot / 2) + 2 * (lane() % 4) + slot % 2; }
  QUIRE_DEVICE static constexpr int half(int slot) { return slot / 2; }
  QUIRE_DEVICE static constexpr int slot(int n, int i) { return 2 * (n % kGroups) + i % 2; }
  QUIRE_DEVICE static int key(int n, int i) {
    return 16 * (n / kGroups) + lane() / 4 + 8 * (i / 2);
  }
};

}  // namespace quire::gpu

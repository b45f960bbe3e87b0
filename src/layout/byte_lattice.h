// SPDX-License-Identifier: Apache-2.0
// The bytes that a strided tensor covers, and whether two tensors share one.
//
// Tensors that lie in each other share none if their elements only interleave: q, k and v of one
// packed projection, or a result written beside them. Pure functions on the host; nothing
// allocates.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace quire {

// Runs of bytes, repeated along axes. An axis that goes backwards covers the same bytes as one that
// goes forwards from its far end, so all strides are positive here; those that repeat the same
// bytes are left out. REQUIRES: all reaches together fit in 63 bits (offsets_fit).
class ByteLattice {
 public:
  static constexpr int kMaxAxes = 4;

  struct Axis {
    std::uint64_t stride = 0;  // in bytes, above 0
    std::uint64_t last = 0;    // the last index, above 0
  };

  ByteLattice() = default;  // no bytes
  ByteLattice(const void* first, std::int64_t run_bytes) noexcept
      : begin_(reinterpret_cast<std::uintptr_t>(first)),
        end_(begin_ + static_cast<std::uintptr_t>(run_bytes)) {}

  // Repeats all so far `extent` times, `stride` elements of `bytes` apart. REQUIRES: at most
  // kMaxAxes calls.
  void repeat(std::int64_t extent, std::int64_t stride, std::int64_t bytes = 1) noexcept {
    if (extent <= 0) *this = {};
    if (extent <= 1 || stride == 0 || begin_ == end_) return;
    const auto last = static_cast<std::uint64_t>(extent - 1);
    const auto distance = static_cast<std::uint64_t>((stride < 0 ? -stride : stride) * bytes);
    (stride < 0 ? begin_ : end_) += (stride < 0 ? 0 - distance : distance) * last;
    axes_[static_cast<std::size_t>(num_axes_++)] = {distance, last};
  }

  std::uintptr_t begin() const noexcept { return begin_; }
  std::uintptr_t end() const noexcept { return end_; }
  int num_axes() const noexcept { return num_axes_; }
  const Axis& axis(int i) const noexcept { return axes_[static_cast<std::size_t>(i)]; }

 private:
  std::uintptr_t begin_ = 0;  // the lowest byte of all
  std::uintptr_t end_ = 0;    // one past the highest
  std::array<Axis, kMaxAxes> axes_{};
  int num_axes_ = 0;
};

// Steps that finding out may take. Strides that nest, and strides that both have, need a few dozen
// of them, or as many as there are heads.
inline constexpr int kMaxOverlapSteps = 512;

// The part of lattices_overlap for those whose ranges meet.
bool lattices_share_byte(const ByteLattice& x, const ByteLattice& y) noexcept;

// Whether some byte belongs to both. Never true for two that are apart; false also for the odd
// strides whose answer is not found in kMaxOverlapSteps.
inline bool lattices_overlap(const ByteLattice& x, const ByteLattice& y) noexcept {
  return x.begin() < y.end() && y.begin() < x.end() && lattices_share_byte(x, y);
}

}  // namespace quire

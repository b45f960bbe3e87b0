// SPDX-License-Identifier: Apache-2.0
#include "layout/byte_lattice.h"

#include <algorithm>
#include <utility>

namespace quire {
namespace {

// Which of [0, reach] are sums of a multiple of every stride and of a number up to `slack`.
class Sums {
 public:
  // x.begin + (what x's axes add) + u == y's last byte - (what y's axes take off) - v, with u and v
  // inside the runs: the axes of both add up to the distance of x's first and y's last byte.
  Sums(const ByteLattice& x, const ByteLattice& y) noexcept {
    slack_ = y.end() - y.begin() + (x.end() - x.begin()) - 2;
    for (const ByteLattice* lattice : {&x, &y}) {
      for (int i = 0; i < lattice->num_axes(); ++i) add(lattice->axis(i));
    }
    for (int i = 0; i < num_axes_; ++i) slack_ -= axis(i).stride * axis(i).last;
    // What is at least as dense as all that is finer leaves no gap.
    while (num_axes_ > 0 && axis(num_axes_ - 1).stride <= slack_ + 1) {
      --num_axes_;
      slack_ += axis(num_axes_).stride * axis(num_axes_).last;
    }
    std::uint64_t reach = slack_;
    for (int i = num_axes_; i > 0; --i) {
      reach_[static_cast<std::size_t>(i)] = reach;
      reach += axis(i - 1).stride * axis(i - 1).last;
    }
    reach_[0] = reach;
  }

  bool contain(std::uint64_t target) noexcept { return search(0, target); }

 private:
  // Kept by stride, the largest first; equal ones are one.
  void add(const ByteLattice::Axis& added) noexcept {
    for (int i = 0; i < num_axes_; ++i) {
      if (axis(i).stride != added.stride) continue;
      axis(i).last += added.last;
      return;
    }
    int i = num_axes_++;
    for (; i > 0 && axis(i - 1).stride < added.stride; --i) axis(i) = axis(i - 1);
    axis(i) = added;
  }

  // Of the axes from `first` on.
  bool search(int first, std::uint64_t target) noexcept {
    const std::uint64_t rest = reach_[static_cast<std::size_t>(first)];
    if (target > rest) return false;
    if (first == num_axes_) return true;
    const auto [stride, last] = axis(first);
    const std::uint64_t finer = reach_[static_cast<std::size_t>(first) + 1];
    const std::uint64_t lowest = target > finer ? (target - finer + stride - 1) / stride : 0;
    const std::uint64_t highest = std::min(last, target / stride);
    for (std::uint64_t i = lowest; i <= highest; ++i) {
      if (--num_steps_left_ < 0) return false;
      if (search(first + 1, target - i * stride)) return true;
    }
    return false;
  }

  ByteLattice::Axis& axis(int i) noexcept { return axes_[static_cast<std::size_t>(i)]; }

  std::array<ByteLattice::Axis, 2 * ByteLattice::kMaxAxes> axes_{};
  int num_axes_ = 0;
  std::uint64_t slack_ = 0;
  std::array<std::uint64_t, 2 * ByteLattice::kMaxAxes + 1> reach_{};  // of the axes from i on
  int num_steps_left_ = kMaxOverlapSteps;
};

}  // namespace

bool lattices_share_byte(const ByteLattice& x, const ByteLattice& y) noexcept {
  return Sums(x, y).contain(y.end() - 1 - x.begin());
}

}  // namespace quire

// SPDX-License-Identifier: Apache-2.0
#include "layout/kv_extent.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "base/check.h"
#include "base/checked_int.h"

namespace quire {
namespace {

constexpr const char* kOffset = "offset of a cache element";

struct Axis {
  const char* name = "";
  std::int64_t stride = 0;  // >= 0 once the lattice is built
  std::int64_t extent = 0;

  std::int64_t reach() const { return checked_mul(kOffset, stride, extent - 1); }
};

// The elements of K or of V: runs of `run` consecutive elements, repeated along the axes. An axis
// that goes backwards covers the same elements as one that goes forwards from its far end, so
// `begin`, the lowest element, and positive strides describe every tensor. REQUIRES: not empty.
struct Lattice {
  const char* name = "";
  std::int64_t begin = 0;  // relative to the base of the tensor
  std::int64_t run = 0;
  std::array<Axis, 3> axes;  // by stride, smallest first; those of extent 1 left out
  int num_axes = 0;

  void add(Axis axis) {
    if (axis.extent == 1) return;
    require(axis.stride != std::numeric_limits<std::int64_t>::min(), name, " stride of ", axis.name,
            " is too large: ", axis.stride);
    if (axis.stride < 0) {
      begin = checked_add(kOffset, begin, checked_mul(kOffset, axis.stride, axis.extent - 1));
      axis.stride = -axis.stride;
    }
    int i = num_axes++;
    for (; i > 0 && axes[static_cast<std::size_t>(i - 1)].stride > axis.stride; --i) {
      axes[static_cast<std::size_t>(i)] = axes[static_cast<std::size_t>(i - 1)];
    }
    axes[static_cast<std::size_t>(i)] = axis;
  }

  const Axis& axis(int i) const { return axes[static_cast<std::size_t>(i)]; }

  // Of the axes with strides up to `limit`.
  int num_inner(std::int64_t limit) const {
    int count = 0;
    while (count < num_axes && axis(count).stride <= limit) ++count;
    return count;
  }

  // Elements from the first to one past the last along the first `count` axes.
  std::int64_t span(int count) const {
    std::int64_t result = run;
    for (int i = 0; i < count; ++i) result = checked_add(kOffset, result, axis(i).reach());
    return result;
  }
};

Lattice make_lattice(const KvCacheView& cache, KvTensor tensor) {
  const bool is_k = tensor == KvTensor::kK || cache.format.v_in_k;
  const KvStrides& strides = is_k ? cache.k_strides : cache.v_strides;
  const std::int64_t dims = is_k ? cache.head_dim : cache.value_dim;
  Lattice lattice;
  lattice.name = is_k ? "K" : "V";
  lattice.run = dims;
  lattice.add({"block", strides.block, cache.num_blocks});
  lattice.add({"head", strides.head, cache.num_kv_heads});
  if (cache.format.layout == KvLayoutId::kPlain) {
    lattice.add({"token", strides.token, cache.format.block_size});
  } else {
    lattice.run = checked_mul(kOffset, dims, cache.format.block_size);
  }
  return lattice;
}

void require_nested(const Lattice& lattice) {
  std::int64_t span = lattice.run;
  for (int i = 0; i < lattice.num_axes; ++i) {
    const Axis& axis = lattice.axis(i);
    require(axis.stride >= span, "elements of ", lattice.name, " overlap: the stride of ",
            axis.name, " is ", axis.stride, ", what lies inside it covers ", span);
    span = checked_add(kOffset, span, axis.reach());
  }
}

// K and V at a distance: seen from far away both are one tensor, whose innermost part is a piece of
// K and a piece of V side by side. The piece of the lower one ends before the upper one begins, so
// it is what lies nearer than their distance; the upper one's has the axes that are left, however
// far they reach.
void require_apart(const Lattice& k, const Lattice& v, std::int64_t distance) {
  const Lattice& low = distance >= 0 ? k : v;
  const Lattice& high = distance >= 0 ? v : k;
  const std::int64_t gap = distance >= 0 ? distance : -distance;
  const int num_low = low.num_inner(gap);
  const std::int64_t low_span = low.span(num_low);
  require(gap >= low_span, "K and V overlap: ", high.name, " begins ", gap, " elements after ",
          low.name, ", which covers ", low_span);
  const int num_outer = low.num_axes - num_low;
  const int num_high = high.num_axes - num_outer;
  require(num_high >= 0,
          "K and V lie in each other with different axes: bring them apart or with equal strides");
  std::int64_t span = checked_add(kOffset, gap, high.span(num_high));
  for (int i = 0; i < num_outer; ++i) {
    const Axis& axis = low.axis(num_low + i);
    const Axis& other = high.axis(num_high + i);
    require(axis.stride == other.stride && axis.extent == other.extent,
            "K and V lie in each other with different strides of ", axis.name, ": ", low.name, " ",
            axis.stride, ", ", high.name, " ", other.stride);
    require(axis.stride >= span, "K and V overlap: the stride of ", axis.name, " is ", axis.stride,
            ", what lies inside it covers ", span);
    span = checked_add(kOffset, span, axis.reach());
  }
}

ElementRange range_of(const Lattice& lattice, std::int64_t element_bytes) {
  const std::int64_t span = lattice.span(lattice.num_axes);
  const std::int64_t end = checked_add(kOffset, lattice.begin, span);
  // Pointers are moved by bytes.
  checked_mul(kOffset, lattice.begin, element_bytes);
  checked_mul(kOffset, end, element_bytes);
  return {lattice.begin, end};
}

}  // namespace

ElementRange element_range(const KvCacheView& cache, KvTensor tensor) {
  if (cache.num_blocks == 0) return {};
  return range_of(make_lattice(cache, tensor), dtype_bytes(cache.format.dtype));
}

void require_distinct_elements(const KvCacheView& cache) {
  if (cache.num_blocks == 0) return;
  const std::int64_t element_bytes = dtype_bytes(cache.format.dtype);
  const Lattice k = make_lattice(cache, KvTensor::kK);
  const Lattice v = make_lattice(cache, KvTensor::kV);
  range_of(k, element_bytes);
  range_of(v, element_bytes);
  require_nested(k);
  if (cache.format.v_in_k) return;
  require_nested(v);

  const auto address = [&](const void* base, std::int64_t begin) {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(base)) +
           begin * element_bytes;
  };
  const std::int64_t distance_bytes = address(cache.v, v.begin) - address(cache.k, k.begin);
  const std::int64_t k_bytes = k.span(k.num_axes) * element_bytes;
  const std::int64_t v_bytes = v.span(v.num_axes) * element_bytes;
  if (distance_bytes >= k_bytes || -distance_bytes >= v_bytes) return;
  require_apart(k, v, distance_bytes / element_bytes);
}

RecordExtent record_extent(const KvLayout& layout, std::int64_t num_blocks) {
  constexpr const char* kWhat = "size of the cache";
  if (!layout.v_apart) {
    return {layout.v_offset_bytes, checked_mul(kWhat, num_blocks, layout.block_bytes)};
  }
  const auto area = [&](const KvStrides& strides) {
    return checked_round_up(kWhat, checked_mul(kWhat, num_blocks, strides.block), layout.alignment);
  };
  const std::int64_t k_bytes = area(layout.k_strides);
  return {k_bytes, checked_add(kWhat, k_bytes, area(layout.v_strides))};
}

}  // namespace quire

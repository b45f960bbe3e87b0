// SPDX-License-Identifier: Apache-2.0
// Views over tensors that a caller brings, and the records of caches that quire allocates.
#include <array>
#include <cstdint>

#include "base/check.h"
#include "base/checked_int.h"
#include "layout/kv_extent.h"
#include "layout/kv_offset.h"
#include "quire/kv_cache.h"

namespace quire {
namespace {

constexpr std::int64_t kRecordAlignment = 64;  // one cache line, one row of an AMX tile
constexpr const char* kBlockBytes = "size of one block";

// What offsets are computed from; the rest of a spec is validated where it is used.
void require_shape(const AttentionSpec& spec) {
  require(spec.num_kv_heads >= 1, "num_kv_heads must be at least 1, is ", spec.num_kv_heads);
  require(spec.head_dim >= 1, "head_dim must be at least 1, is ", spec.head_dim);
  require(spec.value_dim >= 1, "value_dim must be at least 1, is ", spec.value_dim);
  require(spec.kv.block_size >= 1, "block_size must be at least 1, is ", spec.kv.block_size);
  require(!spec.kv.v_in_k || spec.value_dim <= spec.head_dim, "with v_in_k value_dim must not be ",
          "above head_dim ", spec.head_dim, ", is ", spec.value_dim);
}

// Which axis of the caller's tensor is which; -1 where it has none.
struct Axes {
  int block;
  int head;
  int token;
  int dim;

  const char* block_name() const { return token < 0 ? "row" : "block"; }
};

Axes axes_of(KvOrder order) {
  const bool head_first = order == KvOrder::kBlockHeadTokenDim;
  return {0, head_first ? 1 : 2, head_first ? 2 : 1, 3};
}

// One tensor of the caller, and the part of it that is K or V.
struct Part {
  const char* name;
  const void* data;
  const TensorView& tensor;
  Axes axes;
  std::int64_t tensor_dims;  // that the last axis of the tensor should have
};

std::int64_t extent(const TensorView& tensor, int axis) {
  return tensor.shape[static_cast<std::size_t>(axis)];
}
std::int64_t stride(const TensorView& tensor, int axis) {
  return tensor.strides[static_cast<std::size_t>(axis)];
}

void require_rank(const char* name, const TensorView& tensor, int rank) {
  require(tensor.rank == rank, name, " has rank ", tensor.rank, ", expected ", rank);
}

void require_extent(const char* name, const TensorView& tensor, int axis, const char* axis_name,
                    std::int64_t expected) {
  require(extent(tensor, axis) == expected, name, " axis ", axis, " (", axis_name, ") has extent ",
          extent(tensor, axis), ", expected ", expected);
}

void require_part(const AttentionSpec& spec, const Part& part) {
  const TensorView& tensor = part.tensor;
  require(tensor.dtype == spec.kv.dtype, part.name, " has dtype ", dtype_name(tensor.dtype),
          ", expected ", dtype_name(spec.kv.dtype));
  require(extent(tensor, part.axes.block) >= 0, part.name, " axis ", part.axes.block, " (",
          part.axes.block_name(), ") has negative extent ", extent(tensor, part.axes.block));
  require_extent(part.name, tensor, part.axes.head, "head", spec.num_kv_heads);
  if (part.axes.token >= 0) {
    require_extent(part.name, tensor, part.axes.token, "token", spec.kv.block_size);
  }
  require_extent(part.name, tensor, part.axes.dim, "dim", part.tensor_dims);
  require(stride(tensor, part.axes.dim) == 1 || part.tensor_dims == 1, part.name, " axis ",
          part.axes.dim, " (dim) has stride ", stride(tensor, part.axes.dim), ", expected 1");
  require(part.data != nullptr || extent(tensor, part.axes.block) == 0, part.name,
          " has a null pointer");
  const auto address = reinterpret_cast<std::uintptr_t>(part.data);
  const auto element_bytes = static_cast<std::uintptr_t>(dtype_bytes(tensor.dtype));
  require(address % element_bytes == 0, part.name, " lies at ", part.data,
          ", not aligned to its elements of bytes ", element_bytes);
}

KvStrides part_strides(const Part& part) {
  return {stride(part.tensor, part.axes.block), stride(part.tensor, part.axes.head),
          part.axes.token >= 0 ? stride(part.tensor, part.axes.token) : 0};
}

// REQUIRES: `v` is ignored with v_in_k.
KvCacheView make_view(const AttentionSpec& spec, const Part& k, const Part& v) {
  require(spec.kv.layout == KvLayoutId::kPlain,
          "a tensor of the caller has the plain layout, the spec asks for layout ",
          static_cast<int>(spec.kv.layout));
  require_part(spec, k);
  KvCacheView view;
  // Views are shared by readers and writers; whether a call writes is a matter of the call.
  view.k = const_cast<void*>(k.data);
  view.k_strides = part_strides(k);
  view.num_blocks = extent(k.tensor, k.axes.block);
  view.num_kv_heads = spec.num_kv_heads;
  view.head_dim = spec.head_dim;
  view.value_dim = spec.value_dim;
  view.format = spec.kv;
  view.device = k.tensor.device;
  if (spec.kv.v_in_k) {
    view.v = view.k;
    view.v_strides = view.k_strides;
    return view;
  }
  require_part(spec, v);
  require_extent(v.name, v.tensor, v.axes.block, v.axes.block_name(), view.num_blocks);
  require(v.tensor.device == k.tensor.device,
          "K and V lie on different devices: ", device_kind_name(k.tensor.device.kind), " ",
          k.tensor.device.index, " and ", device_kind_name(v.tensor.device.kind), " ",
          v.tensor.device.index);
  view.v = const_cast<void*>(v.data);
  view.v_strides = part_strides(v);
  return view;
}

KvLayout make_layout(const AttentionSpec& spec, KvLayoutId id) {
  require_shape(spec);
  const std::int64_t element_bytes = dtype_bytes(spec.kv.dtype);
  const auto dense = [&](std::int64_t dims) -> KvStrides {
    const std::int64_t head = checked_mul(kBlockBytes, spec.kv.block_size, dims);
    return {0, head, id == KvLayoutId::kPlain ? dims : 0};
  };
  const auto tensor_bytes = [&](const KvStrides& strides) {
    const std::int64_t elements = checked_mul(kBlockBytes, strides.head, spec.num_kv_heads);
    return checked_round_up(kBlockBytes, checked_mul(kBlockBytes, elements, element_bytes),
                            kRecordAlignment);
  };
  KvLayout layout;
  layout.id = id;
  layout.alignment = kRecordAlignment;
  layout.k_strides = dense(spec.head_dim);
  layout.v_strides = spec.kv.v_in_k ? layout.k_strides : dense(spec.value_dim);
  const std::int64_t k_bytes = tensor_bytes(layout.k_strides);
  layout.v_offset_bytes = spec.kv.v_in_k ? 0 : k_bytes;
  layout.block_bytes =
      spec.kv.v_in_k ? k_bytes : checked_add(kBlockBytes, k_bytes, tensor_bytes(layout.v_strides));
  static_assert(kRecordAlignment % 4 == 0, "a record holds a whole number of elements");
  layout.k_strides.block = layout.block_bytes / element_bytes;
  layout.v_strides.block = layout.k_strides.block;
  return layout;
}

}  // namespace

KvCacheView view_kv(const AttentionSpec& spec, KvOrder order, const MutableTensorView& k,
                    const MutableTensorView& v) {
  require_shape(spec);
  const Axes axes = axes_of(order);
  const TensorView k_tensor = k;
  const TensorView v_tensor = v;
  require_rank("K", k_tensor, 4);
  if (!spec.kv.v_in_k) require_rank("V", v_tensor, 4);
  const KvCacheView view = make_view(spec, {"K", k.data, k_tensor, axes, spec.head_dim},
                                     {"V", v.data, v_tensor, axes, spec.value_dim});
  require_distinct_elements(view);
  return view;
}

KvCacheView split_kv(const AttentionSpec& spec, KvOrder order, KvPacking packing,
                     const MutableTensorView& kv) {
  require_shape(spec);
  require(!spec.kv.v_in_k, "with v_in_k one tensor is K alone: bring it to view_kv");
  const TensorView tensor = kv;
  const bool per_token = packing == KvPacking::kKvPerToken;
  require_rank("KV", tensor, per_token ? 4 : 5);
  Axes axes = axes_of(order);
  std::int64_t v_offset = spec.head_dim;
  std::int64_t dims = checked_add("head_dim + value_dim", spec.head_dim, spec.value_dim);
  if (!per_token) {
    require(spec.head_dim == spec.value_dim, "one tensor of rank 5 holds K and V of equal dim, ",
            "head_dim is ", spec.head_dim, ", value_dim ", spec.value_dim);
    dims = spec.head_dim;
    const int pair_axis = packing == KvPacking::kKvFirst ? 0 : 1;
    require_extent("KV", tensor, pair_axis, "K and V", 2);
    v_offset = stride(tensor, pair_axis);
    axes = {axes.block + (pair_axis == 0 ? 1 : 0), axes.head + 1, axes.token + 1, axes.dim + 1};
  }
  const std::int64_t v_offset_bytes =
      checked_mul("offset of V", v_offset, dtype_bytes(tensor.dtype));
  const void* v_data =
      kv.data == nullptr ? nullptr : static_cast<const char*>(kv.data) + v_offset_bytes;
  const KvCacheView view =
      make_view(spec, {"KV", kv.data, tensor, axes, dims}, {"KV", v_data, tensor, axes, dims});
  require_distinct_elements(view);
  return view;
}

KvCacheView view_ragged(const AttentionSpec& spec, const TensorView& k, const TensorView& v) {
  require_shape(spec);
  require(spec.kv.block_size == 1, "ragged K and V need block_size 1, the spec has ",
          spec.kv.block_size);
  const Axes axes = {0, 1, -1, 2};
  require_rank("K", k, 3);
  if (!spec.kv.v_in_k) require_rank("V", v, 3);
  const KvCacheView view = make_view(spec, {"K", k.data, k, axes, spec.head_dim},
                                     {"V", v.data, v, axes, spec.value_dim});
  // Only read, so rows and heads may share memory; offsets must be numbers all the same.
  element_range(view, KvTensor::kK);
  element_range(view, KvTensor::kV);
  return view;
}

KvLayout plain_layout(const AttentionSpec& spec) {
  return make_layout(spec, KvLayoutId::kPlain);
}

bool pair_tiled_layout_fits(const AttentionSpec& spec) noexcept {
  const bool v_fits = spec.kv.v_in_k || spec.value_dim % kPairTile == 0;
  return spec.kv.block_size % kPairTile == 0 && spec.head_dim % 2 == 0 && v_fits;
}

KvLayout pair_tiled_layout(const AttentionSpec& spec) {
  require_shape(spec);
  require(pair_tiled_layout_fits(spec),
          "the pair-tiled layout needs a block_size divisible by 16, ",
          "an even head_dim and, unless v_in_k, a value_dim divisible by 16; block_size is ",
          spec.kv.block_size, ", head_dim ", spec.head_dim, ", value_dim ", spec.value_dim);
  return make_layout(spec, KvLayoutId::kPairTiled);
}

}  // namespace quire

// SPDX-License-Identifier: Apache-2.0
#include "kv_view.h"

#include <limits>
#include <string>

#include "fail.h"

namespace quire::python {
namespace {

bool is_none(nb::handle source) {
  return !source.is_valid() || source.is_none();
}

int extent(const char* name, const Array& array, int axis) {
  const std::int64_t value = array.shape[static_cast<std::size_t>(axis)];
  require(value <= std::numeric_limits<int>::max(), name, ": axis ", axis, " is too long: ", value);
  return static_cast<int>(value);
}

DType stored_dtype(const char* name, const Array& array, const std::optional<DType>& dtype) {
  return dtype.has_value() ? element_dtype(name, array, *dtype) : element_dtype(name, array);
}

void require_value_dim(const LayerArguments& arguments, int value_dim) {
  require(arguments.value_dim == 0 || arguments.value_dim == value_dim, "value_dim: is ",
          arguments.value_dim, ", but V has ", value_dim);
}

// Heads, dims and block size of the tensor, which a spec for view_kv needs.
AttentionSpec spec_of(const LayerArguments& arguments, const Array& k, const Array& v) {
  AttentionSpec spec;
  spec.kv.dtype = stored_dtype("k_cache", k, arguments.dtype);
  const bool is_ragged = k.rank == 3;
  const bool has_pair_axis =
      arguments.packing.has_value() && arguments.packing != KvPacking::kKvPerToken;
  const int rank = has_pair_axis ? 5 : 4;
  require(is_ragged || k.rank == rank, "k_cache: needs rank ", rank, " (or 3 without blocks), has ",
          k.rank);
  const int first = is_ragged ? -1 : k.rank - 4;
  const bool token_first = arguments.order == KvOrder::kBlockTokenHeadDim;
  const int head_axis = is_ragged ? 1 : first + (token_first ? 2 : 1);
  const int token_axis = first + (token_first ? 1 : 2);
  spec.num_kv_heads = extent("k_cache", k, head_axis);
  spec.num_q_heads = spec.num_kv_heads;
  spec.kv.block_size = is_ragged ? 1 : extent("k_cache", k, token_axis);
  spec.head_dim = extent("k_cache", k, k.rank - 1);
  if (arguments.packing == KvPacking::kKvPerToken) {
    const std::int64_t dims = spec.head_dim;
    const std::int64_t head_dim = arguments.head_dim != 0 ? arguments.head_dim : dims - dims / 2;
    require(head_dim > 0 && head_dim < dims, "k_cache: a token of ", dims,
            " elements does not hold K of dim ", head_dim, " and V");
    spec.head_dim = static_cast<int>(head_dim);
    spec.value_dim = static_cast<int>(dims - head_dim);
    require_value_dim(arguments, spec.value_dim);
    return spec;
  }
  spec.value_dim = spec.head_dim;
  if (v.rank != 0) {
    require(v.rank == k.rank, "v_cache: has rank ", v.rank, ", k_cache has ", k.rank);
    spec.value_dim = extent("v_cache", v, v.rank - 1);
  } else if (!arguments.packing.has_value()) {
    spec.kv.v_in_k = true;
    require(arguments.value_dim >= 0 && arguments.value_dim <= spec.head_dim,
            "value_dim: V inside K of dim ", spec.head_dim, " cannot have ", arguments.value_dim);
    if (arguments.value_dim != 0) spec.value_dim = static_cast<int>(arguments.value_dim);
  }
  require_value_dim(arguments, spec.value_dim);
  return spec;
}

void require_scales_fit(const char* name, const Array& scales, const KvCacheView& view,
                        KvOrder order) {
  const bool token_first = order == KvOrder::kBlockTokenHeadDim;
  const std::int64_t heads = view.num_kv_heads;
  const std::int64_t tokens = view.format.block_size;
  const std::int64_t second = token_first ? tokens : heads;
  const std::int64_t third = token_first ? heads : tokens;
  const bool fits =
      scales.shape[0] == view.num_blocks && scales.shape[1] == second && scales.shape[2] == third;
  require(fits, name, ": needs shape [", view.num_blocks, ", ", second, ", ", third, "], has [",
          scales.shape[0], ", ", scales.shape[1], ", ", scales.shape[2], "]");
}

struct Scales {
  ScaleGranularity granularity = ScaleGranularity::kPerTensor;
  KvScales scales;
};

Scales read_scales(const char* name, nb::handle source, KvOrder order, LayerCache& layer,
                   std::size_t index) {
  const KvCacheView& view = layer.view;
  float number = 1;
  const bool is_number =
      is_none(source) || PyFloat_Check(source.ptr()) != 0 || PyLong_Check(source.ptr()) != 0;
  if (is_number) {
    require(is_none(source) || nb::try_cast(source, number), name, ": is not a number");
  }
  if (is_number && view.device.is_host()) {
    if (!layer.own_scales) layer.own_scales = std::make_shared<std::array<float, 2>>();
    (*layer.own_scales)[index] = number;
    return {.scales = {.data = &(*layer.own_scales)[index], .strides = {}}};
  }
  Array& array = layer.arrays[2 + index];
  if (is_number) {
    const nb::object made = nb::module_::import_("quire._arrays")
                                .attr("number_like")(name, layer.arrays[0].source, number);
    array = import_array(name, made);
  } else {
    array = import_array(name, source);
  }
  const DType dtype = element_dtype(name, array);
  require(dtype == DType::kF32, name, ": needs f32, has ", dtype_name(dtype));
  require(array.device == view.device, name, ": is not on the device of the cache");
  auto* data = static_cast<float*>(array.data);
  switch (array.rank) {
    case 0:
      return {.scales = {.data = data, .strides = {}}};
    case 1:
      if (array.shape[0] == 1 && view.num_kv_heads != 1) {
        return {.scales = {.data = data, .strides = {}}};
      }
      require(array.shape[0] == view.num_kv_heads, name, ": needs ", view.num_kv_heads,
              " heads, has ", array.shape[0]);
      return {.granularity = ScaleGranularity::kPerHead,
              .scales = {.data = data, .strides = {.head = array.strides[0]}}};
    case 3: {
      require_scales_fit(name, array, view, order);
      const bool token_first = order == KvOrder::kBlockTokenHeadDim;
      return {.granularity = ScaleGranularity::kPerTokenHead,
              .scales = {.data = data,
                         .strides = {.block = array.strides[0],
                                     .head = array.strides[token_first ? 2 : 1],
                                     .token = array.strides[token_first ? 1 : 2]}}};
    }
    default:
      fail(ErrorCode::kInvalidArgument, name,
           ": needs a number, [num_kv_heads] or three axes, has rank ", array.rank);
  }
}

void set_scales(const LayerArguments& arguments, LayerCache& layer) {
  KvCacheView& view = layer.view;
  const bool given = !is_none(arguments.k_scale) || !is_none(arguments.v_scale);
  if (!is_quantized(view.format.dtype)) {
    require(!given, "k_scale: a cache of ", dtype_name(view.format.dtype), " has no scales");
    return;
  }
  const Scales k = read_scales("k_scale", arguments.k_scale, arguments.order, layer, 0);
  view.k_scales = k.scales;
  view.format.scales = k.granularity;
  if (view.format.v_in_k) {
    require(is_none(arguments.v_scale), "v_scale: V is a part of K and has its scales");
    view.v_scales = view.k_scales;
    return;
  }
  const Scales v = read_scales("v_scale", arguments.v_scale, arguments.order, layer, 1);
  require(v.granularity == k.granularity, "v_scale: is ", scale_granularity_name(v.granularity),
          ", but k_scale ", scale_granularity_name(k.granularity));
  view.v_scales = v.scales;
}

}  // namespace

const LayerCache& layer_cache(const LayerArguments& arguments, LayerCache& made) {
  if (nb::isinstance<LayerCache>(arguments.k_cache)) {
    require(is_none(arguments.v_cache), "v_cache: given together with a KvCacheView");
    require(is_none(arguments.k_scale) && is_none(arguments.v_scale),
            "k_scale: given together with a KvCacheView, which has its own");
    require(!arguments.packing.has_value(), "kv_packing: given together with a KvCacheView");
    require(!arguments.dtype.has_value(), "kv_dtype: given together with a KvCacheView");
    const auto& layer = *nb::cast<const LayerCache*>(arguments.k_cache);
    require_value_dim(arguments, layer.view.value_dim);
    return layer;
  }
  Array& k = made.arrays[0];
  Array& v = made.arrays[1];
  k = import_array("k_cache", arguments.k_cache);
  if (!is_none(arguments.v_cache)) {
    require(!arguments.packing.has_value(), "kv_packing: given together with v_cache");
    v = import_array("v_cache", arguments.v_cache);
  }
  const AttentionSpec spec = spec_of(arguments, k, v);
  const auto mutable_tensor = [](const Array& array, DType dtype) {
    MutableTensorView tensor;
    tensor.data = array.data;
    tensor.dtype = dtype;
    tensor.rank = array.rank;
    tensor.shape = array.shape;
    tensor.strides = array.strides;
    tensor.device = array.device;
    return tensor;
  };
  const MutableTensorView k_tensor = mutable_tensor(k, spec.kv.dtype);
  MutableTensorView v_tensor;
  if (v.rank != 0) v_tensor = mutable_tensor(v, stored_dtype("v_cache", v, arguments.dtype));
  made.is_ragged = k.rank == 3;
  made.read_only = k.read_only || v.read_only;
  if (made.is_ragged) {
    made.view = view_ragged(spec, k_tensor, v_tensor);
  } else if (arguments.packing.has_value()) {
    made.view = split_kv(spec, arguments.order, *arguments.packing, k_tensor);
  } else {
    made.view = view_kv(spec, arguments.order, k_tensor, v_tensor);
  }
  set_scales(arguments, made);
  return made;
}

void require_writable(const LayerCache& layer) {
  require(!layer.read_only, "k_cache: is read-only");
  require(!layer.is_ragged, "k_cache: K and V without blocks can only be read");
}

}  // namespace quire::python

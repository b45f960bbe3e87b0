// SPDX-License-Identifier: Apache-2.0
#include "call.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "backend_object.h"
#include "fail.h"

namespace quire::python {

BackendPtr resolve_backend(nb::handle backend, Device device) {
  if (nb::isinstance<BackendObject>(backend)) return nb::cast<BackendObject*>(backend)->shared;
  std::string name;
  require(nb::try_cast(backend, name), "backend: needs a name or a quire.Backend");
  return Runtime::instance().backend(name, device);
}

BackendPtr backend_on(const std::string& device, nb::handle backend) {
  Device wanted;
  bool has_index = false;
  if (device != "cpu") {
    wanted.kind = DeviceKind::kCuda;
    const std::string_view name = device;
    has_index = name.starts_with("cuda:");
    const std::string_view digits = has_index ? name.substr(5) : "0";
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), wanted.index);
    const bool is_number = error == std::errc() && end == digits.data() + digits.size();
    require((has_index || name == "cuda") && is_number && wanted.index >= 0,
            "device: needs 'cpu', 'cuda' or 'cuda:1', has '", device, "'");
  }
  BackendPtr found = resolve_backend(backend, wanted);
  const bool fits = device == "cpu" || (found->device.kind == wanted.kind &&
                                        (!has_index || found->device.index == wanted.index));
  require(fits, "device: is '", device, "', but the backend ", found->name, " computes on ",
          device_kind_name(found->device.kind), " ", found->device.index);
  return found;
}

namespace {

Stream stream_of(nb::handle number) {
  std::uintptr_t handle = 0;
  require(nb::try_cast(number, handle), "stream: needs None or the number of one");
  return {reinterpret_cast<void*>(handle)};
}

}  // namespace

Stream resolve_stream(nb::handle stream, const Array& like) {
  return is_none(stream) ? current_stream(like) : stream_of(stream);
}

Stream resolve_stream(nb::handle stream, const SharedBackend& backend) {
  if (!is_none(stream)) return stream_of(stream);
  if (backend.device.is_host()) return {};
  const nb::object module = nb::module_::import_("quire._arrays");
  return stream_of(module.attr("current_stream")(nb::none(), backend.device.index));
}

NewKvArrays new_kv(nb::handle k, nb::handle v) {
  NewKvArrays arrays;
  if (is_none(k)) {
    require(is_none(v), "v: given without k");
    return arrays;
  }
  arrays.k = import_array("k", k);
  require(arrays.k.rank == 3, "k: needs rank 3, has ", arrays.k.rank);
  if (!is_none(v)) {
    arrays.v = import_array("v", v);
    require(arrays.v.rank == 3, "v: needs rank 3, has ", arrays.v.rank);
  }
  return arrays;
}

NewKv NewKvArrays::view() const {
  NewKv views;
  if (k.rank != 0) views.k = tensor_view("k", k);
  if (v.rank != 0) views.v = tensor_view("v", v);
  return views;
}

LayerParams layer_params(const LayerParamArguments& arguments, std::int64_t head_dim) {
  LayerParams result;
  AttentionParams& params = result.params;
  const double default_scale =
      1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(head_dim, 1)));
  params.scale = static_cast<float>(arguments.scale.value_or(default_scale));
  params.softcap = static_cast<float>(arguments.softcap);
  if (!is_none(arguments.alibi_slopes)) {
    result.alibi_slopes = float_array("alibi_slopes", arguments.alibi_slopes);
    params.alibi_slopes = result.alibi_slopes.view;
    require(!params.alibi_slopes.empty(), "alibi_slopes: is empty");
  }
  if (!is_none(arguments.sinks)) {
    result.sinks = float_array("sinks", arguments.sinks);
    params.sinks = result.sinks.view;
    require(!params.sinks.empty(), "sinks: is empty");
  }
  if (!is_none(arguments.bias)) {
    result.bias = import_array("bias", arguments.bias);
    require(result.bias.rank == 4, "bias: needs rank 4, has ", result.bias.rank);
    params.bias = tensor_view("bias", result.bias);
  }
  return result;
}

AttentionOutput Outputs::view() const {
  AttentionOutput views;
  views.out = mutable_view("out", out, element_dtype("out", out));
  if (lse.rank != 0) views.lse = mutable_view("lse", lse, element_dtype("lse", lse));
  return views;
}

nb::object Outputs::result(const Array& like) const {
  nb::object out_object = made_out ? result_of(like, out) : out.source;
  if (lse.rank == 0) return out_object;
  return nb::make_tuple(out_object, made_lse ? result_of(like, lse) : lse.source);
}

Outputs outputs(const OutputArguments& arguments, const Array& like) {
  Outputs made;
  if (is_none(arguments.out)) {
    made.out = empty_array(like, {arguments.num_rows, arguments.num_heads, arguments.value_dim},
                           arguments.dtype);
    made.made_out = true;
  } else {
    made.out = import_array("out", arguments.out);
    require(made.out.rank == 3, "out: needs rank 3, has ", made.out.rank);
  }
  if (!is_none(arguments.lse)) {
    made.lse = import_array("lse", arguments.lse);
    require(made.lse.rank == 2, "lse: needs rank 2, has ", made.lse.rank);
  } else if (arguments.return_lse) {
    made.lse = empty_array(like, {arguments.num_rows, arguments.num_heads}, DType::kF32);
    made.made_lse = true;
  }
  return made;
}

}  // namespace quire::python

// SPDX-License-Identifier: Apache-2.0
// attend, append and merge of the module. quire/attention.py gives them their Python signatures.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "bindings.h"
#include "call.h"
#include "fail.h"
#include "names.h"

namespace quire::python {
namespace {

// How the arrays of a cache are to be read.
LayerArguments layer_arguments(nb::handle k_cache, nb::handle v_cache, nb::handle k_scale,
                               nb::handle v_scale, const std::string& order,
                               const std::optional<std::string>& packing,
                               const std::optional<std::string>& dtype, std::int64_t value_dim) {
  LayerArguments arguments;
  arguments.k_cache = k_cache;
  arguments.v_cache = v_cache;
  arguments.k_scale = k_scale;
  arguments.v_scale = v_scale;
  arguments.order = parse_order(order);
  if (packing.has_value()) arguments.packing = parse_packing(*packing);
  if (dtype.has_value()) arguments.dtype = parse_dtype(*dtype);
  arguments.value_dim = value_dim;
  return arguments;
}

int int_extent(const char* name, std::int64_t value) {
  require(std::in_range<int>(value), name, ": too long an axis: ", value);
  return static_cast<int>(value);
}

struct MaskArguments {
  bool causal;
  std::int64_t window_left;
  std::int64_t window_right;
  std::int64_t chunk;
  std::string alignment;
};

// What a call of attend() says about the layer.
AttentionSpec call_spec(const Array& q, const LayerCache& layer, const MaskArguments& mask,
                        const LayerParams& layer_params) {
  const KvCacheView& view = layer.view;
  AttentionSpec spec;
  spec.num_q_heads = int_extent("q", q.shape[1]);
  spec.head_dim = int_extent("q", q.shape[2]);
  require(spec.head_dim == view.head_dim, "q: has dim ", spec.head_dim, ", K has ", view.head_dim);
  spec.num_kv_heads = view.num_kv_heads;
  spec.value_dim = view.value_dim;
  spec.kv = view.format;
  spec.alignment = parse_alignment(mask.alignment);
  spec.mask = {.causal = mask.causal,
               .window_left = mask.window_left,
               .window_right = mask.window_right,
               .chunk = mask.chunk};
  const AttentionParams& params = layer_params.params;
  spec.features.softcap = params.softcap != 0;
  spec.features.alibi = !params.alibi_slopes.empty();
  spec.features.sinks = !params.sinks.empty();
  spec.features.bias = params.bias.present();
  return spec;
}

DType output_dtype(DType q_dtype, nb::handle out, const std::optional<std::string>& name) {
  if (!is_none(out)) return element_dtype("out", import_array("out", out));
  return name.has_value() ? parse_dtype(*name) : q_dtype;
}

// Blocks are named where the cache has them, and only there.
void require_table(const BatchArrays& arrays, const LayerCache& layer, nb::handle kv_begins) {
  if (arrays.is_ragged() == layer.is_ragged) return;
  require(is_none(kv_begins), "kv_begins: a cache of blocks needs block_table instead");
  fail(ErrorCode::kInvalidArgument, "block_table: ",
       layer.is_ragged ? "given, but K and V have no blocks" : "missing, the cache has blocks");
}

nb::object attend(nb::handle q_object, nb::handle k_cache, nb::handle v_cache,
                  nb::handle query_begins, nb::handle kv_lens, nb::handle block_table,
                  nb::handle kv_begins, nb::handle k, nb::handle v, nb::handle slots,
                  std::optional<double> scale, double softcap, nb::handle alibi_slopes,
                  nb::handle sinks, nb::handle bias, nb::handle tree_mask, bool causal,
                  std::int64_t window_left, std::int64_t window_right, std::int64_t chunk,
                  const std::string& alignment, nb::handle k_scale, nb::handle v_scale,
                  const std::string& kv_order, const std::optional<std::string>& kv_packing,
                  const std::optional<std::string>& kv_dtype, std::int64_t value_dim,
                  nb::handle out, nb::handle lse, const std::optional<std::string>& out_dtype,
                  bool return_lse, nb::handle backend_object, nb::handle stream_object) {
  const Array q = import_array("q", q_object);
  require(q.rank == 3, "q: needs rank 3, has ", q.rank);
  require_no_gradient("q", q);
  LayerArguments layer_from = layer_arguments(k_cache, v_cache, k_scale, v_scale, kv_order,
                                              kv_packing, kv_dtype, value_dim);
  layer_from.head_dim = q.shape[2];
  LayerCache made;
  const LayerCache& layer = layer_cache(layer_from, made);
  const LayerParams params = layer_params({scale, softcap, alibi_slopes, sinks, bias}, q.shape[2]);
  const NewKvArrays stored = new_kv(k, v);
  require(stored.k.rank != 0 || is_none(slots), "slots: given without k");
  require(stored.k.rank == 0 || !is_none(slots), "slots: missing, k is given");
  if (stored.k.rank != 0) require_writable(layer);

  AttentionSpec spec =
      call_spec(q, layer, {causal, window_left, window_right, chunk, alignment}, params);
  spec.q_dtype = element_dtype("q", q);
  spec.out_dtype = output_dtype(spec.q_dtype, out, out_dtype);
  spec.features.lse = return_lse || !is_none(lse);
  BatchArrays arrays(
      {query_begins, kv_lens, block_table, slots, kv_begins, tree_mask, spec.kv.block_size});
  require_table(arrays, layer, kv_begins);
  spec.features.tree_mask = arrays.has_tree_mask();
  validate(spec);

  const BackendPtr backend = resolve_backend(backend_object, q.device);
  const Outputs made_outputs = outputs({.out = out,
                                        .lse = lse,
                                        .return_lse = return_lse,
                                        .num_rows = q.shape[0],
                                        .num_heads = q.shape[1],
                                        .value_dim = spec.value_dim,
                                        .dtype = spec.out_dtype},
                                       q);
  const AttentionOutput output = made_outputs.view();
  const TensorView q_view = tensor_view(q, spec.q_dtype);
  const BatchBounds bounds = arrays.bounds(q.shape[0], layer.view.num_blocks, spec.kv.block_size);
  const Lease state(backend, spec, bounds, arrays.on_device(), resolve_stream(stream_object, q));
  state->set_batch(std::move(arrays));
  const KvSource source(layer.view, stored.view());
  {
    const nb::gil_scoped_release release;
    state->prepare();
    backend->backend->attend(*state->prepared, params.params, q_view, source, output,
                             state->stream);
  }
  return made_outputs.result(q);
}

void append(nb::handle k, nb::handle v, nb::handle k_cache, nb::handle v_cache, nb::handle slots,
            nb::handle k_scale, nb::handle v_scale, const std::string& kv_order,
            const std::optional<std::string>& kv_packing,
            const std::optional<std::string>& kv_dtype, nb::handle backend_object,
            nb::handle stream_object) {
  const NewKvArrays stored = new_kv(k, v);
  require(stored.k.rank == 3, "k: missing");
  const NewKv rows = stored.view();
  LayerArguments layer_from =
      layer_arguments(k_cache, v_cache, k_scale, v_scale, kv_order, kv_packing, kv_dtype, 0);
  layer_from.head_dim = stored.k.shape[2];
  LayerCache made;
  const LayerCache& layer = layer_cache(layer_from, made);
  require_writable(layer);
  AttentionSpec spec;
  spec.num_q_heads = spec.num_kv_heads = layer.view.num_kv_heads;
  spec.head_dim = layer.view.head_dim;
  spec.value_dim = layer.view.value_dim;
  spec.kv = layer.view.format;
  validate(spec);
  BatchArrays arrays = BatchArrays::only_slots(slots);
  const BatchBounds bounds = arrays.bounds(stored.k.shape[0], 0, spec.kv.block_size);
  const BackendPtr backend = resolve_backend(backend_object, stored.k.device);
  const Lease state(backend, spec, bounds, false, resolve_stream(stream_object, stored.k));
  state->set_batch(std::move(arrays));
  const nb::gil_scoped_release release;
  state->prepare();
  backend->backend->append(*state->prepared, rows, layer.view, state->stream);
}

nb::object merge(nb::handle outs, nb::handle lses, nb::handle sinks_object, nb::handle out,
                 nb::handle lse, const std::optional<std::string>& out_dtype, bool return_lse,
                 nb::handle backend_object, nb::handle stream_object) {
  std::vector<Array> arrays;
  std::vector<Partial> partials;
  const nb::object out_list = nb::steal(PySequence_Tuple(outs.ptr()));
  const nb::object lse_list = nb::steal(PySequence_Tuple(lses.ptr()));
  if (!out_list.is_valid() || !lse_list.is_valid()) {
    PyErr_Clear();
    fail(ErrorCode::kInvalidArgument, "outs: needs sequences of arrays");
  }
  const std::size_t count = nb::len(out_list);
  require(count > 0, "outs: is empty");
  require(nb::len(lse_list) == count, "lses: needs ", count, " arrays, has ", nb::len(lse_list));
  for (std::size_t i = 0; i < count; ++i) {
    const std::string out_name = text("outs[", i, "]");
    const std::string lse_name = text("lses[", i, "]");
    arrays.push_back(import_array(out_name.c_str(), out_list[i]));
    const TensorView out_view = tensor_view(out_name.c_str(), arrays.back());
    require(out_view.rank == 3, out_name, ": needs rank 3, has ", out_view.rank);
    arrays.push_back(import_array(lse_name.c_str(), lse_list[i]));
    partials.push_back({out_view, tensor_view(lse_name.c_str(), arrays.back())});
  }
  const Array& first = arrays.front();
  FloatArray sinks;
  if (!is_none(sinks_object)) sinks = float_array("sinks", sinks_object);
  const BackendPtr backend = resolve_backend(backend_object, first.device);
  const DType dtype = output_dtype(partials[0].out.dtype, out, out_dtype);
  const Outputs made = outputs({.out = out,
                                .lse = lse,
                                .return_lse = return_lse,
                                .num_rows = first.shape[0],
                                .num_heads = first.shape[1],
                                .value_dim = first.shape[2],
                                .dtype = dtype},
                               first);
  const AttentionOutput output = made.view();
  const Stream stream = resolve_stream(stream_object, first);
  {
    const nb::gil_scoped_release release;
    backend->backend->merge(partials, sinks.view, output, stream);
  }
  return made.result(first);
}

}  // namespace

void bind_calls(nb::module_& module) {
  module.def("attend", &attend, nb::arg("q").none(), nb::arg("k_cache").none(),
             nb::arg("v_cache").none(), nb::arg("query_begins").none(), nb::arg("kv_lens").none(),
             nb::arg("block_table").none(), nb::arg("kv_begins").none(), nb::arg("k").none(),
             nb::arg("v").none(), nb::arg("slots").none(), nb::arg("scale").none(),
             nb::arg("softcap").none(), nb::arg("alibi_slopes").none(), nb::arg("sinks").none(),
             nb::arg("bias").none(), nb::arg("tree_mask").none(), nb::arg("causal").none(),
             nb::arg("window_left").none(), nb::arg("window_right").none(), nb::arg("chunk").none(),
             nb::arg("alignment").none(), nb::arg("k_scale").none(), nb::arg("v_scale").none(),
             nb::arg("kv_order").none(), nb::arg("kv_packing").none(), nb::arg("kv_dtype").none(),
             nb::arg("value_dim").none(), nb::arg("out").none(), nb::arg("lse").none(),
             nb::arg("out_dtype").none(), nb::arg("return_lse").none(), nb::arg("backend").none(),
             nb::arg("stream").none());
  module.def("append", &append, nb::arg("k").none(), nb::arg("v").none(), nb::arg("k_cache").none(),
             nb::arg("v_cache").none(), nb::arg("slots").none(), nb::arg("k_scale").none(),
             nb::arg("v_scale").none(), nb::arg("kv_order").none(), nb::arg("kv_packing").none(),
             nb::arg("kv_dtype").none(), nb::arg("backend").none(), nb::arg("stream").none());
  module.def("merge", &merge, nb::arg("outs").none(), nb::arg("lses").none(),
             nb::arg("sinks").none(), nb::arg("out").none(), nb::arg("lse").none(),
             nb::arg("out_dtype").none(), nb::arg("return_lse").none(), nb::arg("backend").none(),
             nb::arg("stream").none());
}

}  // namespace quire::python

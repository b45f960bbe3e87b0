// SPDX-License-Identifier: Apache-2.0
// AttentionSpec and BatchBounds: the fields of C++, the nested ones flattened.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "bindings.h"
#include "names.h"
#include "quire/attention_spec.h"
#include "quire/batch.h"

namespace quire::python {
namespace {

// Copies and pickles are made of the properties in `names`, which can all be set.
template <class Class>
void add_state(nb::class_<Class>& type, const std::vector<const char*>& names) {
  const auto copy = [](const Class& self) { return Class(self); };
  type.def("copy", copy)
      .def("__copy__", copy)
      .def("__deepcopy__", [](const Class& self, nb::handle) { return Class(self); })
      .def("__getstate__",
           [names](nb::handle self) {
             nb::dict state;
             for (const char* name : names) state[name] = self.attr(name);
             return state;
           })
      .def("__setstate__", [](Class& self, const nb::dict& state) {
        const nb::object made = nb::cast(Class());
        for (const auto [name, value] : state) nb::setattr(made, name, value);
        new (&self) Class(nb::cast<const Class&>(made));
      });
}

// A property over a field of the object or of a part of it.
template <class Class, class Field>
void add_field(nb::class_<Class>& type, const char* name, Field field, const char* doc) {
  using T = std::remove_reference_t<std::invoke_result_t<Field, Class&>>;
  type.def_prop_rw(
      name, [field](Class& self) { return field(self); },
      [field](Class& self, T value) { field(self) = value; }, doc);
}

void init_spec(AttentionSpec* self, int num_q_heads, int num_kv_heads, int head_dim,
               std::optional<int> value_dim, const std::string& q_dtype,
               const std::optional<std::string>& out_dtype,
               const std::optional<std::string>& kv_dtype, int block_size,
               const std::string& scales, bool v_in_k, const std::string& layout,
               const std::string& alignment, bool causal, std::int64_t window_left,
               std::int64_t window_right, std::int64_t chunk, bool softcap, bool alibi, bool sinks,
               bool bias, bool tree_mask, bool lse) {
  AttentionSpec spec;
  spec.num_q_heads = num_q_heads;
  spec.num_kv_heads = num_kv_heads;
  spec.head_dim = head_dim;
  spec.value_dim = value_dim.value_or(head_dim);
  spec.q_dtype = parse_dtype(q_dtype);
  spec.out_dtype = out_dtype.has_value() ? parse_dtype(*out_dtype) : spec.q_dtype;
  spec.kv.dtype = kv_dtype.has_value() ? parse_dtype(*kv_dtype) : spec.q_dtype;
  spec.kv.block_size = block_size;
  spec.kv.scales = parse_scales(scales);
  spec.kv.v_in_k = v_in_k;
  spec.kv.layout = parse_layout(layout);
  spec.alignment = parse_alignment(alignment);
  spec.mask = {
      .causal = causal, .window_left = window_left, .window_right = window_right, .chunk = chunk};
  spec.features = {.softcap = softcap,
                   .alibi = alibi,
                   .sinks = sinks,
                   .bias = bias,
                   .tree_mask = tree_mask,
                   .lse = lse};
  validate(spec);
  new (self) AttentionSpec(spec);
}

void add_numbers(nb::class_<AttentionSpec>& type) {
  add_field(
      type, "num_q_heads", [](AttentionSpec & self) -> auto& { return self.num_q_heads; },
      "heads of Q and the output");
  add_field(
      type, "num_kv_heads", [](AttentionSpec & self) -> auto& { return self.num_kv_heads; },
      "divides num_q_heads");
  add_field(
      type, "head_dim", [](AttentionSpec & self) -> auto& { return self.head_dim; }, "of Q and K");
  add_field(
      type, "value_dim", [](AttentionSpec & self) -> auto& { return self.value_dim; },
      "of V and the output");
  add_field(
      type, "block_size", [](AttentionSpec & self) -> auto& { return self.kv.block_size; },
      "tokens per block");
  add_field(
      type, "v_in_k", [](AttentionSpec & self) -> auto& { return self.kv.v_in_k; },
      "V is the first value_dim elements of K");
  add_field(
      type, "causal", [](AttentionSpec & self) -> auto& { return self.mask.causal; },
      "key_pos <= query_pos");
  add_field(
      type, "window_left", [](AttentionSpec & self) -> auto& { return self.mask.window_left; },
      "key_pos >= query_pos - window_left; -1: unlimited");
  add_field(
      type, "window_right", [](AttentionSpec & self) -> auto& { return self.mask.window_right; },
      "key_pos <= query_pos + window_right; -1: unlimited");
  add_field(
      type, "chunk", [](AttentionSpec & self) -> auto& { return self.mask.chunk; },
      "key_pos // chunk == query_pos // chunk; 0: off");
  add_field(
      type, "softcap", [](AttentionSpec & self) -> auto& { return self.features.softcap; },
      "calls may use softcap");
  add_field(
      type, "alibi", [](AttentionSpec & self) -> auto& { return self.features.alibi; },
      "calls may use alibi_slopes");
  add_field(
      type, "sinks", [](AttentionSpec & self) -> auto& { return self.features.sinks; },
      "calls may use sinks");
  add_field(
      type, "bias", [](AttentionSpec & self) -> auto& { return self.features.bias; },
      "calls may use bias");
  add_field(
      type, "tree_mask", [](AttentionSpec & self) -> auto& { return self.features.tree_mask; },
      "batches may have tree masks");
  add_field(
      type, "lse", [](AttentionSpec & self) -> auto& { return self.features.lse; },
      "calls may return lse");
}

void add_names(nb::class_<AttentionSpec>& type) {
  type.def_prop_rw(
      "q_dtype", [](const AttentionSpec& self) { return dtype_name(self.q_dtype); },
      [](AttentionSpec& self, const std::string& name) { self.q_dtype = parse_dtype(name); },
      "'f32', 'f16' or 'bf16'");
  type.def_prop_rw(
      "out_dtype", [](const AttentionSpec& self) { return dtype_name(self.out_dtype); },
      [](AttentionSpec& self, const std::string& name) { self.out_dtype = parse_dtype(name); },
      "q_dtype, or 'f32' for partial results");
  type.def_prop_rw(
      "kv_dtype", [](const AttentionSpec& self) { return dtype_name(self.kv.dtype); },
      [](AttentionSpec& self, const std::string& name) { self.kv.dtype = parse_dtype(name); },
      "of the cache: those of Q, or 'f8e4m3', 'f8e5m2', 'i8'");
  type.def_prop_rw(
      "scales", [](const AttentionSpec& self) { return scales_name(self.kv.scales); },
      [](AttentionSpec& self, const std::string& name) { self.kv.scales = parse_scales(name); },
      "'none', 'per_tensor', 'per_head' or 'per_token_head'");
  type.def_prop_rw(
      "layout", [](const AttentionSpec& self) { return layout_name(self.kv.layout); },
      [](AttentionSpec& self, const std::string& name) { self.kv.layout = parse_layout(name); },
      "'plain', 'pair_tiled', or 'private_N' of a backend");
  type.def_prop_rw(
      "alignment", [](const AttentionSpec& self) { return alignment_name(self.alignment); },
      [](AttentionSpec& self, const std::string& name) { self.alignment = parse_alignment(name); },
      "'aligned' (self-attention) or 'unaligned' (cross-attention)");
}

}  // namespace

void bind_spec(nb::module_& module) {
  nb::class_<AttentionSpec> spec(module, "AttentionSpec",
                                 "What attention means for one group of layers.\n\n"
                                 "Layers with equal specs share one PreparedBatch. Dtypes are "
                                 "named 'f32', 'f16', 'bf16', 'f8e4m3', 'f8e5m2', 'i8'.");
  spec.def("__init__", &init_spec, nb::arg("num_q_heads"), nb::arg("num_kv_heads"),
           nb::arg("head_dim"), nb::kw_only(), nb::arg("value_dim") = nb::none(),
           nb::arg("q_dtype") = "bf16", nb::arg("out_dtype") = nb::none(),
           nb::arg("kv_dtype") = nb::none(), nb::arg("block_size") = 16, nb::arg("scales") = "none",
           nb::arg("v_in_k") = false, nb::arg("layout") = "plain", nb::arg("alignment") = "aligned",
           nb::arg("causal") = true, nb::arg("window_left") = -1, nb::arg("window_right") = -1,
           nb::arg("chunk") = 0, nb::arg("softcap") = false, nb::arg("alibi") = false,
           nb::arg("sinks") = false, nb::arg("bias") = false, nb::arg("tree_mask") = false,
           nb::arg("lse") = false);
  add_numbers(spec);
  add_names(spec);
  spec.def(
      "validate", [](const AttentionSpec& self) { validate(self); },
      "Raises Error naming the field that contradicts another.");
  add_state(spec,
            {"num_q_heads", "num_kv_heads", "head_dim",     "value_dim", "q_dtype", "out_dtype",
             "kv_dtype",    "block_size",   "scales",       "v_in_k",    "layout",  "alignment",
             "causal",      "window_left",  "window_right", "chunk",     "softcap", "alibi",
             "sinks",       "bias",         "tree_mask",    "lse"});
  spec.def("__str__", [](const AttentionSpec& self) { return to_string(self); });
  spec.def("__repr__", [](const AttentionSpec& self) {
    return "<quire.AttentionSpec " + to_string(self) + ">";
  });
  spec.def("__eq__", [](const AttentionSpec& self, nb::handle other) {
    const AttentionSpec* that = nullptr;
    return nb::try_cast(other, that) && that != nullptr && self == *that;
  });

  nb::class_<BatchBounds> bounds(module, "BatchBounds", "What a prepared batch may hold at most.");
  bounds.def(
      "__init__",
      [](BatchBounds* self, std::int64_t max_sequences, std::int64_t max_tokens,
         std::int64_t max_kv_len, std::int64_t max_total_kv_len, std::int64_t max_q_len) {
        new (self) BatchBounds{max_sequences, max_tokens, max_kv_len, max_total_kv_len, max_q_len};
      },
      nb::arg("max_sequences"), nb::arg("max_tokens"), nb::arg("max_kv_len"),
      nb::arg("max_total_kv_len"), nb::arg("max_q_len") = 0);
  add_field(
      bounds, "max_sequences", [](BatchBounds & self) -> auto& { return self.max_sequences; },
      "sequences");
  add_field(
      bounds, "max_tokens", [](BatchBounds & self) -> auto& { return self.max_tokens; },
      "rows of Q, and of new K and V");
  add_field(
      bounds, "max_kv_len", [](BatchBounds & self) -> auto& { return self.max_kv_len; },
      "keys of one sequence");
  add_field(
      bounds, "max_total_kv_len", [](BatchBounds & self) -> auto& { return self.max_total_kv_len; },
      "keys of all sequences");
  add_field(
      bounds, "max_q_len", [](BatchBounds & self) -> auto& { return self.max_q_len; },
      "queries of one; 0: max_tokens");
  add_state(bounds, {"max_sequences", "max_tokens", "max_kv_len", "max_total_kv_len", "max_q_len"});
}

}  // namespace quire::python

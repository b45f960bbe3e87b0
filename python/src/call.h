// SPDX-License-Identifier: Apache-2.0
// What the calls of the module and those of a PreparedBatch have in common.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "array.h"
#include "kv_view.h"
#include "quire/backend.h"
#include "runtime.h"

namespace quire::python {

inline bool is_none(nb::handle source) {
  return !source.is_valid() || source.is_none();
}

// A Backend, or the name of one.
BackendPtr resolve_backend(nb::handle backend, Device device);

// The same, for what is made on a device that the caller names: "cpu", "cuda" or "cuda:1". A
// backend that computes elsewhere than on the device named is an Error.
BackendPtr backend_on(const std::string& device, nb::handle backend);

// A number, or None: the current one of the library that `like` is from.
Stream resolve_stream(nb::handle stream, const Array& like);
// The same where there is no array: the current one of PyTorch, if it is in use.
Stream resolve_stream(nb::handle stream, const SharedBackend& backend);

// K and V to be stored; V absent where K holds it.
struct NewKvArrays {
  Array k;
  Array v;
  NewKv view() const;
};
NewKvArrays new_kv(nb::handle k, nb::handle v);

// The values of a layer, with the arrays behind them.
struct LayerParams {
  FloatArray alibi_slopes;
  FloatArray sinks;
  Array bias;
  AttentionParams params;
};
struct LayerParamArguments {
  std::optional<double> scale;  // none: 1 / sqrt(head_dim)
  double softcap = 0;
  nb::handle alibi_slopes;
  nb::handle sinks;
  nb::handle bias;
};
LayerParams layer_params(const LayerParamArguments& arguments, std::int64_t head_dim);

// out and lse of a call: those that the caller brings, or new ones of the library of `like`.
struct Outputs {
  Array out;
  Array lse;  // rank 0: none
  bool made_out = false;
  bool made_lse = false;

  AttentionOutput view() const;
  // out, or (out, lse). When they have been written: some libraries take a copy.
  nb::object result(const Array& like) const;
};
struct OutputArguments {
  nb::handle out;
  nb::handle lse;
  bool return_lse = false;
  std::int64_t num_rows = 0;
  std::int64_t num_heads = 0;
  std::int64_t value_dim = 0;
  DType dtype = DType::kF32;
};
Outputs outputs(const OutputArguments& arguments, const Array& like);

}  // namespace quire::python

// SPDX-License-Identifier: Apache-2.0
// BatchView and PreparedBatch: one batch, prepared once, for many layers.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "backend_object.h"
#include "batch_object.h"
#include "bindings.h"
#include "call.h"
#include "fail.h"
#include "numpy_output.h"

namespace quire::python {
namespace {

constexpr std::int64_t kAnyRows = std::numeric_limits<std::int32_t>::max();

class PreparedObject {
 public:
  PreparedObject(const AttentionSpec& spec, std::optional<BatchBounds> bounds, BackendPtr backend)
      : backend_(std::move(backend)), spec_(spec) {
    if (bounds.has_value()) {
      is_fixed_ = true;
      state_ = std::make_unique<PreparedState>(backend_, spec_, *bounds, Stream{});
    }
  }

  // Without fixed bounds memory grows as batches do.
  void prepare(const BatchObject& batch, Stream stream) {
    const Busy busy(*this);
    require(is_fixed_ || !batch.arrays.on_device(),
            "bounds: PreparedBatch needs them for a batch on a device, whose lengths only that "
            "knows");
    const BatchBounds bounds = batch.arrays.bounds(-1, kAnyRows, spec_.kv.block_size);
    if (!is_fixed_ && (state_ == nullptr || !holds(state_->bounds, bounds))) {
      BatchBounds wanted = rounded_up(bounds, false);
      if (state_ != nullptr) wanted = larger(wanted, state_->bounds);
      state_.reset();
      state_ = std::make_unique<PreparedState>(backend_, spec_, wanted, stream);
    }
    state_->stream = stream;
    state_->set_batch(BatchArrays(batch.arrays));
    const nb::gil_scoped_release release;
    state_->prepare();
  }

  void append(nb::handle k, nb::handle v, const LayerCache& cache, nb::handle stream_object) {
    const Busy busy(*this);
    require_state();
    require_writable(cache);
    const NewKvArrays stored = new_kv(k, v);
    require(stored.k.rank != 0, "k: missing");
    const NewKv rows = stored.view();
    const Stream stream = resolve_stream(stream_object, stored.k);
    const nb::gil_scoped_release release;
    backend_->backend->append(*state_->prepared, rows, cache.view, stream);
  }

  nb::object attend(nb::handle q_object, const LayerCache& cache, nb::handle k, nb::handle v,
                    const LayerParamArguments& param_arguments, OutputArguments output_arguments,
                    nb::handle stream_object) {
    const Busy busy(*this);
    require_state();
    const Array q = import_array("q", q_object);
    require(q.rank == 3, "q: needs rank 3, has ", q.rank);
    require_no_gradient("q", q);
    const TensorView q_view = tensor_view("q", q);
    const NewKvArrays stored = new_kv(k, v);
    if (stored.k.rank != 0) require_writable(cache);
    const LayerParams params = layer_params(param_arguments, spec_.head_dim);
    output_arguments.num_rows = q.shape[0];
    output_arguments.num_heads = spec_.num_q_heads;
    output_arguments.value_dim = spec_.value_dim;
    output_arguments.dtype = spec_.out_dtype;
    const Outputs made = outputs(output_arguments, q);
    const AttentionOutput output = made.view();
    const KvSource source(cache.view, stored.view());
    const Stream stream = resolve_stream(stream_object, q);
    {
      const nb::gil_scoped_release release;
      backend_->backend->attend(*state_->prepared, params.params, q_view, source, output, stream);
    }
    return made.result(q);
  }

  // The first error of asynchronous work; nothing on the host.
  void poll() {
    const Busy busy(*this);
    if (state_ == nullptr) return;
    const Status status = backend_->backend->poll(*state_->prepared);
    if (!status.ok()) throw Error(status.code, status.message);
  }

  const AttentionSpec& spec() const noexcept { return spec_; }
  const SharedBackend& backend() const noexcept { return *backend_; }
  std::optional<BatchBounds> bounds() const {
    return state_ != nullptr ? std::optional(state_->bounds) : std::nullopt;
  }
  std::int64_t workspace_bytes() const {
    if (state_ == nullptr) return 0;
    const WorkspaceSize size = state_->workspace->view().size;
    return size.host_bytes + size.device_bytes;
  }

 private:
  // One thread at a time.
  class Busy {
   public:
    explicit Busy(PreparedObject& object) : flag_(object.is_busy_) {
      require(!flag_.exchange(true), "PreparedBatch: in use by another thread");
    }
    ~Busy() { flag_ = false; }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

   private:
    std::atomic<bool>& flag_;
  };

  static BatchBounds larger(const BatchBounds& x, const BatchBounds& y) {
    return {std::max(x.max_sequences, y.max_sequences), std::max(x.max_tokens, y.max_tokens),
            std::max(x.max_kv_len, y.max_kv_len), std::max(x.max_total_kv_len, y.max_total_kv_len),
            std::max(x.max_q_len, y.max_q_len)};
  }

  void require_state() const {
    require(state_ != nullptr, "PreparedBatch: prepare was not called");
  }

  BackendPtr backend_;
  AttentionSpec spec_;
  bool is_fixed_ = false;
  std::unique_ptr<PreparedState> state_;
  std::atomic<bool> is_busy_ = false;
};

template <class Get>
auto numbers_of(Get get) {
  return [get](const BatchObject& self) {
    const auto view = get(self.arrays.view());
    require(view.device.is_host(), "BatchView: its arrays are on a device");
    return to_numpy(view);
  };
}

void bind_batch(nb::module_& module) {
  nb::class_<BatchObject>(
      module, "BatchView",
      "One ragged batch: which rows of Q belong to which sequence, and where its keys lie.\n\n"
      "query_begins: [num_sequences + 1] offsets into the rows of Q, or a pair (begins, ends).\n"
      "kv_lens:      [num_sequences] keys of each, new tokens included.\n"
      "block_table:  [num_sequences, max_blocks], or a pair (begins, indices); None: K and V have\n"
      "              no blocks, and sequence s begins at row kv_begins[s] of them.\n"
      "slots:        [num_new_kv_tokens] block * block_size + offset of new K and V; -1: not "
      "stored.\n"
      "tree_mask:    (bits, begins[, depths]), see pack_tree_mask.\n"
      "Arrays on the host are copied.")
      .def(
          "__init__",
          [](BatchObject* self, nb::handle query_begins, nb::handle kv_lens, nb::handle block_table,
             nb::handle slots, nb::handle kv_begins, nb::handle tree_mask, int block_size) {
            require(block_size >= 1, "block_size: not positive: ", block_size);
            new (self) BatchObject{BatchArrays(
                {query_begins, kv_lens, block_table, slots, kv_begins, tree_mask, block_size})};
          },
          nb::arg("query_begins"), nb::arg("kv_lens"), nb::arg("block_table") = nb::none(),
          nb::kw_only(), nb::arg("slots") = nb::none(), nb::arg("kv_begins") = nb::none(),
          nb::arg("tree_mask") = nb::none(), nb::arg("block_size") = 1)
      .def_prop_ro("num_sequences",
                   [](const BatchObject& self) { return self.arrays.num_sequences(); })
      .def_prop_ro("query_begins",
                   numbers_of([](const BatchView& view) { return view.queries.begins; }))
      .def_prop_ro("query_ends",
                   numbers_of([](const BatchView& view) { return view.queries.ends; }))
      .def_prop_ro("kv_lens", numbers_of([](const BatchView& view) { return view.kv.lens; }))
      .def_prop_ro("slots", numbers_of([](const BatchView& view) { return view.kv.slots; }))
      .def_prop_ro("table_begins",
                   numbers_of([](const BatchView& view) { return view.kv.blocks.begins; }))
      .def_prop_ro("table_indices",
                   numbers_of([](const BatchView& view) { return view.kv.blocks.indices; }));
}

}  // namespace

void bind_prepared(nb::module_& module) {
  bind_batch(module);
  nb::class_<PreparedObject>(
      module, "PreparedBatch",
      "A batch, validated and planned once per step, for all layers of one spec.\n\n"
      "bounds: None: memory grows with the batches; given: made once, larger batches are refused.\n"
      "Batches on a device need them: of those q, out and lse have max_tokens rows.\n"
      "One thread at a time.")
      .def(
          "__init__",
          [](PreparedObject* self, const AttentionSpec& spec, std::optional<BatchBounds> bounds,
             nb::handle backend, const std::string& device) {
            new (self) PreparedObject(spec, bounds, backend_on(device, backend));
          },
          nb::arg("spec"), nb::arg("bounds") = nb::none(), nb::kw_only(),
          nb::arg("backend") = "auto", nb::arg("device") = "cpu")
      .def(
          "prepare",
          [](PreparedObject& self, const BatchObject& batch, nb::handle stream) {
            self.prepare(batch, resolve_stream(stream, self.backend()));
          },
          nb::arg("batch"), nb::kw_only(), nb::arg("stream") = nb::none(),
          "Validates and plans a BatchView; the calls below then work on it.")
      .def("append", &PreparedObject::append, nb::arg("k"), nb::arg("v").none(), nb::arg("cache"),
           nb::kw_only(), nb::arg("stream") = nb::none(),
           "Stores K [num_new_kv_tokens, num_kv_heads, head_dim] and V at the slots of the batch.")
      .def(
          "attend",
          [](PreparedObject& self, nb::handle q, const LayerCache& cache, nb::handle k,
             nb::handle v, std::optional<double> scale, double softcap, nb::handle alibi_slopes,
             nb::handle sinks, nb::handle bias, nb::handle out, nb::handle lse, bool return_lse,
             nb::handle stream) {
            return self.attend(q, cache, k, v, {scale, softcap, alibi_slopes, sinks, bias},
                               {.out = out, .lse = lse, .return_lse = return_lse}, stream);
          },
          nb::arg("q"), nb::arg("cache"), nb::kw_only(), nb::arg("k") = nb::none(),
          nb::arg("v") = nb::none(), nb::arg("scale") = nb::none(), nb::arg("softcap") = 0.0,
          nb::arg("alibi_slopes") = nb::none(), nb::arg("sinks") = nb::none(),
          nb::arg("bias") = nb::none(), nb::arg("out") = nb::none(), nb::arg("lse") = nb::none(),
          nb::arg("return_lse") = false, nb::arg("stream") = nb::none(),
          "Attention of one layer, as quire.attend. With k and v it stores them first.")
      .def("poll", &PreparedObject::poll, "Raises the first error of work on a device, if any.")
      .def_prop_ro("spec", [](const PreparedObject& self) { return AttentionSpec(self.spec()); })
      .def_prop_ro("bounds", &PreparedObject::bounds, "None before the first prepare.")
      .def_prop_ro("workspace_bytes", &PreparedObject::workspace_bytes);
}

}  // namespace quire::python

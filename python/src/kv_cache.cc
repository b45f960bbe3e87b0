// SPDX-License-Identifier: Apache-2.0
// KvCache and KvCacheView.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "array.h"
#include "bindings.h"
#include "call.h"
#include "fail.h"
#include "kv_view.h"
#include "names.h"

namespace quire::python {
namespace {

using StoragePtr = std::shared_ptr<CacheStorage>;

KvLayout layout_of(AttentionBackend& backend, const AttentionSpec& spec,
                   const std::string& layout) {
  if (layout == "preferred") return backend.preferred_layout(spec);
  const KvLayoutId id = parse_layout(layout);
  if (id == KvLayoutId::kPlain) return plain_layout(spec);
  if (id == KvLayoutId::kPairTiled) return pair_tiled_layout(spec);
  const KvLayout preferred = backend.preferred_layout(spec);
  require(preferred.id == id, "layout: '", layout, "' is not one of this backend");
  return preferred;
}

StoragePtr make_cache(const AttentionSpec& spec, std::int64_t num_blocks, int num_layers,
                      nb::handle backend_object, const std::string& layout, bool on_host,
                      bool huge_pages, const std::string& device) {
  validate(spec);
  require(num_blocks >= 0, "num_blocks: negative: ", num_blocks);
  require(num_layers >= 1, "num_layers: not positive: ", num_layers);
  const BackendPtr backend = backend_on(device, backend_object);
  AttentionSpec stored = spec;
  const KvLayout chosen = layout_of(*backend->backend, spec, layout);
  stored.kv.layout = chosen.id;
  return std::make_shared<CacheStorage>(
      CacheStorage{backend, stored,
                   KvCache(backend->backend->memory(), stored, chosen,
                           {.num_layers = num_layers,
                            .num_blocks = num_blocks,
                            .pages = huge_pages ? PageHint::kHuge : PageHint::kDefault,
                            .on_host = on_host}),
                   on_host});
}

LayerCache make_layer(const StoragePtr& self, int index) {
  LayerCache layer;
  layer.view = self->cache.layer(index);
  layer.storage = self;
  return layer;
}

// (source, destination) pairs: an array [n, 2] or a sequence.
std::vector<BlockCopy> block_copies(nb::handle source) {
  Numbers<std::int32_t> numbers;
  const Py_ssize_t size = PySequence_Check(source.ptr()) != 0 ? PySequence_Size(source.ptr()) : 1;
  if (size < 0) nb::raise_python_error();
  if (size == 0) return {};
  numbers.read_rows("copies", source, -1);
  require(!numbers.on_device(), "copies: on a device");
  require(numbers.num_rows() == 0 || numbers.num_columns() == 2,
          "copies: needs pairs, has rows of ", numbers.num_columns());
  std::vector<BlockCopy> copies;
  for (std::size_t i = 0; i + 1 < numbers.host().size(); i += 2) {
    copies.push_back({numbers.host()[i], numbers.host()[i + 1]});
  }
  return copies;
}

enum class CopyCall : std::uint8_t { kCopy, kExport, kImport };

template <CopyCall call>
void copy_blocks(const StoragePtr& self, nb::handle pairs, const StoragePtr& src,
                 nb::handle stream_object) {
  const std::vector<BlockCopy> copies = block_copies(pairs);
  const StoragePtr from = src ? src : self;
  // The one that computes where at least one end lies.
  const SharedBackend& shared = *(self->on_host ? from : self)->backend;
  const Stream stream = resolve_stream(stream_object, shared);
  AttentionBackend& backend = *shared.backend;
  const nb::gil_scoped_release release;
  if constexpr (call == CopyCall::kCopy) {
    backend.copy_blocks(from->cache.layers(), self->cache.layers(), copies, stream);
  } else if constexpr (call == CopyCall::kExport) {
    backend.export_blocks(from->cache.layers(), self->cache.layers(), copies, stream);
  } else {
    backend.import_blocks(from->cache.layers(), self->cache.layers(), copies, stream);
  }
}

void copy_region(const StoragePtr& self, std::int32_t src_block, std::int32_t dst_block,
                 int first_token, int num_tokens, const StoragePtr& src, nb::handle stream_object) {
  const StoragePtr from = src ? src : self;
  const Stream stream = resolve_stream(stream_object, *self->backend);
  const nb::gil_scoped_release release;
  self->backend->backend->copy_region(from->cache.layers(), self->cache.layers(),
                                      {{src_block, dst_block}, first_token, num_tokens}, stream);
}

struct Extents {
  std::array<std::size_t, 4> shape;
  std::array<std::int64_t, 4> strides;
};

nb::object dlpack_view(nb::handle owner, const KvCacheView& view, void* data, DType dtype,
                       const Extents& extents, std::size_t rank) {
  const bool is_host = view.device.is_host();
  nb::ndarray<nb::array_api> array(
      data, rank, extents.shape.data(), owner, extents.strides.data(), element_of(dtype),
      is_host ? nb::device::cpu::value : nb::device::cuda::value, view.device.index);
  return nb::cast(std::move(array));
}

// K or V as [num_blocks, num_kv_heads, block_size, dim].
template <bool is_k>
nb::object stored_tensor(nb::handle self) {
  const auto& layer = *nb::cast<const LayerCache*>(self);
  const KvCacheView& view = layer.view;
  require(view.format.layout == KvLayoutId::kPlain, is_k ? "k" : "v", ": a cache in the layout ",
          layout_name(view.format.layout), " has no strides; export_blocks to a plain one");
  const KvStrides& strides = is_k ? view.k_strides : view.v_strides;
  const Extents extents{
      {static_cast<std::size_t>(view.num_blocks), static_cast<std::size_t>(view.num_kv_heads),
       static_cast<std::size_t>(view.format.block_size),
       static_cast<std::size_t>(is_k ? view.head_dim : view.value_dim)},
      {strides.block, strides.head, strides.token, 1}};
  return dlpack_view(self, view, is_k ? view.k : view.v, view.format.dtype, extents, 4);
}

template <bool is_k>
nb::object stored_scales(nb::handle self) {
  const auto& layer = *nb::cast<const LayerCache*>(self);
  const KvCacheView& view = layer.view;
  const KvScales& scales = is_k ? view.k_scales : view.v_scales;
  if (scales.data == nullptr) return nb::none();
  Extents extents{
      {static_cast<std::size_t>(view.num_blocks), static_cast<std::size_t>(view.num_kv_heads),
       static_cast<std::size_t>(view.format.block_size), 1},
      {scales.strides.block, scales.strides.head, scales.strides.token, 1}};
  std::size_t rank = 3;
  if (view.format.scales == ScaleGranularity::kPerTensor) {
    extents = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    rank = 1;
  } else if (view.format.scales == ScaleGranularity::kPerHead) {
    extents = {{static_cast<std::size_t>(view.num_kv_heads), 1, 1, 1},
               {scales.strides.head, 1, 1, 1}};
    rank = 1;
  }
  return dlpack_view(self, view, scales.data, DType::kF32, extents, rank);
}

// The name of an array's format, and the array as whole numbers of the same width where NumPy has
// no such format.
nb::object as_bits(nb::handle source) {
  const Array array = import_array("array", source);
  require(array.device.is_host(), "array: on a device");
  nb::dlpack::dtype element = array.element;
  const std::string name = element_name(element);
  using Code = nb::dlpack::dtype_code;
  const bool is_plain = element.code <= static_cast<std::uint8_t>(Code::Float) ||
                        element.code == static_cast<std::uint8_t>(Code::Bool);
  if (!is_plain) element.code = static_cast<std::uint8_t>(Code::UInt);
  std::array<std::size_t, kMaxRank> shape{};
  for (std::size_t i = 0; i < static_cast<std::size_t>(array.rank); ++i) {
    shape[i] = static_cast<std::size_t>(array.shape[i]);
  }
  nb::ndarray<nb::numpy> view(array.data, static_cast<std::size_t>(array.rank), shape.data(),
                              source, array.strides.data(), element);
  return nb::make_tuple(name, nb::cast(std::move(view)));
}

void bind_view(nb::module_& module) {
  nb::class_<LayerCache>(
      module, "KvCacheView",
      "The cache of one layer: a layer of a KvCache, or arrays of the program.\n\n"
      "attend, append and PreparedBatch take it in place of k_cache and v_cache.")
      .def(
          "__init__",
          [](LayerCache* self, nb::handle k_cache, nb::handle v_cache, nb::handle k_scale,
             nb::handle v_scale, const std::string& kv_order,
             const std::optional<std::string>& kv_packing,
             const std::optional<std::string>& kv_dtype, std::int64_t head_dim,
             std::int64_t value_dim) {
            LayerArguments from;
            from.k_cache = k_cache;
            from.v_cache = v_cache;
            from.k_scale = k_scale;
            from.v_scale = v_scale;
            from.order = parse_order(kv_order);
            if (kv_packing.has_value()) from.packing = parse_packing(*kv_packing);
            if (kv_dtype.has_value()) from.dtype = parse_dtype(*kv_dtype);
            from.head_dim = head_dim;
            from.value_dim = value_dim;
            LayerCache made;
            new (self) LayerCache(layer_cache(from, made));
          },
          nb::arg("k_cache"), nb::arg("v_cache").none() = nb::none(), nb::kw_only(),
          nb::arg("k_scale") = nb::none(), nb::arg("v_scale") = nb::none(),
          nb::arg("kv_order") = "block_token_head_dim", nb::arg("kv_packing") = nb::none(),
          nb::arg("kv_dtype") = nb::none(), nb::arg("head_dim") = 0, nb::arg("value_dim") = 0)
      .def_prop_ro("k", &stored_tensor<true>,
                   "K [num_blocks, num_kv_heads, block_size, head_dim] without a copy, for "
                   "from_dlpack of any library. Plain layouts only.")
      .def_prop_ro("v", &stored_tensor<false>,
                   "V [num_blocks, num_kv_heads, block_size, value_dim].")
      .def_prop_ro("k_scales", &stored_scales<true>,
                   "None, [1], [num_kv_heads] or [num_blocks, num_kv_heads, block_size].")
      .def_prop_ro("v_scales", &stored_scales<false>, "As k_scales.")
      .def_prop_ro("num_blocks", [](const LayerCache& self) { return self.view.num_blocks; })
      .def_prop_ro("num_kv_heads", [](const LayerCache& self) { return self.view.num_kv_heads; })
      .def_prop_ro("block_size", [](const LayerCache& self) { return self.view.format.block_size; })
      .def_prop_ro("head_dim", [](const LayerCache& self) { return self.view.head_dim; })
      .def_prop_ro("value_dim", [](const LayerCache& self) { return self.view.value_dim; })
      .def_prop_ro("dtype",
                   [](const LayerCache& self) { return dtype_name(self.view.format.dtype); })
      .def_prop_ro("scales",
                   [](const LayerCache& self) { return scales_name(self.view.format.scales); })
      .def_prop_ro("layout",
                   [](const LayerCache& self) { return layout_name(self.view.format.layout); });
}

}  // namespace

void bind_kv_cache(nb::module_& module) {
  bind_view(module);
  module.def("as_bits", &as_bits);
  nb::class_<CacheStorage>(
      module, "KvCache",
      "Owns K and V of all layers of one spec, in blocks.\n\n"
      "layout: 'preferred' by the backend, or 'plain', which other libraries can read.\n"
      "on_host: in (pinned) host memory, the other end of a swap.\n"
      "Memory is uninitialised; scales per tensor and per head start at 1.")
      .def(nb::new_(&make_cache), nb::arg("spec"), nb::arg("num_blocks"), nb::kw_only(),
           nb::arg("num_layers") = 1, nb::arg("backend") = "auto", nb::arg("layout") = "preferred",
           nb::arg("on_host") = false, nb::arg("huge_pages") = false, nb::arg("device") = "cpu")
      .def("layer", &make_layer, nb::arg("index"), "The KvCacheView of one layer.")
      .def_prop_ro("num_layers",
                   [](const CacheStorage& self) { return self.cache.layers().size(); })
      .def_prop_ro("num_blocks", [](const CacheStorage& self) { return self.cache.num_blocks(); })
      .def_prop_ro(
          "size_bytes", [](const CacheStorage& self) { return self.cache.size_bytes(); },
          "Of all layers, scales included.")
      .def_prop_ro(
          "spec", [](const CacheStorage& self) { return AttentionSpec(self.spec); },
          "With the layout of the cache: what a PreparedBatch for it needs.")
      .def("copy_blocks", &copy_blocks<CopyCall::kCopy>, nb::arg("copies"),
           nb::arg("src").none() = nb::none(), nb::arg("stream") = nb::none(),
           "Copies blocks of all layers: (source block of src, block of this cache) pairs. "
           "src: another cache of equal layout; None: this one.")
      .def("export_blocks", &copy_blocks<CopyCall::kExport>, nb::arg("copies"), nb::arg("src"),
           nb::arg("stream") = nb::none(), "From a cache in any layout to this plain one.")
      .def("import_blocks", &copy_blocks<CopyCall::kImport>, nb::arg("copies"), nb::arg("src"),
           nb::arg("stream") = nb::none(), "From a plain cache to this one.")
      .def("copy_region", &copy_region, nb::arg("src_block"), nb::arg("dst_block"),
           nb::arg("first_token"), nb::arg("num_tokens"), nb::arg("src").none() = nb::none(),
           nb::arg("stream") = nb::none(), "Some tokens of one block.")
      .def("__repr__", [](const CacheStorage& self) {
        return text("<quire.KvCache ", self.cache.layers().size(), " layers, ",
                    self.cache.num_blocks(), " blocks, ", to_string(self.spec), ">");
      });
}

}  // namespace quire::python

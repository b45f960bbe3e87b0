// SPDX-License-Identifier: Apache-2.0
#include "capi/convert.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "base/checked_int.h"

namespace quire::capi {
namespace {

constexpr int kNumDTypes = 6;
constexpr int kDefaultBlockSize = 16;
static_assert(QUIRE_F32 == static_cast<int>(DType::kF32) &&
              QUIRE_F16 == static_cast<int>(DType::kF16) &&
              QUIRE_BF16 == static_cast<int>(DType::kBF16) &&
              QUIRE_F8E4M3 == static_cast<int>(DType::kF8E4M3) &&
              QUIRE_F8E5M2 == static_cast<int>(DType::kF8E5M2) &&
              QUIRE_I8 == static_cast<int>(DType::kI8) && QUIRE_I8 + 1 == kNumDTypes);
static_assert(QUIRE_HOST == static_cast<int>(DeviceKind::kHost) &&
              QUIRE_CUDA == static_cast<int>(DeviceKind::kCuda) &&
              QUIRE_ROCM == static_cast<int>(DeviceKind::kRocm) &&
              QUIRE_CUSTOM == static_cast<int>(DeviceKind::kCustom));
static_assert(QUIRE_UNALIGNED == static_cast<int>(Alignment::kUnaligned));
static_assert(QUIRE_SCALES_PER_TENSOR == static_cast<int>(ScaleGranularity::kPerTensor) &&
              QUIRE_SCALES_PER_HEAD == static_cast<int>(ScaleGranularity::kPerHead) &&
              QUIRE_SCALES_PER_TOKEN_HEAD == static_cast<int>(ScaleGranularity::kPerTokenHead));
static_assert(QUIRE_LAYOUT_PAIR_TILED == static_cast<int>(KvLayoutId::kPairTiled) &&
              QUIRE_LAYOUT_FIRST_PRIVATE == static_cast<int>(KvLayoutId::kFirstPrivate));
static_assert(QUIRE_TABLE_INDEXED == static_cast<int>(BlockTables::Kind::kIndexed) &&
              QUIRE_TABLE_RAGGED == static_cast<int>(BlockTables::Kind::kRagged));
static_assert(QUIRE_MAX_RANK == kMaxRank);
// Pairs of the caller are read as copies.
static_assert(sizeof(BlockCopy) == 2 * sizeof(std::int32_t) &&
              alignof(BlockCopy) == alignof(std::int32_t) && std::is_standard_layout_v<BlockCopy>);

DType to_dtype(std::int32_t dtype, const char* what) {
  return to_enum<DType>(dtype, kNumDTypes, what);
}

KvFormat to_format(std::int32_t dtype, std::int32_t block_size, std::int32_t scales,
                   std::int32_t v_in_k, std::int32_t layout) {
  require(layout >= 0 && layout <= std::numeric_limits<std::uint16_t>::max(),
          "kv_layout: unknown value ", layout);
  return {.dtype = to_dtype(dtype, "kv_dtype"),
          .block_size = block_size == 0 ? kDefaultBlockSize : block_size,
          .scales = to_enum<ScaleGranularity>(scales, 4, "kv_scales"),
          .v_in_k = to_bool(v_in_k, "v_in_k"),
          .layout = static_cast<KvLayoutId>(layout)};
}

Features to_features(std::uint32_t bits) {
  constexpr std::uint32_t kKnown = 2 * QUIRE_FEATURE_LSE - 1;
  require((bits & ~kKnown) == 0, "features: unknown bits in ", bits);
  const auto has = [bits](std::uint32_t bit) { return (bits & bit) != 0; };
  return {.softcap = has(QUIRE_FEATURE_SOFTCAP),
          .alibi = has(QUIRE_FEATURE_ALIBI),
          .sinks = has(QUIRE_FEATURE_SINKS),
          .bias = has(QUIRE_FEATURE_BIAS),
          .tree_mask = has(QUIRE_FEATURE_TREE_MASK),
          .lse = has(QUIRE_FEATURE_LSE)};
}

// -1: unlimited.
std::int64_t to_window(std::int32_t has_window, std::int64_t window, const char* what) {
  if (to_bool(has_window, what)) {
    require(window >= 0, what, ": a window cannot be ", window);
    return window;
  }
  require(window == 0, what, ": is 0, but the window is ", window);
  return -1;
}

void require_dense(const quire_tensor& given, const char* what) {
  for (int i = 0; i < given.rank; ++i) {
    require(given.shape[i] >= 0, what, ": axis ", i, " cannot have ", given.shape[i], " elements");
  }
}

void set_strides(const quire_tensor& given, const char* what, MutableTensorView& view) {
  const auto rank = static_cast<std::size_t>(given.rank);
  bool is_dense = true;
  for (std::size_t i = 0; i < rank; ++i) {
    view.shape[i] = given.shape[i];
    view.strides[i] = given.strides[i];
    is_dense = is_dense && given.strides[i] == 0;
  }
  if (!is_dense) return;
  require_dense(given, what);
  std::int64_t stride = 1;
  for (std::size_t i = rank; i-- > 0;) {
    view.strides[i] = stride;
    stride = checked_mul(what, stride, std::max<std::int64_t>(given.shape[i], 1));
  }
}

KvStrides to_strides(const std::int64_t (&strides)[3]) {
  return {.block = strides[0], .head = strides[1], .token = strides[2]};
}

void from_strides(const KvStrides& strides, std::int64_t (&out)[3]) {
  out[0] = strides.block;
  out[1] = strides.head;
  out[2] = strides.token;
}

template <class T>
ArrayView<T> to_array(const T* data, std::int64_t size, Device device, const char* what) {
  require_array(data, size, what);
  return ArrayView<T>(data, size, device);
}

BlockTables to_tables(const quire_batch& given, Device device) {
  const std::int64_t n = given.num_sequences;
  const ArrayView<std::int32_t> indices =
      to_array(given.block_indices, given.num_block_indices, device, "block_indices");
  switch (to_enum<BlockTables::Kind>(given.table_kind, 3, "table_kind")) {
    case BlockTables::Kind::kPadded:
      return BlockTables::padded(indices, given.row_stride);
    case BlockTables::Kind::kIndexed:
      return BlockTables::indexed(to_array(given.table_begins, n + 1, device, "table_begins"),
                                  indices);
    case BlockTables::Kind::kRagged:
      break;
  }
  return BlockTables::ragged(to_array(given.rows, n, device, "rows"));
}

TreeMask to_tree_mask(const quire_batch& given, Device device) {
  if (given.tree_begins == nullptr) {
    require(given.tree_bits == nullptr && given.tree_depths == nullptr,
            "tree_begins: is NULL, but there are tree_bits or tree_depths");
    return {};
  }
  return {.bits = to_array(given.tree_bits, given.num_tree_bytes, device, "tree_bits"),
          .begins = to_array(given.tree_begins, given.num_sequences, device, "tree_begins"),
          .depths = to_array(given.tree_depths, given.num_tree_depths, device, "tree_depths")};
}

// REQUIRES: `given` has the size of this library.
KvCacheView known_view(const quire_kv_cache_view& given, const char* what) {
  KvCacheView view;
  view.k = given.k;
  view.v = given.v;
  view.k_strides = to_strides(given.k_strides);
  view.v_strides = to_strides(given.v_strides);
  view.k_scales = {.data = given.k_scales, .strides = to_strides(given.k_scale_strides)};
  view.v_scales = {.data = given.v_scales, .strides = to_strides(given.v_scale_strides)};
  view.num_blocks = given.num_blocks;
  view.num_kv_heads = given.num_kv_heads;
  view.head_dim = given.head_dim;
  view.value_dim = given.value_dim;
  view.format = to_format(given.kv_dtype, given.block_size, given.kv_scales_kind, given.v_in_k,
                          given.kv_layout);
  view.opaque_k_bytes = given.opaque_k_bytes;
  view.opaque_v_bytes = given.opaque_v_bytes;
  view.device = to_device(given.device_kind, given.device_index, what);
  return view;
}

}  // namespace

Device to_device(std::int32_t kind, std::int32_t index, const char* what) {
  require(kind >= QUIRE_HOST && kind <= QUIRE_CUSTOM, what, ": unknown device_kind ", kind);
  return {.kind = static_cast<DeviceKind>(kind), .index = index};
}

Mask to_mask(std::int32_t not_causal, std::int32_t has_window_left, std::int64_t window_left,
             std::int64_t chunk) {
  return {.causal = !to_bool(not_causal, "not_causal"),
          .window_left = to_window(has_window_left, window_left, "has_window_left"),
          .window_right = -1,
          .chunk = chunk};
}

AttentionSpec to_spec(const quire_attention_spec* pointer) {
  const quire_attention_spec given = read_struct(pointer, "spec");
  AttentionSpec spec{
      .num_q_heads = given.num_q_heads,
      .num_kv_heads = given.num_kv_heads,
      .head_dim = given.head_dim,
      .value_dim = given.value_dim == 0 ? given.head_dim : given.value_dim,
      .q_dtype = to_dtype(given.q_dtype, "q_dtype"),
      .out_dtype = to_dtype(given.out_dtype, "out_dtype"),
      .kv = to_format(given.kv_dtype, given.block_size, given.kv_scales, given.v_in_k,
                      given.kv_layout),
      .alignment = to_enum<Alignment>(given.alignment, 2, "alignment"),
      .mask = to_mask(given.not_causal, given.has_window_left, given.window_left, given.chunk),
      .features = to_features(given.features)};
  spec.mask.window_right =
      to_window(given.has_window_right, given.window_right, "has_window_right");
  validate(spec);
  return spec;
}

MutableTensorView to_tensor(const quire_tensor* pointer, const char* what) {
  const quire_tensor given = read_struct(pointer, what);
  require(given.rank >= 1 && given.rank <= QUIRE_MAX_RANK, what, ": the rank is between 1 and ",
          QUIRE_MAX_RANK, ", not ", given.rank);
  MutableTensorView view;
  view.data = given.data;
  view.dtype = to_dtype(given.dtype, what);
  view.rank = given.rank;
  view.device = to_device(given.device_kind, given.device_index, what);
  set_strides(given, what, view);
  return view;
}

MutableTensorView to_optional_tensor(const quire_tensor* given, const char* what) {
  return given == nullptr ? MutableTensorView{} : to_tensor(given, what);
}

AttentionOutput to_output(const quire_attention_output* pointer) {
  const quire_attention_output given = read_struct(pointer, "output");
  return {.out = to_tensor(given.out, "out"), .lse = to_optional_tensor(given.lse, "lse")};
}

BatchView to_batch(const quire_batch* pointer) {
  const quire_batch given = read_struct(pointer, "batch");
  require(given.reserved == 0, "batch: reserved is not 0");
  const std::int64_t n = given.num_sequences;
  require(n >= 0 && n <= std::numeric_limits<std::int32_t>::max(), "num_sequences: cannot be ", n);
  const Device device = to_device(given.device_kind, given.device_index, "batch");
  BatchView batch;
  if (given.query_ends != nullptr) {
    batch.queries = {.begins = to_array(given.query_begins, n, device, "query_begins"),
                     .ends = to_array(given.query_ends, n, device, "query_ends")};
  } else {
    batch.queries =
        QueryRanges::packed(to_array(given.query_begins, n + 1, device, "query_begins"));
  }
  batch.kv = {.lens = to_array(given.kv_lens, n, device, "kv_lens"),
              .blocks = to_tables(given, device),
              .slots = to_array(given.slots, given.num_slots, device, "slots")};
  batch.tree_mask = to_tree_mask(given, device);
  return batch;
}

quire_batch from_batch(const BatchView& batch) {
  auto out = make_struct<quire_batch>();
  out.num_sequences = batch.num_sequences();
  out.query_begins = batch.queries.begins.data;
  out.query_ends = batch.queries.ends.data;
  out.kv_lens = batch.kv.lens.data;
  out.block_indices = batch.kv.blocks.indices.data;
  out.num_block_indices = batch.kv.blocks.indices.size;
  out.row_stride = batch.kv.blocks.row_stride;
  out.table_begins = batch.kv.blocks.begins.data;
  out.rows = batch.kv.blocks.rows.data;
  out.slots = batch.kv.slots.data;
  out.num_slots = batch.kv.slots.size;
  out.tree_bits = batch.tree_mask.bits.data;
  out.tree_begins = batch.tree_mask.begins.data;
  out.tree_depths = batch.tree_mask.depths.data;
  out.num_tree_bytes = batch.tree_mask.bits.size;
  out.num_tree_depths = batch.tree_mask.depths.size;
  out.table_kind = static_cast<std::int32_t>(batch.kv.blocks.kind);
  out.device_kind = static_cast<std::int32_t>(batch.kv.lens.device.kind);
  out.device_index = batch.kv.lens.device.index;
  return out;
}

BatchBounds to_bounds(const quire_batch_bounds* pointer) {
  const quire_batch_bounds given = read_struct(pointer, "bounds");
  return {.max_sequences = given.max_sequences,
          .max_tokens = given.max_tokens,
          .max_kv_len = given.max_kv_len,
          .max_total_kv_len = given.max_total_kv_len,
          .max_q_len = given.max_q_len};
}

KvCacheView to_view(const quire_kv_cache_view* given, const char* what) {
  return known_view(read_struct(given, what), what);
}

std::vector<KvCacheView> to_views(const quire_kv_cache_view* given, std::int64_t size,
                                  const char* what) {
  std::vector<KvCacheView> views;
  for_each_struct(given, size, what, [&](std::int64_t /*i*/, const quire_kv_cache_view& view) {
    views.push_back(known_view(view, what));
  });
  return views;
}

quire_kv_cache_view from_view(const KvCacheView& view) {
  auto out = make_struct<quire_kv_cache_view>();
  out.k = view.k;
  out.v = view.v;
  out.k_scales = view.k_scales.data;
  out.v_scales = view.v_scales.data;
  from_strides(view.k_strides, out.k_strides);
  from_strides(view.v_strides, out.v_strides);
  from_strides(view.k_scales.strides, out.k_scale_strides);
  from_strides(view.v_scales.strides, out.v_scale_strides);
  out.num_blocks = view.num_blocks;
  out.opaque_k_bytes = view.opaque_k_bytes;
  out.opaque_v_bytes = view.opaque_v_bytes;
  out.num_kv_heads = view.num_kv_heads;
  out.head_dim = view.head_dim;
  out.value_dim = view.value_dim;
  out.kv_dtype = static_cast<std::int32_t>(view.format.dtype);
  out.block_size = view.format.block_size;
  out.kv_scales_kind = static_cast<std::int32_t>(view.format.scales);
  out.v_in_k = view.format.v_in_k ? 1 : 0;
  out.kv_layout = static_cast<std::int32_t>(view.format.layout);
  out.device_kind = static_cast<std::int32_t>(view.device.kind);
  out.device_index = view.device.index;
  return out;
}

std::span<const BlockCopy> to_copies(const std::int32_t* copies, std::int64_t num_copies) {
  require_array(copies, num_copies, "copies");
  return {reinterpret_cast<const BlockCopy*>(copies), static_cast<std::size_t>(num_copies)};
}

quire_group_copies from_copies(const GroupCopies& copies) {
  auto out = make_struct<quire_group_copies>();
  const auto set = [](std::span<const BlockCopy> from, const std::int32_t*& pairs,
                      std::int64_t& size) {
    pairs = from.empty() ? nullptr : &from.front().src;
    size = static_cast<std::int64_t>(from.size());
  };
  set(copies.on_device, out.on_device, out.num_on_device);
  set(copies.to_host, out.to_host, out.num_to_host);
  set(copies.to_device, out.to_device, out.num_to_device);
  set(copies.on_host, out.on_host, out.num_on_host);
  return out;
}

}  // namespace quire::capi

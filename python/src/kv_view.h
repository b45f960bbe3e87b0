// SPDX-License-Identifier: Apache-2.0
// The cache of one layer as Python gives it: arrays of its own, or a layer of a KvCache.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <memory>
#include <optional>

#include "array.h"
#include "quire/kv_cache.h"
#include "runtime.h"

namespace quire::python {

// A cache that quire allocated, with the backend whose memory it lies in.
struct CacheStorage {
  BackendPtr backend;
  AttentionSpec spec;  // with the layout of the cache
  KvCache cache;
  bool on_host = false;
};

// Python's KvCacheView.
struct LayerCache {
  KvCacheView view;
  bool is_ragged = false;  // K [rows, heads, dim]: attend reads it, nothing can be stored
  bool read_only = false;
  std::shared_ptr<CacheStorage> storage;             // null: arrays of the program
  std::array<Array, 4> arrays;                       // K, V and their scales
  std::shared_ptr<std::array<float, 2>> own_scales;  // given as numbers
};

struct LayerArguments {
  nb::handle k_cache;
  nb::handle v_cache;  // None: packed with K, or the first value_dim elements of K
  nb::handle k_scale;  // None, a number, [num_kv_heads] or per token and head
  nb::handle v_scale;
  KvOrder order = KvOrder::kBlockTokenHeadDim;
  std::optional<KvPacking> packing;
  std::optional<DType> dtype;  // what arrays of bytes hold
  std::int64_t head_dim = 0;   // of kv_per_token; 0: half of the last axis
  std::int64_t value_dim = 0;  // 0: that of V, or head_dim
};

// `made` is where the view is built, unless k_cache is a KvCacheView: then that one is returned.
const LayerCache& layer_cache(const LayerArguments& arguments, LayerCache& made);

void require_writable(const LayerCache& layer);

}  // namespace quire::python

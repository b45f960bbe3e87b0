// SPDX-License-Identifier: Apache-2.0
// Caches of the C interface, views over tensors of the caller, and what validates a spec.
#include <memory>
#include <string>

#include "capi/convert.h"
#include "capi/handles.h"
#include "capi/sized_struct.h"

namespace quire::capi {
namespace {

static_assert(QUIRE_BLOCK_TOKEN_HEAD_DIM == static_cast<int>(KvOrder::kBlockTokenHeadDim));
static_assert(QUIRE_KV_PER_BLOCK == static_cast<int>(KvPacking::kKvPerBlock) &&
              QUIRE_KV_PER_TOKEN == static_cast<int>(KvPacking::kKvPerToken));

// What the number of a layout stands for.
KvLayout layout_of(const AttentionBackend& backend, const AttentionSpec& spec) {
  if (spec.kv.layout == KvLayoutId::kPlain) return plain_layout(spec);
  if (spec.kv.layout == KvLayoutId::kPairTiled) return pair_tiled_layout(spec);
  AttentionSpec asked = spec;
  asked.kv.layout = KvLayoutId::kPlain;
  const KvLayout preferred = backend.preferred_layout(asked);
  require(preferred.id == spec.kv.layout, "kv_layout: backend ", backend.info().name,
          " has no layout ", static_cast<int>(spec.kv.layout));
  return preferred;
}

KvOrder to_order(std::int32_t order) {
  return to_enum<KvOrder>(order, 2, "order");
}

}  // namespace
}  // namespace quire::capi

using namespace quire::capi;

quire_status quire_kv_cache_create(quire_backend* backend, const quire_attention_spec* spec,
                                   const quire_kv_cache_options* options, quire_kv_cache** cache) {
  return guarded([&] {
    quire_kv_cache*& out = require_out(cache, "cache");
    const std::shared_ptr<quire::AttentionBackend> owner = open(backend, "backend").backend;
    const quire::AttentionSpec made_for = to_spec(spec);
    const quire_kv_cache_options given = read_struct(options, "options");
    quire::require(given.reserved == 0, "options: reserved is not 0");
    const quire::KvCache::Options storage{
        .num_layers = given.num_layers == 0 ? 1 : given.num_layers,
        .num_blocks = given.num_blocks,
        .pages = to_bool(given.huge_pages, "huge_pages") ? quire::PageHint::kHuge
                                                         : quire::PageHint::kDefault,
        .on_host = to_bool(given.on_host, "on_host")};
    quire::KvCache made(owner->memory(), made_for, layout_of(*owner, made_for), storage);
    out = new quire_kv_cache{.backend = owner, .cache = std::move(made)};
  });
}

quire_status quire_kv_cache_destroy(quire_kv_cache* cache) {
  return destroy(cache, "cache");
}

quire_status quire_kv_cache_layer(const quire_kv_cache* cache, int32_t layer,
                                  quire_kv_cache_view* view) {
  return guarded([&] {
    OutStruct<quire_kv_cache_view> out(view, "view");
    const auto layers = open(cache, "cache").cache.layers();
    out.set(from_view(layers[to_index(layer, layers.size(), "layer")]));
  });
}

quire_status quire_kv_cache_size(const quire_kv_cache* cache, int32_t* num_layers,
                                 int64_t* num_blocks, int64_t* size_bytes) {
  return guarded([&] {
    const quire::KvCache& opened = open(cache, "cache").cache;
    if (num_layers != nullptr) *num_layers = static_cast<int32_t>(opened.layers().size());
    if (num_blocks != nullptr) *num_blocks = opened.num_blocks();
    if (size_bytes != nullptr) *size_bytes = opened.size_bytes();
  });
}

quire_status quire_view_kv(const quire_attention_spec* spec, int32_t order, const quire_tensor* k,
                           const quire_tensor* v, quire_kv_cache_view* view) {
  return guarded([&] {
    OutStruct<quire_kv_cache_view> out(view, "view");
    out.set(from_view(quire::view_kv(to_spec(spec), to_order(order), to_tensor(k, "k"),
                                     to_optional_tensor(v, "v"))));
  });
}

quire_status quire_split_kv(const quire_attention_spec* spec, int32_t order, int32_t packing,
                            const quire_tensor* kv, quire_kv_cache_view* view) {
  return guarded([&] {
    OutStruct<quire_kv_cache_view> out(view, "view");
    out.set(from_view(quire::split_kv(to_spec(spec), to_order(order),
                                      to_enum<quire::KvPacking>(packing, 3, "packing"),
                                      to_tensor(kv, "kv"))));
  });
}

quire_status quire_view_ragged(const quire_attention_spec* spec, const quire_tensor* k,
                               const quire_tensor* v, quire_kv_cache_view* view) {
  return guarded([&] {
    OutStruct<quire_kv_cache_view> out(view, "view");
    out.set(from_view(
        quire::view_ragged(to_spec(spec), to_tensor(k, "k"), to_optional_tensor(v, "v"))));
  });
}

quire_status quire_attention_spec_validate(const quire_attention_spec* spec) {
  return guarded([&] { static_cast<void>(to_spec(spec)); });
}

quire_status quire_attention_spec_text(const quire_attention_spec* spec, char** text) {
  return guarded([&] {
    char*& out = require_out(text, "text");
    out = copy_text(quire::to_string(to_spec(spec)));
  });
}

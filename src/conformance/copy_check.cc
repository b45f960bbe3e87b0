// SPDX-License-Identifier: Apache-2.0
// copy_blocks, copy_region, export_blocks and import_blocks: the copied tokens and their scales
// arrive, and no other byte changes in any cache.
#include <array>
#include <span>
#include <vector>

#include "base/check.h"
#include "conformance/cache_memory.h"
#include "conformance/checks.h"
#include "conformance/index.h"
#include "conformance/loaded_batch.h"
#include "conformance/random.h"

namespace quire::conformance {
namespace {

constexpr int kNumLayers = 2;

// The layers of one cache, every slot filled with drawn codes.
class Layers {
 public:
  Layers(CheckContext& context, const AttentionSpec& spec, const CacheMemory::Options& options,
         std::uint64_t seed) {
    Random random(seed_of(context.problem.c.name) + seed);
    for (int layer = 0; layer < kNumLayers; ++layer) {
      memory_.emplace_back(context.backend, spec, options);
      fill(memory_.back(), spec, options.num_blocks, random);
      memory_.back().upload();
      views_.push_back(memory_.back().view());
    }
  }

  std::span<const KvCacheView> views() const { return views_; }

  void expect_copy(const Layers& from, const BlockCopy& blocks, std::int64_t first_token,
                   std::int64_t num_tokens) {
    for (std::size_t layer = 0; layer < memory_.size(); ++layer) {
      memory_[layer].expect_copy(from.memory_[layer], blocks, first_token, num_tokens);
    }
  }
  void expect_copies(const Layers& from, std::span<const BlockCopy> copies) {
    const int block_size = views_.front().format.block_size;
    for (const BlockCopy& copy : copies) expect_copy(from, copy, 0, block_size);
  }

  std::optional<std::string> difference(const char* name) const {
    for (std::size_t layer = 0; layer < memory_.size(); ++layer) {
      if (auto found = memory_[layer].difference(name))
        return concat("layer ", layer, " of ", *found);
    }
    return std::nullopt;
  }

 private:
  static void fill(CacheMemory& memory, const AttentionSpec& spec, std::int64_t num_blocks,
                   Random& random) {
    const auto fill_tensor = [&](KvTensor tensor, int dim) {
      std::vector<float> row(at(dim));
      for (std::int64_t head = 0; head < spec.num_kv_heads; ++head) {
        memory.set_caller_scale(tensor, head, 0.5F);
      }
      for (std::int64_t slot = 0; slot < num_blocks * spec.kv.block_size; ++slot) {
        for (std::int64_t head = 0; head < spec.num_kv_heads; ++head) {
          for (float& x : row) x = round_to(spec.kv.dtype, 20 * random.normal());
          memory.set_row(tensor, slot, head, row.data(), 1 + random.uniform());
        }
      }
    };
    fill_tensor(KvTensor::kK, spec.head_dim);
    if (!spec.kv.v_in_k) fill_tensor(KvTensor::kV, spec.value_dim);
  }

  std::vector<CacheMemory> memory_;
  std::vector<KvCacheView> views_;
};

CacheMemory::Options options_for(const Problem& p, std::int64_t num_blocks) {
  CacheMemory::Options options;
  options.style = p.c.cache;
  options.order = p.c.order;
  options.packing = p.c.packing;
  options.num_blocks = num_blocks;
  return options;
}

constexpr std::array<BlockCopy, 3> kWithin = {{{0, 3}, {0, 5}, {1, 4}}};
constexpr std::array<BlockCopy, 4> kAcross = {{{5, 0}, {0, 1}, {3, 2}, {3, 7}}};

// Block 1 of a plain cache on its way to its block 5.
constexpr std::array<BlockCopy, 2> kImported = {{{1, 2}, {0, 0}}};
constexpr std::array<BlockCopy, 1> kSwappedOut = {{{2, 7}}};
constexpr std::array<BlockCopy, 1> kSwappedIn = {{{7, 4}}};
constexpr std::array<BlockCopy, 1> kExported = {{{4, 5}}};
constexpr std::array<BlockCopy, 1> kPassed = {{{1, 5}}};

// Through caches that quire allocates, here and on the host, and back.
void pass_through_owned_caches(AttentionBackend& backend, const AttentionSpec& spec,
                               std::span<const KvCacheView> plain) {
  const KvLayout layout = backend.preferred_layout(spec);
  AttentionSpec owned_spec = spec;
  owned_spec.kv.layout = layout.id;
  const KvCache here(backend.memory(), owned_spec, layout,
                     {.num_layers = kNumLayers, .num_blocks = 8});
  const KvCache away(backend.memory(), owned_spec, layout,
                     {.num_layers = kNumLayers, .num_blocks = 8, .on_host = true});
  backend.import_blocks(plain, here.layers(), kImported);
  backend.copy_blocks(here.layers(), away.layers(), kSwappedOut);
  backend.memory().synchronize({});
  backend.copy_blocks(away.layers(), here.layers(), kSwappedIn);
  backend.export_blocks(here.layers(), plain, kExported);
  backend.memory().synchronize({});
}

}  // namespace

std::optional<std::string> check_copy_blocks(CheckContext& context) {
  const Problem& p = context.problem;
  AttentionBackend& backend = context.backend;
  const AttentionSpec spec = spec_for(backend, p);
  Layers first(context, spec, options_for(p, 6), 1);
  Layers second(context, spec, options_for(p, 8), 2);
  CacheMemory::Options on_host = options_for(p, 8);
  on_host.place = Place::kHost;
  Layers host(context, spec, on_host, 3);

  backend.copy_blocks(first.views(), first.views(), {});
  backend.copy_blocks(first.views(), first.views(), kWithin);
  first.expect_copies(first, kWithin);
  backend.copy_blocks(first.views(), second.views(), kAcross);
  second.expect_copies(first, kAcross);
  backend.copy_blocks(second.views(), host.views(), kWithin);  // out
  host.expect_copies(second, kWithin);
  backend.memory().synchronize({});
  backend.copy_blocks(host.views(), first.views(), kWithin);  // and in again
  first.expect_copies(host, kWithin);
  backend.memory().synchronize({});

  if (auto found = first.difference("first cache")) return found;
  if (auto found = second.difference("second cache")) return found;
  return host.difference("host cache");
}

std::optional<std::string> check_copy_region(CheckContext& context) {
  const Problem& p = context.problem;
  AttentionBackend& backend = context.backend;
  const AttentionSpec spec = spec_for(backend, p);
  Layers first(context, spec, options_for(p, 6), 1);
  Layers second(context, spec, options_for(p, 8), 2);
  const int block_size = spec.kv.block_size;
  const std::vector<BlockRegionCopy> regions = {
      {{0, 3}, 0, block_size}, {{1, 4}, 0, block_size / 2}, {{2, 5}, block_size / 3, 1},
      {{2, 4}, block_size, 0}, {{1, 5}, block_size - 1, 1},
  };
  for (const BlockRegionCopy& region : regions) {
    backend.copy_region(first.views(), first.views(), region);
    first.expect_copy(first, region.blocks, region.first_token, region.num_tokens);
    backend.copy_region(first.views(), second.views(), region);
    second.expect_copy(first, region.blocks, region.first_token, region.num_tokens);
  }
  backend.memory().synchronize({});
  if (auto found = first.difference("first cache")) return found;
  return second.difference("second cache");
}

std::optional<std::string> check_export(CheckContext& context) {
  const Problem& p = context.problem;
  AttentionBackend& backend = context.backend;
  const AttentionSpec spec = spec_for(backend, p);
  AttentionSpec plain_spec = spec;
  plain_spec.kv.layout = KvLayoutId::kPlain;
  Layers first(context, spec, options_for(p, 6), 1);
  Layers second(context, spec, options_for(p, 6), 2);
  CacheMemory::Options plain_options = options_for(p, 8);
  plain_options.style = CacheStyle::kSeparate;
  plain_options.order = KvOrder::kBlockTokenHeadDim;
  Layers plain(context, plain_spec, plain_options, 3);

  backend.export_blocks(first.views(), plain.views(), kAcross);
  plain.expect_copies(first, kAcross);
  backend.import_blocks(plain.views(), second.views(), kWithin);
  second.expect_copies(plain, kWithin);
  backend.memory().synchronize({});
  if (auto found = first.difference("exported cache")) return found;
  if (auto found = plain.difference("plain cache")) return found;
  if (auto found = second.difference("importing cache")) return found;

  pass_through_owned_caches(backend, plain_spec, plain.views());
  plain.expect_copies(plain, kPassed);
  return plain.difference("plain cache after a swap");
}

}  // namespace quire::conformance

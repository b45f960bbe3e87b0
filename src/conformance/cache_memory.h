// SPDX-License-Identifier: Apache-2.0
// One layer of a KV cache: its bytes on the host, poison in every unused one, and the same in the
// backend's memory.
//
// The image is what the backend's memory must hold: a test writes into it what a call is to store,
// makes the call, and asks for the first difference. Of a cache with large offsets only the blocks
// in use are in the image; the rest is reserved and never touched. Opaque layouts have a plain
// image that is imported and exported. Move-only; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "conformance/case.h"
#include "conformance/device_buffer.h"
#include "layout/kv_offset.h"
#include "quire/backend.h"
#include "quire/kv_cache.h"

namespace quire::conformance {

class CacheMemory {
 public:
  struct Options {
    CacheStyle style = CacheStyle::kPlainRecord;
    KvOrder order = KvOrder::kBlockHeadTokenDim;
    KvPacking packing = KvPacking::kKvFirst;
    std::int64_t num_blocks = 0;
    std::vector<std::int32_t> blocks_in_image;  // empty: all
    Place place = Place::kDevice;
  };

  // The layout a spec gets under a style; kPlain for tensors of the caller.
  static KvLayoutId layout_of(const AttentionBackend& backend, const AttentionSpec& spec,
                              CacheStyle style);

  // `spec.kv.layout` is layout_of(...). `backend` must outlive it.
  CacheMemory(AttentionBackend& backend, const AttentionSpec& spec, const Options& options);

  // Stores one (slot, head) of K or V, and its scale: stored [dim], decoded.
  void set_row(KvTensor tensor, std::int64_t slot, std::int64_t head, const float* stored,
               float scale);
  // The caller's own scales, per tensor or per head.
  void set_caller_scale(KvTensor tensor, std::int64_t head, float scale);

  // What copying tokens of a block from another cache must do to this one's image.
  void expect_copy(const CacheMemory& from, const BlockCopy& blocks, std::int64_t first_token,
                   std::int64_t num_tokens);

  // From here on the slot may hold anything.
  void forget(std::int64_t slot);

  // The image to the backend.
  void upload();

  const KvCacheView& view() const noexcept { return view_; }  // for the backend
  // Of the image, by element; blocks are those of the image.
  const KvCacheView& image() const noexcept { return image_; }
  std::int64_t image_block(std::int64_t block) const noexcept;

  // Elements that are NaN in both count as equal: the payload of a NaN is not part of the contract.
  // Alignment bytes of a record belong to the cache and may change.
  std::optional<std::string> difference(const char* name) const;

 private:
  struct Extent {
    std::int64_t in_memory, in_image, size;  // bytes
  };
  using Bytes = std::vector<std::byte>;

  KvCacheView bind(const AttentionSpec& spec, void* kv, float* scales, std::int64_t num_blocks,
                   Device device) const;
  KvCacheView bind_caller(const AttentionSpec& spec, void* kv, std::int64_t num_blocks,
                          Device device) const;
  void bind_scales(KvCacheView& view, float* scales, std::int64_t num_blocks) const;
  void plan_extents();
  void make_opaque(const AttentionSpec& spec);
  std::vector<BlockCopy> image_copies() const;
  void export_opaque() const;
  std::byte* element(KvTensor tensor, std::int64_t block, std::int64_t head, std::int64_t token,
                     std::int64_t d) const;
  std::optional<std::string> element_difference(const KvCacheView& got, KvTensor tensor) const;
  std::optional<std::string> scale_difference(const Bytes& got) const;
  std::optional<std::string> slack_difference(const Bytes& got) const;

  AttentionBackend& backend_;
  Options options_;
  KvLayout layout_;  // of the image; plain where the cache is opaque
  bool is_record_ = false;
  AttentionSpec plain_spec_;
  std::int64_t num_image_blocks_ = 0;
  Bytes kv_bytes_;
  std::vector<float> scales_;
  std::vector<std::uint8_t> forgotten_;  // [slots of the image] or empty
  std::vector<Extent> kv_extents_;
  std::vector<Extent> scale_extents_;
  std::unique_ptr<DeviceBuffer> kv_buffer_;
  std::unique_ptr<DeviceBuffer> scale_buffer_;
  std::unique_ptr<DeviceBuffer> opaque_buffer_;
  KvCacheView image_;
  KvCacheView stage_;  // plain, in the backend's memory; equal to view_ unless opaque
  KvCacheView view_;
};

}  // namespace quire::conformance

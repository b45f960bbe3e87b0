// SPDX-License-Identifier: Apache-2.0
// Every precondition of the public calls, once. AttentionBackend calls these; nothing else checks.
//
// Each function throws Error(kInvalidArgument) that names the field, the sequence, the index and,
// last, the values; it writes nothing but the scratch. None allocates unless it throws, and each is
// linear in what it looks at. Pure functions: safe from any thread.
//
// `device` is where the backend computes. Contents of device memory are never read: of metadata on
// a device only the shapes are checked, and of a cache only its description.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <span>
#include <string>

#include "quire/attention_spec.h"
#include "quire/backend.h"
#include "quire/batch.h"
#include "quire/device.h"
#include "quire/kv_cache.h"
#include "quire/prepared_batch.h"

namespace quire {

// Limits of a spec. With them, [rows, heads, dim] of f32 fits 64 bits for every 32-bit row count.
inline constexpr int kMaxHeads = 65536;
inline constexpr int kMaxDim = 4096;

// Workspaces, and the parts into which one is split, begin at multiples of this.
inline constexpr std::int64_t kWorkspaceAlignment = 64;

// Bounds that no batch can have or whose sizes do not fit 64 bits. REQUIRES: a valid spec.
void validate_bounds(const AttentionSpec& spec, const BatchBounds& bounds);

// Present, aligned and large enough.
void validate_workspace(const Workspace& workspace, const WorkspaceSize& needed);

// Host memory that validate_batch needs, a multiple of kWorkspaceAlignment.
std::int64_t validation_scratch_bytes(const BatchBounds& bounds) noexcept;

// What prepare accepts; returns what later calls are checked against. Only blocks that some row can
// see (keys_seen) are looked at. `scratch` has validation_scratch_bytes(bounds) on the host.
BatchFacts validate_batch(const AttentionSpec& spec, const BatchBounds& bounds,
                          const BatchView& batch, Device device, void* scratch);

// Reading tolerates strides that broadcast; what is written must not overlap itself.
enum class CacheUse : std::uint8_t { kRead, kWrite };

// How messages call what they are about: "cache", "src[3]", "partials[2].lse".
struct FieldName {
  const char* name = "";
  std::int64_t index = -1;
  const char* suffix = "";

  FieldName(const char* name_) : name(name_) {}  // NOLINT(google-explicit-constructor)
  FieldName(const char* name_, std::int64_t index_, const char* suffix_ = "")
      : name(name_), index(index_), suffix(suffix_) {}
};
std::ostream& operator<<(std::ostream& stream, const FieldName& field);

// A view that agrees with itself.
void validate_cache(const KvCacheView& cache, CacheUse use, const FieldName& name);

// ... and with the spec and the device, its scales included. Layouts must be equal: the spec's
// chooses the kernel.
void validate_cache(const AttentionSpec& spec, const KvCacheView& cache, Device device,
                    CacheUse use);

void validate_append(const AttentionSpec& spec, const BatchFacts& facts, const NewKv& new_kv,
                     const KvCacheView& cache, Device device);

// `batch` is what the facts are of. `source.new_kv`, where present, is checked as validate_append
// does.
void validate_attend(const AttentionSpec& spec, const BatchFacts& facts, const BatchView& batch,
                     const AttentionParams& params, const TensorView& q, const KvSource& source,
                     const AttentionOutput& output, Device device);

void validate_merge(std::span<const Partial> partials, const ArrayView<float>& sinks,
                    const AttentionOutput& output, Device device);

// Which layouts a copy may join.
enum class CopyKind : std::uint8_t { kSameLayout, kExport, kImport };

// Both ends lie on `device` or on the host.
void validate_copy_blocks(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                          std::span<const BlockCopy> copies, CopyKind kind, Device device);
void validate_copy_region(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                          const BlockRegionCopy& copy, Device device);

// How messages name things; of values outside an enumeration, the number.
std::string dtype_text(DType dtype);         // "bf16"
std::string device_text(Device device);      // "host", "cuda 1"
std::string layout_text(KvLayoutId layout);  // "plain", "pair-tiled", "private 256"

}  // namespace quire

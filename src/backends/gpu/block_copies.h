// SPDX-License-Identifier: Apache-2.0
// Copies of blocks by the device: lists of them travel with the launch, or through staging where
// they are long.
#pragma once

#include <cstdint>
#include <span>

#include "backends/gpu/gpu_runtime.h"
#include "backends/gpu/staging_ring.h"
#include "gpu/transfer_args.h"

namespace quire::gpu {

// Thread-safe, as the runtime and the staging are, which must outlive it.
class BlockCopies {
 public:
  // Of every block.
  struct Tokens {
    int first;
    int count;
  };

  BlockCopies(GpuRuntime& runtime, StagingRing& staging) : runtime_(runtime), staging_(staging) {}

  // Throws Error(kUnsupported) where the device cannot reach memory of a layer, or a graph should
  // capture a list that does not travel with the launch. REQUIRES: src is not empty.
  void enqueue(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
               std::span<const BlockCopy> copies, const Tokens& tokens, Stream stream);

 private:
  void convert(std::span<const LayerPair> layers, std::span<const BlockCopy> copies,
               const Tokens& tokens, Stream stream);
  void copy_records(std::span<const CopyPart> parts, std::span<const BlockCopy> copies,
                    Stream stream);
  void launch(KernelKind kernel, const void* args, std::int64_t num_units, int per_processor,
              Stream stream);

  GpuRuntime& runtime_;
  StagingRing& staging_;
};

}  // namespace quire::gpu

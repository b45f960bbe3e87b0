// SPDX-License-Identifier: Apache-2.0
// Every kernel instance, once, for every target: with_kernel turns a KernelId of the host into a
// type that says how it is launched and what it runs. docs/gpu.md argues their number.
#pragma once

#include <cstdint>
#include <type_traits>

#include "backends/gpu/gpu_runtime.h"
#include "gpu/kernel_args.h"
#include "gpu/kernels/append_rows.h"
#include "gpu/kernels/append_vectors.h"
#include "gpu/kernels/attend_rows.h"
#include "gpu/kernels/attend_stream.h"
#include "gpu/kernels/attend_tile.h"
#include "gpu/kernels/check_blocks.h"
#include "gpu/kernels/copy_blocks.h"
#include "gpu/kernels/copy_records.h"
#include "gpu/kernels/merge_partials.h"
#include "gpu/kernels/plan_items.h"
#include "gpu/kernels/rate_probes.h"

namespace quire::gpu {

// What a kernel says of itself unless it says otherwise. Where grids overlap, one that has
// prefetch(args) runs it before the last grid has ended: what it reads may be of yesterday. One
// that has starts_next(args) lets the next grid start itself if that is true.
struct KernelDefaults {
  static constexpr int kMinBlocks = 1;  // that a processor must hold: bounds the registers
};

struct PlanItemsKernel : KernelDefaults {
  using Args = PlanArgs;
  static constexpr int kThreads = kPlanThreads;
  static constexpr int kSharedBytes = sizeof(PlanShared);
  QUIRE_DEVICE static void run(const Args& args) { plan_items(args); }
};
struct CheckBlocksKernel : KernelDefaults {
  using Args = CheckArgs;
  static constexpr int kThreads = kCheckThreads;
  static constexpr int kSharedBytes = 0;
  QUIRE_DEVICE static void run(const Args& args) { check_blocks(args); }
};
struct AppendRowsKernel : KernelDefaults {
  using Args = AppendArgs;
  static constexpr int kThreads = kAppendThreads;
  static constexpr int kSharedBytes = 0;
  QUIRE_DEVICE static void run(const Args& args) { append_rows(args); }
};
template <bool kSetsScales>
struct AppendVectorsKernel : KernelDefaults {
  using Args = AppendArgs;
  static constexpr int kThreads = kAppendThreads;
  static constexpr int kSharedBytes = 0;
  static constexpr int kMinBlocks = 5;
  QUIRE_DEVICE static void prefetch(const Args& args) { prefetch_append<kSetsScales>(args); }
  QUIRE_DEVICE static void run(const Args& args) { append_vectors<kSetsScales>(args); }
};
struct CopyBlocksKernel : KernelDefaults {
  using Args = CopyArgs;
  static constexpr int kThreads = kCopyThreads;
  static constexpr int kSharedBytes = 0;
  QUIRE_DEVICE static void run(const Args& args) { copy_blocks(args); }
};
struct CopyRecordsKernel : KernelDefaults {
  using Args = CopyRecordArgs;
  static constexpr int kThreads = kCopyThreads;
  static constexpr int kSharedBytes = 0;
  static constexpr int kMinBlocks = 6;
  QUIRE_DEVICE static void run(const Args& args) { copy_records(args); }
};
struct MergePartialsKernel : KernelDefaults {
  using Args = MergeArgs;
  static constexpr int kThreads = kMergeThreads;
  static constexpr int kSharedBytes = 0;
  QUIRE_DEVICE static void run(const Args& args) { merge_partials(args); }
};
struct StreamBytesKernel : KernelDefaults {
  using Args = StreamBytesArgs;
  static constexpr int kThreads = kStreamBytesThreads;
  static constexpr int kSharedBytes = 0;
  QUIRE_DEVICE static void run(const Args& args) { stream_bytes(args); }
};
struct MultiplyRateKernel : KernelDefaults {
  using Args = MultiplyRateArgs;
  static constexpr int kThreads = kMultiplyThreads;
  static constexpr int kSharedBytes = 0;
  QUIRE_DEVICE static void run(const Args& args) { multiply_rate(args); }
};
struct AttendRowsKernel : KernelDefaults {
  using Args = AttendArgs;
  static constexpr int kThreads = kRowThreads;
  static constexpr int kSharedBytes = sizeof(RowShared);
  QUIRE_DEVICE static void run(const Args& args) { attend_rows(args); }
};
template <class Stored, int kDims, int kGroups>
struct AttendStreamKernel : KernelDefaults {
  using Args = AttendArgs;
  static constexpr int kThreads = StreamShape<Stored, kDims, kGroups>::kThreads;
  static constexpr int kSharedBytes = StreamShape<Stored, kDims, kGroups>::kSharedBytes;
  static constexpr int kMinBlocks = StreamShape<Stored, kDims, kGroups>::kMinBlocks;
  QUIRE_DEVICE static void prefetch(const Args& args) {
    prefetch_run<Stored, kDims, kGroups>(args);
  }
  QUIRE_DEVICE static bool starts_next(const Args& args) {
    return kOverlapsNext<kGroups> && args.ends_call;
  }
  QUIRE_DEVICE static void run(const Args& args) { attend_stream<Stored, kDims, kGroups>(args); }
};

template <class Stored, int kDims>
struct AttendTileKernel : KernelDefaults {
  using Args = AttendArgs;
  static constexpr int kThreads = TileShape<Stored, kDims>::kThreads;
  static constexpr int kSharedBytes = TileShape<Stored, kDims>::kSharedBytes;
  static constexpr int kMinBlocks = TileShape<Stored, kDims>::kMinBlocks;
  QUIRE_DEVICE static void run(const Args& args) { attend_tile<Stored, kDims>(args); }
};

// use(instance), where the instance's type is the kernel. Those for each of the 16-bit formats and
// those for 8-bit ones, Stored = AnyByte, are compiled apart from each other.
template <class Stored, int kDims, class Use>
auto with_kernel_of_dims(const KernelId& id, Use&& use) {
  switch (id.kind) {
    case KernelKind::kAttendFew:
      // Decode is worth its own instances: a branch for the format took 4 % of its time.
      if constexpr (std::is_same_v<Stored, AnyByte>) {
        switch (id.stored) {
          case DType::kI8:
            return use(AttendStreamKernel<std::int8_t, kDims, kFewRows / 8>{});
          case DType::kF8E5M2:
            return use(AttendStreamKernel<Float8E5M2, kDims, kFewRows / 8>{});
          default:
            return use(AttendStreamKernel<Float8E4M3, kDims, kFewRows / 8>{});
        }
      } else {
        return use(AttendStreamKernel<Stored, kDims, kFewRows / 8>{});
      }
    case KernelKind::kAttendStream:
      return use(AttendStreamKernel<Stored, kDims, kStreamRows / 8>{});
    default:
      return use(AttendTileKernel<Stored, kDims>{});
  }
}

template <class Stored, class Use>
auto with_stored_kernel(const KernelId& id, Use&& use) {
  switch (id.dims) {
    case 64:
      return with_kernel_of_dims<Stored, 64>(id, use);
    case 128:
      return with_kernel_of_dims<Stored, 128>(id, use);
    default:
      return with_kernel_of_dims<Stored, 256>(id, use);
  }
}

// Those that do not depend on the stored format.
template <class Use>
auto with_common_kernel(const KernelId& id, Use&& use) {
  switch (id.kind) {
    case KernelKind::kPlanItems:
      return use(PlanItemsKernel{});
    case KernelKind::kCheckBlocks:
      return use(CheckBlocksKernel{});
    case KernelKind::kAppendRows:
      return use(AppendRowsKernel{});
    case KernelKind::kAppendVectors:
      return use(AppendVectorsKernel<false>{});
    case KernelKind::kAppendScaled:
      return use(AppendVectorsKernel<true>{});
    case KernelKind::kCopyBlocks:
      return use(CopyBlocksKernel{});
    case KernelKind::kCopyRecords:
      return use(CopyRecordsKernel{});
    case KernelKind::kMergePartials:
      return use(MergePartialsKernel{});
    case KernelKind::kStreamBytes:
      return use(StreamBytesKernel{});
    case KernelKind::kMultiplyRate:
      return use(MultiplyRateKernel{});
    default:
      return use(AttendRowsKernel{});
  }
}

}  // namespace quire::gpu

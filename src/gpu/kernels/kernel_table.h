// SPDX-License-Identifier: Apache-2.0
// Every kernel instance, once, for every target: with_kernel turns a KernelId of the host into a
// type that says how it is launched and what it runs. docs/gpu.md argues their number.
#pragma once

#include <cstdint>

#include "backends/gpu/gpu_runtime.h"
#include "gpu/kernel_args.h"
#include "gpu/kernels/append_rows.h"
#include "gpu/kernels/attend_rows.h"
#include "gpu/kernels/attend_stream.h"
#include "gpu/kernels/attend_tile.h"
#include "gpu/kernels/check_blocks.h"
#include "gpu/kernels/copy_blocks.h"
#include "gpu/kernels/merge_partials.h"
#include "gpu/kernels/plan_items.h"

namespace quire::gpu {

struct PlanItemsKernel {
  using Args = PlanArgs;
  static constexpr int kThreads = kPlanThreads;
  static constexpr int kSharedBytes = sizeof(PlanShared);
  QUIRE_DEVICE static void run(const Args& args) { plan_items(args); }
};
struct CheckBlocksKernel {
  using Args = CheckArgs;
  static constexpr int kThreads = kCheckThreads;
  static constexpr int kSharedBytes = 0;
  QUIRE_DEVICE static void run(const Args& args) { check_blocks(args); }
};
struct AppendRowsKernel {
  using Args = AppendArgs;
  static constexpr int kThreads = kAppendThreads;
  static constexpr int kSharedBytes = 0;
  QUIRE_DEVICE static void run(const Args& args) { append_rows(args); }
};
struct CopyBlocksKernel {
  using Args = CopyArgs;
  static constexpr int kThreads = kCopyThreads;
  static constexpr int kSharedBytes = 0;
  QUIRE_DEVICE static void run(const Args& args) { copy_blocks(args); }
};
struct MergePartialsKernel {
  using Args = MergeArgs;
  static constexpr int kThreads = kMergeThreads;
  static constexpr int kSharedBytes = 0;
  QUIRE_DEVICE static void run(const Args& args) { merge_partials(args); }
};
struct AttendRowsKernel {
  using Args = AttendArgs;
  static constexpr int kThreads = kRowThreads;
  static constexpr int kSharedBytes = sizeof(RowShared);
  QUIRE_DEVICE static void run(const Args& args) { attend_rows(args); }
};
template <class Stored, int kDims>
struct AttendStreamKernel {
  using Args = AttendArgs;
  static constexpr int kThreads = kStreamThreads;
  static constexpr int kSharedBytes = StreamShape<Stored, kDims>::kSharedBytes;
  QUIRE_DEVICE static void run(const Args& args) { attend_stream<Stored, kDims>(args); }
};

template <class Stored, int kDims>
struct AttendTileKernel {
  using Args = AttendArgs;
  static constexpr int kThreads = kTileThreads;
  static constexpr int kSharedBytes = TileShape<Stored, kDims>::kSharedBytes;
  QUIRE_DEVICE static void run(const Args& args) { attend_tile<Stored, kDims>(args); }
};

// use(instance), where the instance's type is the kernel. The kernels for one stored format are
// compiled apart from those for the others.
template <class Stored, class Use>
auto with_stored_kernel(const KernelId& id, Use&& use) {
  const bool streams = id.kind == KernelKind::kAttendStream;
  switch (id.dims) {
    case 64:
      return streams ? use(AttendStreamKernel<Stored, 64>{}) : use(AttendTileKernel<Stored, 64>{});
    case 128:
      return streams ? use(AttendStreamKernel<Stored, 128>{})
                     : use(AttendTileKernel<Stored, 128>{});
    default:
      return streams ? use(AttendStreamKernel<Stored, 256>{})
                     : use(AttendTileKernel<Stored, 256>{});
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
    case KernelKind::kCopyBlocks:
      return use(CopyBlocksKernel{});
    case KernelKind::kMergePartials:
      return use(MergePartialsKernel{});
    default:
      return use(AttendRowsKernel{});
  }
}

}  // namespace quire::gpu

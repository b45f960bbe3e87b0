// SPDX-License-Identifier: Apache-2.0
// What this machine offers beside its CPU: GPUs, found without linking a library of theirs. What
// libraries of vendors there are, the plug-ins tell (plugin.h).
#pragma once

#include <string>
#include <vector>

namespace quire {

struct GpuProbe {
  std::string vendor;  // "nvidia", "amd"
  std::string name;
  std::string architecture;  // "sm_90", "gfx942"
  long long memory_bytes = 0;
};

struct SystemProbe {
  std::vector<GpuProbe> gpus;
  std::vector<std::string> gpu_reasons;  // one for each vendor without a usable device
};

// Opens the driver's library for the time of the call; nothing stays loaded.
SystemProbe probe_system();

}  // namespace quire

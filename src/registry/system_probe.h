// SPDX-License-Identifier: Apache-2.0
// What this machine offers beside its CPU: GPUs and vendor libraries, found without linking them.
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

// A library that a backend could use. Absent ones carry the reason.
struct LibraryProbe {
  std::string name;
  bool found = false;
  std::string version;  // empty where the library does not tell
  std::string reason;   // of the dynamic loader, where not found
};

struct SystemProbe {
  std::vector<GpuProbe> gpus;
  std::vector<std::string> gpu_reasons;  // one for each vendor without a usable device
  std::vector<LibraryProbe> libraries;
};

// Opens driver and vendor libraries for the time of the call; nothing stays loaded.
SystemProbe probe_system();

}  // namespace quire

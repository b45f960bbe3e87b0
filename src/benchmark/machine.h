// SPDX-License-Identifier: Apache-2.0
// What figures depend on: the processor, its caches, the memory, the system.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/cpu_features.h"

namespace quire::benchmark {

struct Machine {
  CpuFeatures cpu;
  std::int64_t last_level_cache_bytes = 0;  // all instances that this process's CPUs reach
  std::int64_t memory_bytes = 0;
  double load_average = 0;  // of the last minute
  std::string kernel;       // "Linux 6.1.0"
  std::string compiler;     // of quire
  std::string date;         // UTC, ISO 8601
};

Machine detect_machine();

// What may still be allocated: of the system, and of the control group if that is less.
std::int64_t available_memory_bytes();

// "48K", "32768K", "2M" as sysfs writes them; 0 for anything else.
std::int64_t parse_cache_size(std::string_view text) noexcept;

}  // namespace quire::benchmark

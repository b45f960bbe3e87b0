// SPDX-License-Identifier: Apache-2.0
#include "benchmark/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

#include "base/check.h"

namespace quire::benchmark {
namespace {

std::string first_word(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

// A line "name: value kB" of /proc/meminfo.
std::int64_t meminfo_bytes(std::string_view name) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(name, 0) != 0) continue;
    std::istringstream rest(line.substr(line.find(':') + 1));
    std::int64_t kilobytes = 0;
    rest >> kilobytes;
    return kilobytes * 1024;
  }
  return 0;
}

std::int64_t number_in(const std::string& path) {
  const std::string word = first_word(path);
  std::int64_t value = 0;
  const auto result = std::from_chars(word.data(), word.data() + word.size(), value);
  return result.ec == std::errc{} ? value : -1;  // absent, or "max"
}

// Each instance of the highest level once: sysfs names the CPUs that share it.
std::int64_t sysfs_last_level_cache() {
  std::map<std::string, std::int64_t> instances;  // CPUs -> bytes
  std::int64_t highest = 0;
  const long num_cpus = sysconf(_SC_NPROCESSORS_CONF);
  for (long cpu = 0; cpu < num_cpus; ++cpu) {
    for (int index = 0; index < 8; ++index) {
      const std::string folder =
          concat("/sys/devices/system/cpu/cpu", cpu, "/cache/index", index, "/");
      const std::int64_t level = number_in(folder + "level");
      if (level < 0) break;
      if (first_word(folder + "type") == "Instruction" || level < highest) continue;
      if (level > highest) instances.clear();
      highest = level;
      instances[first_word(folder + "shared_cpu_list")] =
          parse_cache_size(first_word(folder + "size"));
    }
  }
  std::int64_t sum = 0;
  for (const auto& [cpus, bytes] : instances) sum += bytes;
  return sum;
}

std::int64_t last_level_cache() {
  constexpr std::int64_t kUsual = 32 << 20;
  if (const std::int64_t bytes = sysfs_last_level_cache(); bytes > 0) return bytes;
  const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);  // by CPUID
  return bytes > 0 ? bytes : kUsual;
}

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

}  // namespace

Machine detect_machine() {
  Machine machine;
  machine.cpu = detect_cpu_features();
  machine.last_level_cache_bytes = last_level_cache();
  machine.memory_bytes = meminfo_bytes("MemTotal");
  if (double load = 0; getloadavg(&load, 1) == 1) machine.load_average = load;
  utsname system{};
  if (uname(&system) == 0) machine.kernel = concat(system.sysname, " ", system.release);
#if defined(__clang__)
  machine.compiler = concat("clang ", __clang_major__, ".", __clang_minor__);
#else
  machine.compiler = concat("gcc ", __GNUC__, ".", __GNUC_MINOR__);
#endif
  machine.date = now_utc();
  return machine;
}

std::int64_t available_memory_bytes() {
  std::int64_t available = meminfo_bytes("MemAvailable");
  if (available <= 0) available = std::numeric_limits<std::int64_t>::max();
  const std::int64_t limit = number_in("/sys/fs/cgroup/memory.max");
  const std::int64_t used = number_in("/sys/fs/cgroup/memory.current");
  if (limit > 0 && used >= 0)
    available = std::min(available, std::max<std::int64_t>(0, limit - used));
  return available;
}

std::int64_t parse_cache_size(std::string_view text) noexcept {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || value < 0) return 0;
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  if (unit == "K") return value << 10;
  if (unit == "M") return value << 20;
  if (unit == "G") return value << 30;
  return unit.empty() ? value : 0;
}

}  // namespace quire::benchmark

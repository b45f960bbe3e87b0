// SPDX-License-Identifier: Apache-2.0
#include "registry/system_probe.h"

#include <dlfcn.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

namespace quire {
namespace {

struct CloseLibrary {
  void operator()(void* handle) const noexcept { dlclose(handle); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

Library open_library(const char* soname, std::string& reason) {
  Library library(dlopen(soname, RTLD_LAZY | RTLD_LOCAL));
  if (!library) {
    const char* message = dlerror();
    reason = message != nullptr ? message : std::string(soname) + " cannot be loaded";
    // The usual case, in words of a length for a table.
    if (reason.find("No such file") != std::string::npos)
      reason = std::string(soname) + " not found";
  }
  return library;
}

template <class Function>
Function symbol(const Library& library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library.get(), name));
}

// The driver API, by its C names: every CUDA version since 4 exports these.
void probe_nvidia(SystemProbe& probe) {
  std::string reason;
  const Library driver = open_library("libcuda.so.1", reason);
  if (!driver) {
    probe.gpu_reasons.push_back("nvidia: " + reason);
    return;
  }
  const auto init = symbol<int (*)(unsigned)>(driver, "cuInit");
  const auto count = symbol<int (*)(int*)>(driver, "cuDeviceGetCount");
  const auto name = symbol<int (*)(char*, int, int)>(driver, "cuDeviceGetName");
  const auto attribute = symbol<int (*)(int*, int, int)>(driver, "cuDeviceGetAttribute");
  const auto memory = symbol<int (*)(std::size_t*, int)>(driver, "cuDeviceTotalMem_v2");
  if (!init || !count || !name || !attribute || !memory) {
    probe.gpu_reasons.emplace_back("nvidia: libcuda.so.1 lacks the driver API");
    return;
  }
  int devices = 0;
  if (const int status = init(0); status != 0) {
    probe.gpu_reasons.push_back("nvidia: cuInit returned " + std::to_string(status));
    return;
  }
  if (count(&devices) != 0 || devices == 0) {
    probe.gpu_reasons.emplace_back("nvidia: the driver reports no device");
    return;
  }
  constexpr int kCapabilityMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, then MINOR
  for (int i = 0; i < devices; ++i) {
    std::array<char, 256> text{};
    int major = 0;
    int minor = 0;
    std::size_t bytes = 0;
    if (name(text.data(), static_cast<int>(text.size()) - 1, i) != 0) continue;
    if (attribute(&major, kCapabilityMajor, i) != 0) continue;
    if (attribute(&minor, kCapabilityMajor + 1, i) != 0 || memory(&bytes, i) != 0) continue;
    probe.gpus.push_back({.vendor = "nvidia",
                          .name = text.data(),
                          .architecture = "sm_" + std::to_string(major) + std::to_string(minor),
                          .memory_bytes = static_cast<long long>(bytes)});
  }
}

// The kernel driver lists its devices in sysfs: no runtime library is needed to see them.
void probe_amd(SystemProbe& probe) {
  namespace fs = std::filesystem;
  const fs::path nodes = "/sys/class/kfd/kfd/topology/nodes";
  std::error_code error;
  const std::size_t before = probe.gpus.size();
  for (fs::directory_iterator it(nodes, error), end; !error && it != end; it.increment(error)) {
    std::ifstream properties(it->path() / "properties");
    std::string key;
    long long value = 0;
    long long target = 0;
    while (properties >> key >> value) {
      if (key == "gfx_target_version") target = value;
    }
    if (target == 0) continue;  // a CPU node
    std::ostringstream architecture;
    architecture << "gfx" << target / 10000 << (target / 100) % 100 << std::hex << target % 100;
    probe.gpus.push_back(
        {.vendor = "amd", .name = "", .architecture = architecture.str(), .memory_bytes = 0});
  }
  if (probe.gpus.size() == before) {
    probe.gpu_reasons.emplace_back("amd: no device in " + nodes.string());
  }
}

}  // namespace

SystemProbe probe_system() {
  SystemProbe probe;
  probe_nvidia(probe);
  probe_amd(probe);
  return probe;
}

}  // namespace quire

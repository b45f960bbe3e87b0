// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/cuda_probe.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <caffe2/core/common.h>
#include <dlfcn.h>
#include <link.h>

#include <exception>
#include <memory>
#include <string_view>
#include <vector>

#include "backends/torch/cuda_memory.h"
#include "base/check.h"

namespace quire::torch_sdpa {
namespace {

struct CloseLibrary {
  void operator()(void* library) const noexcept { dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

std::string loader_message() {
  const char* message = dlerror();
  return message != nullptr ? message : "the dynamic loader gives no reason";
}

bool is_built_with_cuda() {
  const auto& options = caffe2::GetBuildOptions();
  const auto found = options.find("USE_CUDA");
  if (found == options.end()) return true;  // the loader will tell
  return !found->second.empty() && found->second != "0" && found->second != "OFF";
}

// "libcublas" of a path of "libcublas.so.13".
std::string stem_of(std::string_view path) {
  path.remove_prefix(path.rfind('/') + 1);
  return std::string(path.substr(0, path.find('.')));
}

}  // namespace

std::string missing_in_driver(const char* library) {
  // It stays: a driver that has started has threads.
  const Library driver(dlopen(library, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE));
  if (!driver) return loader_message();
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver.get(), "cuInit"));
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(driver.get(), "cuDeviceGetCount"));
  if (init == nullptr) return concat(library, " has no cuInit");
  if (count == nullptr) return concat(library, " has no cuDeviceGetCount");
  constexpr int kStubLibrary = 34;
  constexpr int kNoDevice = 100;
  const int result = init(0);
  if (result == kStubLibrary) return concat(library, " is the stub of a toolkit, not a driver");
  if (result == kNoDevice) return "the driver sees no device";
  if (result != 0) return concat("the driver does not start: cuInit returns ", result);
  int num_devices = 0;
  if (const int counted = count(&num_devices); counted != 0) {
    return concat("the driver does not count devices: cuDeviceGetCount returns ", counted);
  }
  return num_devices > 0 ? "" : "the driver sees no device";
}

std::string stand_in_among(void* handle) {
  std::vector<std::string> stems;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* list) {
        if (info->dlpi_name != nullptr && *info->dlpi_name != '\0') {
          static_cast<std::vector<std::string>*>(list)->push_back(stem_of(info->dlpi_name));
        }
        return 0;
      },
      &stems);
  for (const std::string& stem : stems) {
    if (dlsym(handle, ("quire_stub_" + stem).c_str()) != nullptr) return stem;
  }
  return {};
}

std::string missing_for_cuda() {
  if (!is_built_with_cuda()) return "this torch was built without CUDA";
  // Torch's library is large: not where there is no driver.
  if (std::string missing = missing_in_driver("libcuda.so.1"); !missing.empty()) return missing;
  // Registers itself with torch when it is loaded, and stays: torch keeps pointers into it.
  void* const library = dlopen(kTorchCudaLibrary, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return loader_message();
  if (const std::string name = stand_in_among(library); !name.empty()) {
    return concat(name, " is a stand-in that only lets torch be loaded");
  }
  try {
    if (!at::hasCUDA()) return "torch finds no CUDA device";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return missing_in_cuda_runtime();
}

}  // namespace quire::torch_sdpa

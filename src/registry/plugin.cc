// SPDX-License-Identifier: Apache-2.0
#include "registry/plugin.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <system_error>

#include "base/check.h"
#include "base/hidden_tiles.h"

// The build defines QUIRE_LIBDIR ("lib/x86_64-linux-gnu") and QUIRE_INSTALLED_LIBDIR, the same
// below the prefix, where there are install rules.

namespace quire {
namespace {

namespace fs = std::filesystem;

struct CloseLibrary {
  void operator()(void* handle) const noexcept { dlclose(handle); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

// The folder of the shared object or program that holds this function; empty if it is not known.
fs::path own_folder() {
  Dl_info info{};
  void* extra = nullptr;
  const auto* address = reinterpret_cast<const void*>(&plugin_folders);
  if (dladdr1(address, &info, &extra, RTLD_DL_LINKMAP) == 0 || extra == nullptr) return {};
  // The program itself has no name there, and argv[0] need not be a path.
  const char* name = static_cast<const link_map*>(extra)->l_name;
  const bool is_program = name == nullptr || *name == '\0';
  std::error_code error;
  const fs::path file = fs::canonical(is_program ? "/proc/self/exe" : name, error);
  return error ? fs::path() : file.parent_path();
}

std::vector<std::string> split_path(std::string_view text) {
  std::vector<std::string> folders;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(':'), text.size());
    if (end > 0) folders.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return folders;
}

std::string file_name(std::string_view name) {
  return concat("libquire_", name, ".so");
}

// The loader's words, the usual case of an absent library cut to what a table has room for:
// "libx.so.1: cannot open shared object file: No such file or directory".
std::string loader_message() {
  const char* message = dlerror();
  std::string text = message != nullptr ? message : "the dynamic loader gives no reason";
  const std::size_t colon = text.find(':');
  if (colon != std::string::npos && text.find("No such file") != std::string::npos) {
    text = text.substr(0, colon) + " not found";
  }
  return text;
}

PluginLoad refused(const std::string& file, const std::string& reason) {
  return {.entry = nullptr, .reason = concat(file, ": ", reason)};
}

PluginLoad load_file(const std::string& file) {
  keep_onednn_from_hidden_tiles();
  const Library library(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (!library) {
    const std::string reason = loader_message();
    // Some messages begin with the file themselves.
    return reason.starts_with(file) ? PluginLoad{.entry = nullptr, .reason = reason}
                                    : refused(file, reason);
  }
  const auto function = reinterpret_cast<PluginFunction>(dlsym(library.get(), kPluginSymbol));
  if (function == nullptr) return refused(file, concat("exports no ", kPluginSymbol));
  const PluginEntry* entry = function();
  if (entry == nullptr || entry->abi == nullptr) return refused(file, "has no entry");
  if (const std::string own = plugin_abi(); entry->abi != own) {
    return refused(file, concat("built for '", entry->abi, "', this is '", own, "'"));
  }
  if (entry->size_bytes != sizeof(PluginEntry)) {
    return refused(
        file, concat("has an entry of ", entry->size_bytes, " bytes, not ", sizeof(PluginEntry)));
  }
  if (entry->probe == nullptr || entry->isa_levels == nullptr || entry->make == nullptr) {
    return refused(file, "has an entry that lacks a function");
  }
  // It stays: what it made may outlive every count of ours.
  if (dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) == nullptr) {
    return refused(file, loader_message());
  }
  return {.entry = entry, .reason = {}};
}

}  // namespace

std::vector<std::string> plugin_folders() {
  if (const char* path = secure_getenv("QUIRE_PLUGIN_PATH"); path != nullptr) {
    return split_path(path);
  }
  std::vector<std::string> folders;
  const auto add = [&folders](const fs::path& folder) {
    const std::string text = folder.lexically_normal().string();
    if (std::find(folders.begin(), folders.end(), text) == folders.end()) folders.push_back(text);
  };
  if (const fs::path own = own_folder(); !own.empty()) {
    add(own);
    add(own / "quire");
    add(own / "lib/quire");
    add(own / "../lib/quire");
#ifdef QUIRE_LIBDIR
    add(own / ".." / QUIRE_LIBDIR / "quire");
#endif
  }
#ifdef QUIRE_INSTALLED_LIBDIR
  add(fs::path(QUIRE_INSTALLED_LIBDIR) / "quire");
#endif
  return folders;
}

PluginLoad load_plugin(std::string_view name) {
  const std::string file = file_name(name);
  const std::vector<std::string> folders = plugin_folders();
  std::string searched;
  for (const std::string& folder : folders) {
    const fs::path path = fs::path(folder) / file;
    std::error_code error;
    if (fs::exists(path, error)) return load_file(path.string());
    searched += concat(searched.empty() ? "" : ", ", folder);
  }
  return {.entry = nullptr,
          .reason = folders.empty() ? concat("not built: no folder to look for ", file, " in")
                                    : concat("not built: there is no ", file, " in ", searched)};
}

Availability probe_plugin(std::string_view name) {
  const PluginLoad load = load_plugin(name);
  if (load.entry == nullptr) return {.available = false, .version = {}, .reasons = {load.reason}};
  try {
    return load.entry->probe();
  } catch (const std::exception& error) {
    return {.available = false, .version = {}, .reasons = {error.what()}};
  }
}

std::vector<std::string> plugin_isa_levels(std::string_view name) {
  const PluginLoad load = load_plugin(name);
  return load.entry != nullptr ? load.entry->isa_levels() : std::vector<std::string>();
}

std::unique_ptr<AttentionBackend> make_plugin(std::string_view name,
                                              const BackendOptions& options) {
  const PluginLoad load = load_plugin(name);
  if (load.entry == nullptr) {
    fail(ErrorCode::kUnsupported, "backend ", name, " cannot be used here: ", load.reason);
  }
  return load.entry->make(options);
}

std::unique_ptr<DeviceMeter> make_plugin_meter(std::string_view name) {
  const PluginLoad load = load_plugin(name);
  if (load.entry == nullptr || load.entry->make_meter == nullptr) return nullptr;
  return load.entry->make_meter();
}

}  // namespace quire

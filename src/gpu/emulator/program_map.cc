// SPDX-License-Identifier: Apache-2.0
#include "gpu/emulator/program_map.h"

#include <fcntl.h>
#include <link.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <sstream>

#include "base/check.h"

namespace quire::simt::internal {
namespace {

struct Module {
  std::string path;
  std::uintptr_t base = 0;
};

// The module whose code holds `address`; an empty path where none does.
Module module_of(std::uintptr_t address) {
  struct Search {
    std::uintptr_t address;
    Module found;
  } search{address, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& wanted = *static_cast<Search*>(data);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& header = info->dlpi_phdr[i];
          const std::uintptr_t begin = info->dlpi_addr + header.p_vaddr;
          if (header.p_type != PT_LOAD || wanted.address - begin >= header.p_memsz) continue;
          const bool is_program = info->dlpi_name == nullptr || *info->dlpi_name == '\0';
          wanted.found = {is_program ? "/proc/self/exe" : info->dlpi_name, info->dlpi_addr};
          return 1;
        }
        return 0;
      },
      &search);
  return search.found;
}

// What `arguments` prints; empty where it cannot be run. The program is looked for in PATH.
std::string output_of(const std::vector<std::string>& arguments) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return {};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t child = 0;
  const int failed = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string output;
  if (failed == 0) {
    std::array<char, 4096> chunk{};
    ssize_t num_read = 0;
    while ((num_read = read(ends[0], chunk.data(), chunk.size())) > 0) {
      output.append(chunk.data(), static_cast<std::size_t>(num_read));
    }
    int status = 0;
    waitpid(child, &status, 0);
  }
  close(ends[0]);
  return output;
}

std::string file_name(const std::string& path) {
  return path.substr(path.find_last_of('/') + 1);
}

// As describe_code, asking the tool.
std::string look_up_code(const void* return_address) {
  // The call is before the address it returns to.
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(return_address) - 1;
  const Module module = module_of(address);
  if (module.path.empty()) return concat("address 0x", std::hex, address);
  std::array<char, 4096> path{};
  const ssize_t length = readlink(module.path.c_str(), path.data(), path.size() - 1);
  const std::string file = length > 0 ? std::string(path.data()) : module.path;
  const std::string offset = concat("0x", std::hex, address - module.base);
  const std::string fallback = concat(file_name(file), "+", offset);

  // Function and place in turns, the innermost inlined function first.
  std::istringstream lines(output_of({"addr2line", "-C", "-f", "-i", "-e", file, offset}));
  std::string innermost;
  std::string function;
  std::string place;
  std::string words;
  while (std::getline(lines, function) && std::getline(lines, place)) {
    if (place.starts_with("?")) break;
    if (place.find("gpu/emulator/launch.h:") != std::string::npos) break;  // no longer the kernel
    if (words.empty()) innermost = function;
    const std::size_t note = place.find(" (discriminator");
    words += concat(words.empty() ? " at " : ", inlined at ", file_name(place.substr(0, note)));
  }
  return words.empty() ? fallback : innermost + words;
}

}  // namespace

void ProgramMap::load() {
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& segments = *static_cast<std::vector<Segment>*>(data);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& header = info->dlpi_phdr[i];
          const std::uintptr_t begin = info->dlpi_addr + header.p_vaddr;
          // Constants that needed relocation lie in a segment that was writable until then.
          const bool relocated = header.p_type == PT_GNU_RELRO;
          if (header.p_type != PT_LOAD && !relocated) continue;
          const bool constant = relocated || (header.p_flags & PF_W) == 0;
          segments.push_back({begin, begin + header.p_memsz, constant});
        }
        return 0;
      },
      &segments_);
  // The part that became constant is found before the segment that it is a part of.
  std::stable_partition(segments_.begin(), segments_.end(),
                        [](const Segment& segment) { return segment.constant; });
}

ProgramMemory ProgramMap::classify(std::uintptr_t address) {
  if (segments_.empty()) load();
  const auto holds = [address](const Segment& segment) {
    return address >= segment.begin && address < segment.end;
  };
  if (!holds(segments_[last_]) || !segments_[last_].constant) {
    const auto found = std::find_if(segments_.begin(), segments_.end(), holds);
    if (found == segments_.end()) return ProgramMemory::kNone;
    last_ = static_cast<std::size_t>(found - segments_.begin());
  }
  return segments_[last_].constant ? ProgramMemory::kConstant : ProgramMemory::kVariable;
}

std::string describe_code(const void* return_address) {
  static std::mutex mutex;
  static std::map<const void*, std::string> known;
  const std::lock_guard lock(mutex);
  const auto [entry, added] = known.try_emplace(return_address);
  if (added) entry->second = look_up_code(return_address);
  return entry->second;
}

}  // namespace quire::simt::internal

// SPDX-License-Identifier: Apache-2.0
#include "cli/output_file.h"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <system_error>

namespace quire::cli {
namespace {

constexpr std::size_t kMaxFiles = 8;
constexpr std::size_t kMaxPath = 4096;

// Names of unfinished files, for the handler: it may run at any moment, so `is_used` is set last
// and cleared first.
struct Unfinished {
  char path[kMaxPath];
  volatile std::sig_atomic_t is_used;
};
std::array<Unfinished, kMaxFiles> unfinished;

extern "C" void remove_unfinished(int signal_number) {
  for (const Unfinished& file : unfinished) {
    if (file.is_used != 0) static_cast<void>(unlink(file.path));
  }
  static_cast<void>(std::signal(signal_number, SIG_DFL));
  static_cast<void>(std::raise(signal_number));
}

std::size_t remember(const std::string& path) {
  if (path.size() >= kMaxPath) throw std::runtime_error(path + ": the name is too long");
  // SIGPIPE: nobody reads standard output any more. SIGXFSZ: the file has become too large.
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT, SIGXFSZ}) {
    if (std::signal(number, remove_unfinished) == SIG_IGN) {
      static_cast<void>(std::signal(number, SIG_IGN));
    }
  }
  for (std::size_t slot = 0; slot < kMaxFiles; ++slot) {
    if (unfinished[slot].is_used != 0) continue;
    std::memcpy(unfinished[slot].path, path.c_str(), path.size() + 1);
    unfinished[slot].is_used = 1;
    return slot;
  }
  throw std::runtime_error("too many files are written at once");
}

[[noreturn]] void fail(const std::string& path, int error = errno) {
  const std::string reason = error == 0 ? "" : ": " + std::generic_category().message(error);
  throw std::runtime_error(path + ": cannot be written" + reason);
}

// What a name leads to, so that a link stays one.
std::string target_of(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path target = std::filesystem::canonical(path, ignored);
  return ignored ? path : target.string();
}

// A device or a pipe is written to; a rename would take its place.
bool is_written_in_place(const std::string& path) {
  std::error_code ignored;
  const auto type = std::filesystem::status(path, ignored).type();
  return type == std::filesystem::file_type::character ||
         type == std::filesystem::file_type::block || type == std::filesystem::file_type::fifo ||
         type == std::filesystem::file_type::socket;
}

}  // namespace

OutputFile::OutputFile(const std::string& path) : path_(target_of(path)) {
  if (path.empty()) fail("''", ENOENT);
  std::error_code ignored;
  if (std::filesystem::is_directory(path_, ignored)) fail(path, EISDIR);  // before the work is done
  if (is_written_in_place(path_)) {
    errno = 0;
    stream_.open(path_, std::ios::binary | std::ios::out);
    if (!stream_) fail(path_);
    return;
  }
  temporary_ = fmt::format("{}.{}.tmp", path_, getpid());
  slot_ = remember(temporary_);
  errno = 0;
  stream_.open(temporary_, std::ios::binary | std::ios::trunc);
  if (!stream_) {
    unfinished[slot_].is_used = 0;
    fail(path_);
  }
}

OutputFile::~OutputFile() {
  if (is_done_ || temporary_.empty()) return;
  stream_.close();
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
  unfinished[slot_].is_used = 0;
}

void OutputFile::commit() {
  errno = 0;
  stream_.close();
  if (!stream_) fail(path_);
  if (temporary_.empty()) {
    is_done_ = true;
    return;
  }
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_);
  unfinished[slot_].is_used = 0;
  is_done_ = true;
}

}  // namespace quire::cli

// SPDX-License-Identifier: Apache-2.0
// A file that appears whole or not at all: it is written under another name and renamed at the end.
// What is unfinished is removed, also when a signal ends the process. Not thread-safe.
#pragma once

#include <cstddef>
#include <fstream>
#include <ostream>
#include <string>

namespace quire::cli {

class OutputFile {
 public:
  // Throws naming the path if nothing can be written there.
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  std::ostream& stream() noexcept { return stream_; }
  // Now it is there. Throws if something could not be written.
  void commit();

 private:
  std::string path_;
  std::string temporary_;
  std::size_t slot_ = 0;  // of the names that a signal removes
  std::ofstream stream_;
  bool is_done_ = false;
};

}  // namespace quire::cli

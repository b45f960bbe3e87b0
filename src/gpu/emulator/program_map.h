// SPDX-License-Identifier: Apache-2.0
// What of the program's own memory an address belongs to, and the words for a place in its code.
//
// Thread safety: ProgramMap belongs to one launch; describe_code may be called from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace quire::simt::internal {

enum class ProgramMemory : std::uint8_t { kNone, kConstant, kVariable };

// The loaded segments of the program and its libraries, read when the first address is asked for.
class ProgramMap {
 public:
  ProgramMemory classify(std::uintptr_t address);

 private:
  struct Segment {
    std::uintptr_t begin;
    std::uintptr_t end;
    bool constant;
  };
  void load();

  std::vector<Segment> segments_;
  std::size_t last_ = 0;
};

// "kernel(Params) at kernel.cc:42, in launch.cc:10" by addr2line for a return address, or the
// module and the offset in it where there is no such tool or no debug information.
std::string describe_code(const void* return_address);

}  // namespace quire::simt::internal

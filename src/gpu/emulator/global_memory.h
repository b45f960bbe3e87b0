// SPDX-License-Identifier: Apache-2.0
// The registered buffers as one launch sees them: a sorted list taken when it starts. Buffers that
// kernels may write have a history of every byte, made page by page where it is touched and dropped
// with the launch; which bytes of a buffer are defined outlives it (launch.h: Contents).
//
// Thread safety: none; one launch owns it. The list of the process behind it has a lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu/emulator/access_history.h"
#include "gpu/emulator/launch.h"

namespace quire::simt::internal {

// A registered buffer, shared by the process's list and the launches.
struct RegisteredBuffer {
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
  std::string name;
  Access access = Access::kReadOnly;
  std::vector<std::uint8_t> defined;  // [bytes] 0 or 1, empty: all of it is
};

class GlobalMemory {
 public:
  static constexpr std::size_t kPageBytes = 1024;
  struct Buffer {
    std::shared_ptr<RegisteredBuffer> registered;
    std::vector<std::unique_ptr<WordHistory[]>> pages;  // [bytes / kPageBytes], null: untouched
  };

  GlobalMemory();

  // The buffer that holds `address`, null where none does.
  Buffer* find(std::uintptr_t address);
  // "8 bytes past the end of out (4096 bytes)": the buffer next to an address of no buffer; empty
  // where there are none.
  std::string describe(std::uintptr_t address) const;
  // The words of page `index` of a buffer.
  static WordHistory* page(Buffer& buffer, std::size_t index);

 private:
  std::vector<Buffer> buffers_;  // by begin
  std::size_t last_ = 0;         // where the last address was found
};

}  // namespace quire::simt::internal

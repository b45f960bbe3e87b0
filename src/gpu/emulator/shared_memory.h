// SPDX-License-Identifier: Apache-2.0
// The shared memory of the block that runs: one arena with the dynamic part first and the static
// variables behind it, each followed by a gap that belongs to nobody. Every byte has an owner, so
// that an overrun into a neighbour is seen, and a history. Variables keep their place from block to
// block; their contents and histories do not.
//
// Thread safety: none; one launch owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu/emulator/access_history.h"

namespace quire::simt::internal {

class SharedMemory {
 public:
  static constexpr std::size_t kAlignment = 1024;
  // What a byte holds before anybody wrote it: a NaN in every floating-point format.
  static constexpr unsigned char kUndefinedByte = 0xff;

  // `keep_histories`: whether history() will be called.
  SharedMemory(std::size_t dynamic_bytes, std::size_t limit_bytes, bool keep_histories);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Undefined contents and empty histories. REQUIRES: block > 0, another one than the last.
  void begin_block(std::uint32_t block);

  void* dynamic() const { return arena_ + kGapBytes; }
  // The place of the variable that `key` stands for; null where the limit is passed.
  void* variable(const void* key, std::size_t bytes, std::size_t alignment, const char* name);

  bool contains(std::uintptr_t address) const { return address - begin() < arena_bytes_; }
  // Whether all of [address, address + bytes) belongs to one variable. REQUIRES: contains(address).
  bool allocated(std::uintptr_t address, std::size_t bytes) const;
  // "12 bytes past the end of shared variable sums (128 bytes)". REQUIRES: contains(address).
  std::string describe(std::uintptr_t address) const;

  // The words of the variable at `address`, and the address's place among their bytes. Those of
  // `bytes` that belong to another block are made new. REQUIRES: allocated.
  struct Place {
    WordHistory* words;
    std::size_t begin;
  };
  Place history(std::uintptr_t address, std::size_t bytes);
  std::size_t used_bytes() const { return used_bytes_; }

 private:
  // Wider than most steps by which a kernel overruns, a multiple of kAlignment.
  static constexpr std::size_t kGapBytes = 1024;
  struct Variable {
    const void* key;
    std::string name;
    std::size_t offset;
    std::size_t bytes;
    std::vector<WordHistory> histories = {};  // [bytes / kWordBytes], or empty
  };

  std::uintptr_t begin() const { return reinterpret_cast<std::uintptr_t>(arena_); }
  void allocate(Variable variable);

  std::size_t limit_bytes_;
  std::size_t arena_bytes_;
  unsigned char* arena_;
  bool keep_histories_;
  std::uint32_t block_ = 0;
  std::vector<std::uint8_t> owners_;  // [arena byte]: 1 + index of the variable, 0: nobody
  std::vector<Variable> variables_;   // [0] is the dynamic part
  std::size_t used_bytes_ = 0;
};

}  // namespace quire::simt::internal

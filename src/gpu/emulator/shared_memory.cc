// SPDX-License-Identifier: Apache-2.0
#include "gpu/emulator/shared_memory.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/check.h"
#include "gpu/emulator/address_sanitizer.h"

namespace quire::simt::internal {
namespace {

// Static variables of a kernel: more would be a sign that their keys are not stable.
constexpr std::size_t kMaxVariables = 32;

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

SharedMemory::SharedMemory(std::size_t dynamic_bytes, std::size_t limit_bytes, bool keep_histories)
    : limit_bytes_(limit_bytes), keep_histories_(keep_histories) {
  require(dynamic_bytes <= limit_bytes, "dynamic shared memory: ", dynamic_bytes,
          " bytes, the limit is ", limit_bytes);
  arena_bytes_ = round_up(limit_bytes, kAlignment) + (kMaxVariables + 1) * (kGapBytes + kAlignment);
  arena_ = static_cast<unsigned char*>(::operator new (arena_bytes_, std::align_val_t{kAlignment}));
  poison(arena_, arena_bytes_);
  owners_.resize(arena_bytes_);
  allocate({nullptr, "dynamic shared memory", kGapBytes, dynamic_bytes});
}

SharedMemory::~SharedMemory() {
  unpoison(arena_, arena_bytes_);
  ::operator delete (arena_, std::align_val_t{kAlignment});
}

void SharedMemory::allocate(Variable variable) {
  unsigned char* const place = arena_ + variable.offset;
  unpoison(place, variable.bytes);
  std::memset(place, kUndefinedByte, variable.bytes);
  if (keep_histories_) {
    variable.histories.resize((variable.bytes + kWordBytes - 1) / kWordBytes);
  }
  variables_.push_back(std::move(variable));
  const Variable& added = variables_.back();
  for (std::size_t i = 0; i < added.bytes; ++i) {
    owners_[added.offset + i] = static_cast<std::uint8_t>(variables_.size());
  }
  used_bytes_ += added.bytes;
}

void SharedMemory::begin_block(std::uint32_t block) {
  block_ = block;
  for (const Variable& variable : variables_) {
    std::memset(arena_ + variable.offset, kUndefinedByte, variable.bytes);
  }
}

void* SharedMemory::variable(const void* key, std::size_t bytes, std::size_t alignment,
                             const char* name) {
  for (const Variable& known : variables_) {
    if (known.key == key) return arena_ + known.offset;
  }
  if (used_bytes_ + bytes > limit_bytes_ || variables_.size() > kMaxVariables ||
      alignment > kAlignment) {
    return nullptr;
  }
  const Variable& last = variables_.back();
  const std::size_t offset =
      round_up(last.offset + last.bytes + kGapBytes, std::max(alignment, kWordBytes));
  allocate({key, std::string("shared variable ") + name, offset, bytes});
  return arena_ + offset;
}

bool SharedMemory::allocated(std::uintptr_t address, std::size_t bytes) const {
  const std::size_t first = address - begin();
  if (first + bytes > arena_bytes_) return false;
  const std::uint8_t owner = owners_[first];
  return owner != 0 && (bytes == 0 || owners_[first + bytes - 1] == owner);
}

SharedMemory::Place SharedMemory::history(std::uintptr_t address, std::size_t bytes) {
  const std::size_t offset = address - begin();
  Variable& variable = variables_[owners_[offset] - 1U];
  const Place place{variable.histories.data(), offset - variable.offset};
  const std::size_t last = (place.begin + bytes - 1) / kWordBytes;
  for (std::size_t i = place.begin / kWordBytes; i <= last; ++i) {
    WordHistory& word = place.words[i];
    if (word.block != block_) word = {.whole = {}, .split = 0, .block = block_};
  }
  return place;
}

std::string SharedMemory::describe(std::uintptr_t address) const {
  const std::size_t offset = address - begin();
  const Variable* nearest = nullptr;
  std::size_t distance = 0;
  const char* relation = "";
  for (const Variable& variable : variables_) {
    const std::size_t end = variable.offset + variable.bytes;
    const bool before = offset < variable.offset;
    const bool inside = !before && offset < end;
    const std::size_t apart =
        before ? variable.offset - offset : offset - (inside ? variable.offset : end);
    if (nearest != nullptr && !inside && apart >= distance) continue;
    nearest = &variable;
    distance = apart;
    relation = before ? " bytes before " : inside ? " bytes into " : " bytes past the end of ";
    if (inside) break;
  }
  return concat(distance, relation, nearest->name, " (", nearest->bytes, " bytes)");
}

}  // namespace quire::simt::internal

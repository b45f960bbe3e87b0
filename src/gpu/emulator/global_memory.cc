// SPDX-License-Identifier: Apache-2.0
#include "gpu/emulator/global_memory.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "base/check.h"

namespace quire::simt {
namespace {

using internal::RegisteredBuffer;

struct BufferList {
  std::mutex mutex;
  std::map<std::uintptr_t, std::shared_ptr<RegisteredBuffer>> by_begin;
};

BufferList& buffer_list() {
  static BufferList list;
  return list;
}

}  // namespace

GlobalBuffer::GlobalBuffer(const void* data, std::size_t bytes, std::string name, Access access,
                           Contents contents)
    : begin_(reinterpret_cast<std::uintptr_t>(data)) {
  require(data != nullptr || bytes == 0, "buffer ", name, " has no address");
  auto buffer = std::make_shared<RegisteredBuffer>();
  buffer->begin = begin_;
  buffer->bytes = bytes;
  buffer->name = std::move(name);
  buffer->access = access;
  if (contents == Contents::kUndefined) buffer->defined.resize(bytes);
  if (bytes == 0) return;  // nothing to find

  BufferList& list = buffer_list();
  const std::lock_guard lock(list.mutex);
  const auto next = list.by_begin.lower_bound(begin_);
  if (next != list.by_begin.end() && next->first < begin_ + bytes) {
    fail(ErrorCode::kInvalidArgument, "buffer ", buffer->name, " overlaps ", next->second->name);
  }
  if (next != list.by_begin.begin()) {
    const RegisteredBuffer& previous = *std::prev(next)->second;
    require(previous.begin + previous.bytes <= begin_, "buffer ", buffer->name, " overlaps ",
            previous.name);
  }
  list.by_begin.emplace_hint(next, begin_, buffer);
  registered_ = std::move(buffer);
}

GlobalBuffer::~GlobalBuffer() {
  if (registered_ == nullptr) return;
  BufferList& list = buffer_list();
  const std::lock_guard lock(list.mutex);
  list.by_begin.erase(begin_);
}

void GlobalBuffer::set_defined(std::size_t offset, std::size_t bytes, bool defined) {
  if (registered_ == nullptr || registered_->defined.empty()) return;
  require(offset <= registered_->bytes && bytes <= registered_->bytes - offset, "buffer ",
          registered_->name, ": bytes ", offset, " to ", offset + bytes, " of ",
          registered_->bytes);
  std::fill_n(registered_->defined.begin() + static_cast<std::ptrdiff_t>(offset), bytes,
              static_cast<std::uint8_t>(defined));
}

namespace internal {

GlobalMemory::GlobalMemory() {
  BufferList& list = buffer_list();
  const std::lock_guard lock(list.mutex);
  buffers_.reserve(list.by_begin.size());
  for (const auto& [begin, buffer] : list.by_begin) buffers_.push_back({buffer, {}});
}

GlobalMemory::Buffer* GlobalMemory::find(std::uintptr_t address) {
  if (buffers_.empty()) return nullptr;
  const auto holds = [address](const Buffer& buffer) {
    return address - buffer.registered->begin < buffer.registered->bytes;
  };
  if (holds(buffers_[last_])) return &buffers_[last_];
  const auto next = std::upper_bound(buffers_.begin(), buffers_.end(), address,
                                     [](std::uintptr_t wanted, const Buffer& buffer) {
                                       return wanted < buffer.registered->begin;
                                     });
  if (next == buffers_.begin() || !holds(*std::prev(next))) return nullptr;
  last_ = static_cast<std::size_t>(std::prev(next) - buffers_.begin());
  return &buffers_[last_];
}

std::string GlobalMemory::describe(std::uintptr_t address) const {
  const RegisteredBuffer* nearest = nullptr;
  std::uintptr_t distance = 0;
  bool before = false;
  for (const Buffer& candidate : buffers_) {
    const RegisteredBuffer& buffer = *candidate.registered;
    const bool below = address < buffer.begin;
    const std::uintptr_t apart =
        below ? buffer.begin - address : address - (buffer.begin + buffer.bytes);
    if (nearest != nullptr && apart >= distance) continue;
    nearest = &buffer;
    distance = apart;
    before = below;
  }
  if (nearest == nullptr) return {};
  return concat(distance, before ? " bytes before " : " bytes past the end of ", nearest->name,
                " (", nearest->bytes, " bytes)");
}

WordHistory* GlobalMemory::page(Buffer& buffer, std::size_t index) {
  if (buffer.pages.empty()) {
    buffer.pages.resize((buffer.registered->bytes + kPageBytes - 1) / kPageBytes);
  }
  auto& page = buffer.pages[index];
  if (page == nullptr) page = std::make_unique<WordHistory[]>(kPageBytes / kWordBytes);
  return page.get();
}

}  // namespace internal
}  // namespace quire::simt

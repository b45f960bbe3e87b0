// SPDX-License-Identifier: Apache-2.0
#include "base/host_memory.h"

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "base/check.h"

namespace quire {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// Stands in the kAlignment bytes before the data.
struct Header {
  void* base;             // what the system gave
  std::size_t map_bytes;  // 0: from the heap
};
static_assert(sizeof(Header) <= kAlignment);

Header* header_of(void* data) noexcept {
  return reinterpret_cast<Header*>(static_cast<std::byte*>(data) - kAlignment);
}

std::byte* align_up(std::byte* pointer, std::size_t alignment) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  return pointer + ((alignment - address % alignment) % alignment);
}

[[noreturn]] void fail_out_of_memory(std::int64_t size_bytes) {
  fail(ErrorCode::kOutOfMemory, "cannot allocate host memory, bytes: ", size_bytes);
}

void* allocate_heap(std::int64_t size_bytes) {
  const std::size_t size = static_cast<std::size_t>(size_bytes);
  const std::size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  void* base = std::aligned_alloc(kAlignment, kAlignment + rounded);
  if (base == nullptr) fail_out_of_memory(size_bytes);
  new (base) Header{base, 0};
  return static_cast<std::byte*>(base) + kAlignment;
}

// Address space is all that a mapping costs until it is touched, so the header takes a page of its
// own and the data begins on the next page border.
void* allocate_mapped(std::int64_t size_bytes, PageHint hint) {
  const std::size_t size = static_cast<std::size_t>(size_bytes);
  const std::size_t alignment = hint == PageHint::kHuge ? kHugePageBytes : kPageBytes;
  // The kernel backs only whole huge pages, so the last one is completed.
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  const std::size_t map_bytes = rounded + kPageBytes + alignment;
  void* base = mmap(nullptr, map_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) fail_out_of_memory(size_bytes);
  std::byte* data = align_up(static_cast<std::byte*>(base) + kPageBytes, alignment);
  // A kernel without huge pages refuses the advice; that is what a hint is.
  if (hint == PageHint::kHuge) (void)madvise(data, rounded, MADV_HUGEPAGE);
  new (header_of(data)) Header{base, map_bytes};
  return data;
}

class HostMemory final : public DeviceMemory {
 public:
  constexpr HostMemory() = default;

  Device device() const noexcept override { return {}; }

  void* allocate(std::int64_t size_bytes, PageHint hint) override {
    require(size_bytes >= 0, "cannot allocate a negative number of bytes: ", size_bytes);
    constexpr std::int64_t kMaxBytes =
        std::numeric_limits<std::int64_t>::max() - static_cast<std::int64_t>(4 * kHugePageBytes);
    if (size_bytes > kMaxBytes) fail_out_of_memory(size_bytes);
    return size_bytes < kMappedFromBytes ? allocate_heap(size_bytes)
                                         : allocate_mapped(size_bytes, hint);
  }

  void free(void* data) noexcept override {
    if (data == nullptr) return;
    const Header header = *header_of(data);
    if (header.map_bytes == 0) {
      std::free(header.base);
    } else {
      munmap(header.base, header.map_bytes);
    }
  }

  void* allocate_host(std::int64_t size_bytes) override {
    return allocate(size_bytes, PageHint::kDefault);
  }
  void free_host(void* data) noexcept override { free(data); }

  void copy_to_device(void* device, const void* host, std::int64_t size_bytes,
                      Stream stream) override {
    copy(device, host, size_bytes, stream);
  }
  void copy_to_host(void* host, const void* device, std::int64_t size_bytes,
                    Stream stream) override {
    copy(host, device, size_bytes, stream);
  }
  void fill(void* device, unsigned char byte, std::int64_t size_bytes, Stream stream) override {
    check_call(size_bytes, stream);
    if (size_bytes > 0) std::memset(device, byte, static_cast<std::size_t>(size_bytes));
  }

  Stream create_stream() override { return {}; }
  void destroy_stream(Stream) noexcept override {}
  void synchronize(Stream stream) override { check_call(0, stream); }

 private:
  static void check_call(std::int64_t size_bytes, Stream stream) {
    require(size_bytes >= 0, "cannot copy or fill a negative number of bytes: ", size_bytes);
    require(stream == Stream{}, "host memory takes only the default stream, not ", stream.handle);
  }

  static void copy(void* dst, const void* src, std::int64_t size_bytes, Stream stream) {
    check_call(size_bytes, stream);
    if (size_bytes > 0) std::memcpy(dst, src, static_cast<std::size_t>(size_bytes));
  }
};

// Never destroyed: a cache in a static object of the caller may be freed after this file's statics.
union Immortal {
  constexpr Immortal() : memory() {}
  ~Immortal() {}  // NOLINT(modernize-use-equals-default): that would be a deleted one
  HostMemory memory;
};
constinit Immortal immortal;

}  // namespace

DeviceMemory& host_memory() noexcept {
  return immortal.memory;
}

}  // namespace quire

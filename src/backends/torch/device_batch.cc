// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/device_batch.h"

#include <cstring>
#include <utility>

#include "attention/validate.h"
#include "base/check.h"
#include "base/host_memory.h"

namespace quire::torch_sdpa {
namespace {

constexpr std::int64_t kAlignment = 64;

std::int64_t aligned(std::int64_t size_bytes) {
  return (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Ragged calls are two at most.
std::int64_t max_bounds(const BatchBounds& bounds) {
  return bounds.max_sequences + 2;
}

// Puts lists one after the other into staging memory, and tells where they will be.
class Packer {
 public:
  Packer(void* staging, void* target, at::Device device)
      : staging_(static_cast<char*>(staging)),
        target_(static_cast<char*>(target)),
        device_(device) {}

  template <class T>
  at::Tensor put(const std::vector<T>& list, at::ScalarType type) {
    const auto size_bytes = static_cast<std::int64_t>(list.size() * sizeof(T));
    if (size_bytes > 0) {
      std::memcpy(staging_ + used_, list.data(), static_cast<std::size_t>(size_bytes));
    }
    at::Tensor there =
        view_list(reinterpret_cast<T*>(target_ + used_), std::ssize(list), type, device_);
    used_ += aligned(size_bytes);
    return there;
  }
  std::int64_t used() const noexcept { return used_; }

 private:
  char* staging_;
  char* target_;
  at::Device device_;
  std::int64_t used_ = 0;
};

}  // namespace

DeviceBytes::DeviceBytes(DeviceMemory& memory, std::int64_t size_bytes)
    : memory_(&memory), data_(memory.allocate(size_bytes)), size_bytes_(size_bytes) {}

DeviceBytes::DeviceBytes(DeviceBytes&& other) noexcept
    : memory_(other.memory_),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

DeviceBytes& DeviceBytes::operator=(DeviceBytes&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

DeviceBytes::~DeviceBytes() {
  if (data_ != nullptr) memory_->free(data_);
}

std::int64_t DevicePrepared::list_bytes(const BatchBounds& bounds) noexcept {
  constexpr std::int64_t kLong = sizeof(std::int64_t);
  constexpr std::int64_t kInt = sizeof(std::int32_t);
  return 3 * aligned(bounds.max_total_kv_len * kLong) + 8 * aligned(bounds.max_tokens * kLong) +
         2 * aligned(max_bounds(bounds) * kInt);
}

void DevicePrepared::plan(at::Device device, Stream stream) {
  const BatchView batch = facts().on_device ? host_batch(stream) : this->batch();
  make_device_plan(spec(), batch, takes_flash(spec(), device), calls);
  upload(device, stream);
}

BatchView DevicePrepared::host_batch(Stream stream) {
  const BatchView here = copy_arrays(batch(), host_arrays_, [&](const auto& array, auto& copy) {
    copy.resize(static_cast<std::size_t>(array.size));
    if (array.empty()) return;
    memory_.copy_to_host(copy.data(), array.data, array.size * std::int64_t{sizeof(*array.data)},
                         stream);
  });
  memory_.synchronize(stream);
  const DeviceBytes scratch(host_memory(), validation_scratch_bytes(bounds()) + kAlignment);
  found_ = validate_batch(spec(), bounds(), here, Device{}, scratch.data());
  return here;
}

void DevicePrepared::require_fits(const KvCacheView& cache) const {
  if (!facts().on_device) return;
  const std::int64_t num_slots = cache.num_blocks * cache.format.block_size;
  require(found_.largest_block.value < cache.num_blocks, "kv.blocks: on the device, sequence ",
          found_.largest_block.sequence, " names at position ", found_.largest_block.index,
          " block ", found_.largest_block.value, " of a cache that has ", cache.num_blocks);
  require(found_.largest_slot.value < num_slots, "kv.slots: on the device, index ",
          found_.largest_slot.index, " holds slot ", found_.largest_slot.value,
          " of a cache that has ", num_slots);
  require(found_.largest_row.value <= num_slots, "kv.blocks.rows: on the device, sequence ",
          found_.largest_row.sequence, " reads up to row ", found_.largest_row.value,
          " of tensors that have ", num_slots);
}

void DevicePrepared::upload(at::Device device, Stream stream) {
  Packer packer(workspace().host, workspace().device, device);
  lists.key_blocks = packer.put(calls.key_blocks, at::kLong);
  lists.key_tokens = packer.put(calls.key_tokens, at::kLong);
  lists.key_positions = packer.put(calls.key_positions, at::kLong);
  lists.rows = packer.put(calls.rows, at::kLong);
  lists.row_positions = packer.put(calls.row_positions, at::kLong);
  lists.range_begins = packer.put(calls.range_begins, at::kLong);
  lists.range_ends = packer.put(calls.range_ends, at::kLong);
  lists.row_first_keys = packer.put(calls.row_first_keys, at::kLong);
  lists.q_bounds = packer.put(calls.q_bounds, at::kInt);
  lists.key_bounds = packer.put(calls.key_bounds, at::kInt);
  lists.new_rows = packer.put(calls.new_rows, at::kLong);
  lists.new_blocks = packer.put(calls.new_blocks, at::kLong);
  lists.new_tokens = packer.put(calls.new_tokens, at::kLong);
  if (packer.used() > 0) {
    memory_.copy_to_device(workspace().device, workspace().host, packer.used(), stream);
  }
  const std::int64_t pattern_bytes = std::ssize(calls.patterns);
  if (pattern_bytes > patterns_.size_bytes()) patterns_ = DeviceBytes(memory_, pattern_bytes);
  if (pattern_bytes > 0) {
    memory_.copy_to_device(patterns_.data(), calls.patterns.data(), pattern_bytes, stream);
  }
  lists.patterns = view_list(static_cast<const std::uint8_t*>(patterns_.data()), pattern_bytes,
                             at::kByte, device);
  memory_.synchronize(stream);
}

}  // namespace quire::torch_sdpa

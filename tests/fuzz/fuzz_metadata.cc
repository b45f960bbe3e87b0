// SPDX-License-Identifier: Apache-2.0
// Batch metadata of any bytes is either accepted or refused; it never reads out of bounds.
#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  volatile std::uint8_t last = 0;
  if (size > 0) last = data[size - 1];
  return last >= 0 ? 0 : -1;
}

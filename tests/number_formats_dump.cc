// SPDX-License-Identifier: Apache-2.0
// number_formats_dump FORMAT: writes how quire converts one format to standard output, for the
// comparison with ml_dtypes in tests/python/test_number_formats.py. In native byte order:
//
//   float[num_codes]  every code decoded, in the order of the unsigned bits
//   T[3 * 2^20]       encodings of the f32 whose upper 20 bits count from 0 and whose low 12 bits
//                     are 0x000, 0x001 and 0xfff in turn: ties of every format, and both sides
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string_view>
#include <vector>

#include "base/number_formats.h"

namespace {

template <class T>
struct BitsOf {
  using Type = decltype(T::bits);
};
template <>
struct BitsOf<std::int8_t> {
  using Type = std::uint8_t;
};

template <class T>
bool write(const std::vector<T>& values) {
  return std::fwrite(values.data(), sizeof(T), values.size(), stdout) == values.size();
}

template <class T>
bool dump() {
  using Bits = typename BitsOf<T>::Type;
  std::vector<float> decoded;
  for (std::uint32_t code = 0; code <= std::numeric_limits<Bits>::max(); ++code) {
    decoded.push_back(quire::to_float(__builtin_bit_cast(T, static_cast<Bits>(code))));
  }
  std::vector<T> encoded;
  for (std::uint32_t upper = 0; upper < (1u << 20); ++upper) {
    for (const std::uint32_t lower : {0x000u, 0x001u, 0xfffu}) {
      encoded.push_back(quire::from_float<T>(__builtin_bit_cast(float, upper << 12 | lower)));
    }
  }
  return write(decoded) && write(encoded);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view format = argc == 2 ? argv[1] : "";
  bool written = false;
  if (format == "f16") {
    written = dump<quire::Float16>();
  } else if (format == "bf16") {
    written = dump<quire::BFloat16>();
  } else if (format == "f8e4m3") {
    written = dump<quire::Float8E4M3>();
  } else if (format == "f8e5m2") {
    written = dump<quire::Float8E5M2>();
  } else if (format == "i8") {
    written = dump<std::int8_t>();
  } else {
    std::fprintf(stderr, "usage: number_formats_dump f16|bf16|f8e4m3|f8e5m2|i8\n");
    return 2;
  }
  return written && std::fflush(stdout) == 0 ? 0 : 1;
}

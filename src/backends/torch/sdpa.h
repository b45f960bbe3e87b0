// SPDX-License-Identifier: Apache-2.0
// PyTorch's scaled dot product attention on dense memory of the host, free of the headers of
// libtorch.
//
// Torch has OpenMP threads of its own. While a SerialRegion lives, torch's calls of this thread run
// on this thread alone, so quire's pool is all the parallelism there is; the setting of the caller
// comes back afterwards, and the global ones of torch, which the program may use too, are not
// touched. All functions may be called from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "quire/dtype.h"

namespace quire::torch_sdpa {

// One head. Every row sees every key but for the mask.
struct Problem {
  DType dtype = DType::kF32;  // f32, f16 or bf16
  std::int64_t rows = 0;
  std::int64_t keys = 0;
  std::int64_t dims = 0;
  const void* q = nullptr;      // [rows, dims]
  const void* k = nullptr;      // [keys, dims]
  const void* v = nullptr;      // [keys, dims]
  const float* mask = nullptr;  // [rows, keys], added to the scores; or none
  float scale = 1.0F;
};

// Writes out [rows, dims] and, unless null, lse [rows]. Rows that see no key are
// whatever torch makes of them. Throws Error(kDevice) with torch's words, and Error(kUnsupported)
// if torch would round the scores of a 16-bit problem (its math path).
void run(const Problem& problem, float* out, float* lse);

class SerialRegion {
 public:
  SerialRegion() noexcept;
  ~SerialRegion();
  SerialRegion(const SerialRegion&) = delete;
  SerialRegion& operator=(const SerialRegion&) = delete;

 private:
  int before_;
};

// "2.15.0", of the library that was loaded.
const char* version() noexcept;

// Why a library must not be called by code that was compiled for another: the C++ interface of
// torch changes with every release. Empty: the numbers are equal.
std::string version_mismatch(std::string_view built, std::string_view loaded);
// Of this code and the library that was loaded.
std::string version_mismatch();

}  // namespace quire::torch_sdpa

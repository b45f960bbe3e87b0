// SPDX-License-Identifier: Apache-2.0
// What the processor can do and the operating system lets us use, found once by CPUID and XGETBV.
#pragma once

#include <string>
#include <vector>

namespace quire {

struct CpuFeatures {
  std::string vendor;  // "GenuineIntel", "AuthenticAMD"; empty where unknown
  std::string model;   // brand string
  int num_cpus = 1;    // CPUs this process may run on

  // Each includes that the OS saves the registers it needs.
  bool f16c = false;
  bool avx2 = false;    // AVX2 and FMA
  bool avx512 = false;  // F, BW, DQ and VL: what every server core with AVX-512 has
  bool avx512_bf16 = false;
  bool avx512_fp16 = false;
  bool avx512_vnni = false;
  bool avx512_vbmi = false;
  bool amx_bf16 = false;  // AMX tiles and their bf16 products; permission is asked for separately
  bool amx_int8 = false;
  bool amx_sizes_hidden = false;  // AMX is offered, but not how large its tiles are
  bool sha = false;
  // A prefetch instruction that finds no free buffer is forgotten: measured on AMD Zen5. How keys
  // are fetched follows from it, how many go together and in which order they are summed: bits may
  // differ from those of other models at the same level.
  bool drops_prefetches = false;
};

CpuFeatures detect_cpu_features();

// The names of the features that are present, for people.
std::vector<std::string> feature_names(const CpuFeatures& features);

}  // namespace quire

// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_features.h"

#include <sched.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <thread>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace quire {
namespace {

int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  const unsigned count = std::thread::hardware_concurrency();
  return count == 0 ? 1 : static_cast<int>(count);
}

#if defined(__x86_64__)

struct Registers {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(std::uint32_t leaf, std::uint32_t subleaf = 0) {
  Registers r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

constexpr bool bit(std::uint64_t word, int index) {
  return ((word >> index) & 1) != 0;
}

// Which register files the OS saves. REQUIRES: CPUID says OSXSAVE.
std::uint64_t saved_state() {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

std::string vendor_string() {
  const Registers r = cpuid(0);
  std::array<char, 13> text{};
  std::memcpy(text.data(), &r.ebx, 4);
  std::memcpy(text.data() + 4, &r.edx, 4);
  std::memcpy(text.data() + 8, &r.ecx, 4);
  return text.data();
}

std::string brand_string() {
  if (cpuid(0x80000000U).eax < 0x80000004U) return {};
  std::array<char, 49> text{};
  for (std::uint32_t i = 0; i < 3; ++i) {
    const Registers r = cpuid(0x80000002U + i);
    std::memcpy(text.data() + 16 * i, &r, 16);
  }
  std::string brand = text.data();
  brand.erase(0, brand.find_first_not_of(' '));
  brand.erase(brand.find_last_not_of(' ') + 1);
  return brand;
}

// Of leaf 1.
std::uint32_t family(const Registers& basic) {
  const std::uint32_t base = basic.eax >> 8 & 0xf;
  return base == 0xf ? base + (basic.eax >> 20 & 0xff) : base;
}

void detect_x86(CpuFeatures& features) {
  features.vendor = vendor_string();
  features.model = brand_string();
  const Registers basic = cpuid(1);
  const Registers extended = cpuid(7, 0);
  const Registers extended1 = cpuid(7, 1);
  features.sha = bit(extended.ebx, 29);
  constexpr std::uint32_t kZen5 = 0x1a;
  features.drops_prefetches = features.vendor == "AuthenticAMD" && family(basic) == kZen5;
  constexpr int kOsXsave = 27;
  if (!bit(basic.ecx, kOsXsave)) return;

  // XCR0: SSE and AVX are bits 1 and 2, the three parts of AVX-512 5 to 7, AMX 17 and 18.
  constexpr std::uint64_t kAvxState = 0x6;
  constexpr std::uint64_t kAvx512State = 0xe6;
  constexpr std::uint64_t kAmxState = 0x60000;
  const std::uint64_t state = saved_state();
  const bool os_avx = (state & kAvxState) == kAvxState;
  const bool os_avx512 = (state & kAvx512State) == kAvx512State;
  const bool os_amx = (state & kAmxState) == kAmxState;

  features.f16c = os_avx && bit(basic.ecx, 29);
  features.avx2 = os_avx && bit(basic.ecx, 12) && bit(extended.ebx, 5);
  features.avx512 = os_avx512 && bit(extended.ebx, 16) && bit(extended.ebx, 17) &&
                    bit(extended.ebx, 30) && bit(extended.ebx, 31);
  features.avx512_vbmi = features.avx512 && bit(extended.ecx, 1);
  features.avx512_vnni = features.avx512 && bit(extended.ecx, 11);
  features.avx512_bf16 = features.avx512 && bit(extended1.eax, 5);
  features.avx512_fp16 = features.avx512 && bit(extended.edx, 23);
  features.amx_bf16 = os_amx && bit(extended.edx, 22) && bit(extended.edx, 24);
  features.amx_int8 = os_amx && bit(extended.edx, 25) && bit(extended.edx, 24);
  features.amx_sizes_hidden = bit(extended.edx, 24) && cpuid(0x1d).eax == 0;
}

#endif

}  // namespace

CpuFeatures detect_cpu_features() {
  CpuFeatures features;
  features.num_cpus = usable_cpus();
#if defined(__x86_64__)
  detect_x86(features);
#endif
  return features;
}

std::vector<std::string> feature_names(const CpuFeatures& features) {
  std::vector<std::string> names;
  const auto add = [&](bool present, const char* name) {
    if (present) names.emplace_back(name);
  };
  add(features.f16c, "f16c");
  add(features.avx2, "avx2");
  add(features.avx512, "avx512");
  add(features.avx512_vnni, "avx512_vnni");
  add(features.avx512_vbmi, "avx512_vbmi");
  add(features.avx512_bf16, "avx512_bf16");
  add(features.avx512_fp16, "avx512_fp16");
  add(features.amx_bf16, "amx_bf16");
  add(features.amx_int8, "amx_int8");
  add(features.sha, "sha");
  return names;
}

}  // namespace quire

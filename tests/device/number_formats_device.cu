// SPDX-License-Identifier: Apache-2.0
// The number formats as device code. Clang compiles the kernels for AMD GPUs (device side alone,
// without the vendor's headers). nvcc makes a program that compares the conversions with those of
// NVIDIA's headers on the host, then with the device's where there is one; it returns 1 when
// anything differs.
#include <cstdint>

#include "base/host_device.h"
#include "base/number_formats.h"

#if defined(__HIP__)
#define QUIRE_TEST_KERNEL __attribute__((global))
QUIRE_HOST_DEVICE inline std::int64_t element_index() {
#if defined(__HIP_DEVICE_COMPILE__)
  return std::int64_t{__builtin_amdgcn_workgroup_id_x()} * 256 + __builtin_amdgcn_workitem_id_x();
#else
  return 0;
#endif
}
#else
#define QUIRE_TEST_KERNEL __global__
__device__ inline std::int64_t element_index() {
  return std::int64_t{blockIdx.x} * 256 + threadIdx.x;
}
#endif

namespace {

using quire::BFloat16;
using quire::DType;
using quire::Float16;
using quire::Float8E4M3;
using quire::Float8E5M2;

// What the host and the device must agree on for one f32, as bits.
struct Conversions {
  std::uint32_t decoded[4];  // Float16, BFloat16, Float8E4M3, Float8E5M2 of the low bits of x
  std::uint16_t f16, bf16;
  std::uint8_t e4m3, e5m2, int8;
  std::uint8_t quantized_e4m3, quantized_int8;
  float scale;
};

QUIRE_HOST_DEVICE inline Conversions convert(std::uint32_t bits) {
  const float x = __builtin_bit_cast(float, bits);
  const auto low16 = static_cast<std::uint16_t>(bits);
  const auto low8 = static_cast<std::uint8_t>(bits);
  Conversions result{};
  result.decoded[0] = __builtin_bit_cast(std::uint32_t, to_float(Float16{low16}));
  result.decoded[1] = __builtin_bit_cast(std::uint32_t, to_float(BFloat16{low16}));
  result.decoded[2] = __builtin_bit_cast(std::uint32_t, to_float(Float8E4M3{low8}));
  result.decoded[3] = __builtin_bit_cast(std::uint32_t, to_float(Float8E5M2{low8}));
  store_float(DType::kF16, &result.f16, 0, x);
  store_float(DType::kBF16, &result.bf16, 0, x);
  result.e4m3 = quire::from_float<Float8E4M3>(x).bits;
  result.e5m2 = quire::from_float<Float8E5M2>(x).bits;
  result.int8 = static_cast<std::uint8_t>(quire::from_float<std::int8_t>(x));
  // Some scale of every size, from the same bits.
  result.scale = token_head_scale(DType::kI8, quire::finite_magnitude(x) * 3.0f);
  result.quantized_e4m3 = quire::quantize<Float8E4M3>(x, result.scale).bits;
  result.quantized_int8 = static_cast<std::uint8_t>(quire::quantize<std::int8_t>(x, result.scale));
  return result;
}

QUIRE_TEST_KERNEL void convert_kernel(std::uint32_t first, std::uint32_t stride,
                                      Conversions* results, std::int64_t num_results) {
  const std::int64_t i = element_index();
  if (i < num_results) results[i] = convert(first + static_cast<std::uint32_t>(i) * stride);
}

}  // namespace

#if !defined(__HIP__)

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <vector>

namespace {

constexpr std::uint32_t kStride = 1021;  // odd: the low bits take every pattern
constexpr std::int64_t kNumResults = (std::int64_t{1} << 32) / kStride;

bool is_nan_bits(std::uint32_t bits) {
  return (bits & 0x7fffffffu) > 0x7f800000u;
}

// NVIDIA's conversions of the same f32. NaN of 16 bits is canonical there and not compared.
bool agrees_with_headers(std::uint32_t bits, const Conversions& ours) {
  const float x = __builtin_bit_cast(float, bits);
  if (ours.e4m3 != __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3)) return false;
  if (ours.e5m2 != __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2)) return false;
  if (is_nan_bits(bits)) return true;
  return ours.f16 == __half_as_ushort(__float2half_rn(x)) &&
         ours.bf16 == __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

long count_header_differences() {
  long failed = 0;
  for (std::int64_t i = 0; i < kNumResults; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(i) * kStride;
    if (agrees_with_headers(bits, convert(bits))) continue;
    if (++failed <= 10) std::printf("differs from the CUDA headers at 0x%x\n", bits);
  }
  return failed;
}

// -1 when the device could not be used.
long count_device_differences() {
  std::vector<Conversions> results(kNumResults);
  Conversions* device_results = nullptr;
  const std::size_t num_bytes = results.size() * sizeof(Conversions);
  if (cudaMalloc(&device_results, num_bytes) != cudaSuccess) return -1;
  const auto num_blocks = static_cast<unsigned>((kNumResults + 255) / 256);
  convert_kernel<<<num_blocks, 256>>>(0, kStride, device_results, kNumResults);
  const cudaError_t error =
      cudaMemcpy(results.data(), device_results, num_bytes, cudaMemcpyDeviceToHost);
  cudaFree(device_results);
  if (error != cudaSuccess) return -1;
  long failed = 0;
  for (std::int64_t i = 0; i < kNumResults; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(i) * kStride;
    const Conversions expected = convert(bits);
    if (std::memcmp(&expected, &results[static_cast<std::size_t>(i)], sizeof(expected)) == 0)
      continue;
    if (++failed <= 10) std::printf("device differs from host at 0x%x\n", bits);
  }
  return failed;
}

}  // namespace

int main() {
  const long num_checked = static_cast<long>(kNumResults);
  const long headers = count_header_differences();
  std::printf("CUDA headers: %ld passed, %ld failed\n", num_checked - headers, headers);
  int num_devices = 0;
  if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
    std::printf("device: skipped, no CUDA device here\n");
    return headers == 0 ? 0 : 1;
  }
  const long device = count_device_differences();
  if (device < 0) {
    std::printf("device: %s\n", cudaGetErrorString(cudaGetLastError()));
    return 1;
  }
  std::printf("device: %ld passed, %ld failed\n", num_checked - device, device);
  return headers == 0 && device == 0 ? 0 : 1;
}

#endif  // !__HIP__

// SPDX-License-Identifier: Apache-2.0
// QUIRE_HOST_DEVICE marks a function that CPU code and GPU kernels share. It is empty for a plain
// C++ compiler. HIP is compiled by Clang without the vendor's headers, which is where the usual
// __host__ and __device__ macros come from, so the attributes are spelled out there.
#pragma once

#if defined(__HIP__)
#define QUIRE_HOST_DEVICE __attribute__((host)) __attribute__((device))
#elif defined(__CUDACC__)
#define QUIRE_HOST_DEVICE __host__ __device__
#else
#define QUIRE_HOST_DEVICE
#endif

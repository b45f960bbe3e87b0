// SPDX-License-Identifier: Apache-2.0
// QUIRE_HOST_DEVICE marks a function that CPU code and GPU kernels share. It is empty for a plain
// C++ compiler. HIP is compiled by Clang without the vendor's headers, which is where the usual
// __host__ and __device__ macros come from, so the attributes are spelled out there.
//
// QUIRE_DEVICE_CALL, before the type that a function returns: where it is compiled for a device it
// is called, not inlined. Code that a kernel runs once takes as long as it takes to bring it from
// memory, and what is inlined at ten places is brought ten times.
#pragma once

#if defined(__HIP__)
#define QUIRE_HOST_DEVICE __attribute__((host)) __attribute__((device))
#elif defined(__CUDACC__)
#define QUIRE_HOST_DEVICE __host__ __device__
#else
#define QUIRE_HOST_DEVICE
#endif

#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define QUIRE_DEVICE_CALL __attribute__((noinline))
#else
#define QUIRE_DEVICE_CALL
#endif

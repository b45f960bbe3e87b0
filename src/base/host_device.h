// SPDX-License-Identifier: Apache-2.0
// QUIRE_HOST_DEVICE marks a function that kernels call too: no exceptions, no allocation, no libc.
#pragma once

#if defined(__CUDACC__)
#define QUIRE_HOST_DEVICE __host__ __device__
#elif defined(__HIP__)
#define QUIRE_HOST_DEVICE __attribute__((host)) __attribute__((device))
#else
#define QUIRE_HOST_DEVICE
#endif

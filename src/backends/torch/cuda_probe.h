// SPDX-License-Identifier: Apache-2.0
// Whether torch can compute on a CUDA device here, asked step by step so that each thing that may
// be missing is a reason and none a crash.
#pragma once

#include <string>

namespace quire::torch_sdpa {

// Empty if torch can compute on the current CUDA device, else why not. Loads torch's CUDA library
// where there is a driver with a device.
std::string missing_for_cuda();

// Why a driver library is of no use: it is absent, lacks a function, is one to link against
// only, does not start or sees no device. Empty: it sees one.
std::string missing_in_driver(const char* library);

// The first loaded library that is a stand-in by tools/stub_libraries.py: its functions all return
// an error. `handle` is a loaded library whose dependencies are looked through. Empty: none is.
std::string stand_in_among(void* handle);

}  // namespace quire::torch_sdpa

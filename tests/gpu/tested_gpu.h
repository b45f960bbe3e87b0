// SPDX-License-Identifier: Apache-2.0
// The GPU that a test program is about: it links one of emulated_device.cc and cuda_device.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "quire/backend.h"
#include "registry/device_meter.h"

namespace quire::testing {

// Lengths are what the device computes in a second or so, and what its plan splits.
struct TestedGpu {
  std::string reason;  // why there is none; then nothing below is set
  std::unique_ptr<AttentionBackend> backend;
  std::unique_ptr<DeviceMeter> meter;
  int head_dim = 0;
  int split_kv_len = 0;   // keys that a decode splits
  int prefill_len = 0;    // queries of a chunk of prefill
  int num_sequences = 0;  // decodes that make more items than thread blocks are resident
  int long_kv_len = 0;    // keys that a decode splits often, and
  int num_long = 0;       // decodes of so many that a thread block has several splits of each
  bool is_large = false;  // more memory than 32 bits can index
};

TestedGpu make_tested_gpu();

}  // namespace quire::testing

// SPDX-License-Identifier: Apache-2.0
// What a run found out. Plain values; JSON, tables, pages and comparisons are made from them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/machine.h"
#include "registry/device_meter.h"

namespace quire::benchmark {

// One case on one candidate.
struct Result {
  std::string suite;
  std::string name;  // of the case
  std::string backend;
  std::string isa;
  int threads = 0;
  int block_size = 0;
  std::string kv_dtype;
  std::string layout;  // "preferred", "plain" or "caller"
  bool hot = false;    // the same memory every time
  std::string reason;  // why it was not measured; then nothing below holds
  std::string notes;
  // How: "wall", by the host's clock; "graph", recorded calls, and "queued", plain ones, by that of
  // the device (device_instrument.h).
  std::string timing = "wall";

  int rounds = 0;
  double seconds = 0;  // best
  double median_seconds = 0;
  double layer_seconds = 0;  // devices: median of the call alone, without its share of planning
  int layers_per_plan = 0;   // whose share of setup_seconds is in the times; 0: none is
  double host_seconds = 0;   // devices: until a plain call returns to the host
  // Dense peers: median of gathering K and V of a layer. On devices it is in no time above; on the
  // host it is a part of them, by the thread that gathers longest.
  double gather_seconds = 0;
  bool gather_in_seconds = false;
  double setup_seconds = 0;  // of prepare, shared by all layers of a step; part of a `step` case
  double first_seconds = 0;  // of the first prepare and call, with all that is made only once
  double bytes = 0;          // of one call, see Work
  double flops = 0;
  double bytes_per_second = 0;  // at the best time, of devices at the median
  double flops_per_second = 0;
  // "read", "read 32768", "memcpy" or the name of a peak; of devices also "cached read", "copy",
  // "to host" and "to device"
  std::string ceiling;
  double share_of_ceiling = 0;   // median over rounds of roof time / time, both of one round
  double spread = 0;             // of that share: half the distance of its quartiles, relative
  double ratio_to_first = 1;     // time over that of the first candidate: median of the rounds
  std::string baseline;          // another case, or empty
  double ratio_to_baseline = 0;  // time over that of the baseline on the same candidate

  bool measured() const noexcept { return reason.empty(); }
  bool on_device() const noexcept { return timing != "wall"; }
  // What rates and tables are made of.
  double typical_seconds() const noexcept { return on_device() ? median_seconds : seconds; }
  bool is_bound_by_bytes() const noexcept {
    return ceiling.starts_with("read") || ceiling == "cached read" || ceiling == "memcpy" ||
           ceiling == "copy" || ceiling.starts_with("to ");
  }
  std::string candidate() const { return isa.empty() ? backend : backend + ":" + isa; }
};

// The medians of all runs of the probes on one number of threads, or on a device.
struct CeilingValues {
  std::string device;  // its name; empty: the host
  int threads = 0;     // of the host
  double read_bytes_per_second = 0;
  double copy_bytes_per_second = 0;
  std::vector<std::pair<std::string, double>> flops_per_second;              // by name of the peak
  std::vector<std::pair<std::int64_t, double>> piece_read_bytes_per_second;  // by piece size
  // Of devices: the link to pinned host memory, and reads of what its cache may hold, by size.
  double to_host_bytes_per_second = 0;
  double to_device_bytes_per_second = 0;
  std::vector<std::pair<std::int64_t, double>> cached_read_bytes_per_second;

  std::string place() const {
    if (!device.empty()) return device;
    return std::to_string(threads) + (threads == 1 ? " thread" : " threads");
  }
};

struct Report {
  Machine machine;
  std::vector<DeviceFacts> devices;
  std::vector<CeilingValues> ceilings;  // devices, then the host, most threads first
  std::vector<Result> results;
  std::vector<std::string> notes;
};

}  // namespace quire::benchmark

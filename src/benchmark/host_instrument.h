// SPDX-License-Identifier: Apache-2.0
// Measures backends of the host on one number of threads: the host's clock around calls, and the
// probes of memory and processors on as many threads.
#pragma once

#include <memory>
#include <vector>

#include "benchmark/instrument.h"
#include "benchmark/machine.h"
#include "benchmark/memory_probe.h"

namespace quire::benchmark {

// What the probes of every number of threads read. Notes say where memory was short.
std::unique_ptr<ProbeBuffer> make_probe_buffer(const Machine& machine, const RunOptions& options,
                                               std::vector<std::string>& notes);

// All must outlive it.
std::unique_ptr<Instrument> make_host_instrument(const Machine& machine, const ProbeBuffer& buffer,
                                                 int num_threads, const RunOptions& options);

}  // namespace quire::benchmark

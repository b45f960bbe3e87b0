// SPDX-License-Identifier: Apache-2.0
// Who is measured: a backend of the registry, at a level, on a number of threads or on a device.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "quire/backend.h"
#include "registry/device_meter.h"

namespace quire::benchmark {

struct Candidate {
  std::string backend;
  std::string isa;      // the level in use, or empty
  int num_threads = 1;  // 0: on a device
  std::shared_ptr<AttentionBackend> instance;
  std::shared_ptr<DeviceMeter> meter;  // of a device; null: the memory is the host's

  std::string name() const { return isa.empty() ? backend : backend + ":" + isa; }
};

struct CandidateChoice {
  // "cpu" or "cpu:avx2"; empty: all that may be chosen unnamed. One that has levels of the names of
  // others is meant at those: "cuda,torch" is torch:cuda.
  std::vector<std::string> backends;
  std::vector<std::string> levels;  // for backends named without one; "all"; empty: the best
  std::vector<int> num_threads;     // 0 or empty: as many as the process may run on
};

// At which levels a backend named without one is meant beside the others: one that computes in
// several places, where they compute. One empty level, the best, if no name of theirs is a level.
std::vector<std::string> levels_beside(const std::vector<std::string>& levels,
                                       const std::vector<std::string>& backends);

// Every backend at every level on every number of threads, those of devices once. Throws what
// make_backend throws.
std::vector<Candidate> make_candidates(const CandidateChoice& choice);

}  // namespace quire::benchmark

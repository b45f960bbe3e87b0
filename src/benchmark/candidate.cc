// SPDX-License-Identifier: Apache-2.0
#include "benchmark/candidate.h"

#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "base/cpu_features.h"
#include "quire/registry.h"
#include "registry/plugin.h"

namespace quire::benchmark {
namespace {

struct Named {
  std::string backend;
  std::string isa;  // empty: the best
};

const BackendEntry* find_entry(const std::string& name) {
  for (const BackendEntry& entry : backend_table()) {
    if (name == entry.name) return &entry;
  }
  return nullptr;
}

std::vector<std::string> default_backends() {
  if (const char* forced = std::getenv("QUIRE_BACKEND"); forced != nullptr && *forced != '\0') {
    return {forced};
  }
  std::vector<std::string> names;
  for (const BackendEntry& entry : backend_table()) {
    if (entry.automatic && entry.probe().available) names.emplace_back(entry.name);
  }
  return names;
}

// A level that some backends have and others do not is meant for those that have it.
std::vector<Named> expand(const CandidateChoice& choice) {
  std::vector<Named> named;
  std::vector<std::string> unused = choice.levels;
  const std::vector<std::string> backends =
      choice.backends.empty() ? default_backends() : choice.backends;
  for (const std::string& text : backends) {
    const std::size_t colon = text.find(':');
    const std::string backend = text.substr(0, colon);
    if (colon != std::string::npos) {
      named.push_back({backend, text.substr(colon + 1)});
      continue;
    }
    const BackendEntry* entry = find_entry(backend);
    const std::vector<std::string> levels =
        entry != nullptr ? entry->isa_levels() : std::vector<std::string>();
    if (levels.empty() || choice.levels.empty()) {
      for (const std::string& level : levels_beside(levels, backends)) {
        named.push_back({backend, level});
      }
      continue;
    }
    const bool all = choice.levels.front() == "all";
    for (const std::string& level : all ? levels : choice.levels) {
      if (std::find(levels.begin(), levels.end(), level) == levels.end()) continue;
      named.push_back({backend, level});
      std::erase(unused, level);
    }
  }
  std::erase(unused, "all");
  if (!unused.empty()) {
    fail(ErrorCode::kInvalidArgument, "no backend has a level named '", unused.front(),
         "' on this machine");
  }
  return named;
}

}  // namespace

std::vector<std::string> levels_beside(const std::vector<std::string>& levels,
                                       const std::vector<std::string>& backends) {
  std::vector<std::string> found;
  for (const std::string& level : levels) {
    const bool is_named = std::any_of(backends.begin(), backends.end(), [&](const std::string& b) {
      return b.substr(0, b.find(':')) == level;
    });
    if (is_named) found.push_back(level);
  }
  if (found.empty()) found.emplace_back();
  return found;
}

std::vector<Candidate> make_candidates(const CandidateChoice& choice) {
  std::vector<int> thread_counts = choice.num_threads;
  if (thread_counts.empty()) thread_counts = {0};
  std::vector<Candidate> candidates;
  for (const int count : thread_counts) {
    const int num_threads = count > 0 ? count : detect_cpu_features().num_cpus;
    for (const Named& named : expand(choice)) {
      Candidate candidate;
      candidate.backend = named.backend;
      candidate.num_threads = num_threads;
      candidate.instance =
          make_backend(named.backend, {.num_threads = num_threads, .isa = named.isa});
      const BackendInfo info = candidate.instance->info();
      candidate.isa = info.isa;
      if (!info.device.is_host()) {
        const bool is_there =
            std::any_of(candidates.begin(), candidates.end(), [&](const Candidate& other) {
              return other.meter != nullptr && other.backend == named.backend;
            });
        if (is_there) continue;  // threads of the host are nothing to it
        candidate.num_threads = 0;
        candidate.meter = make_plugin_meter(named.backend);
        // A meter works on the memory and the streams of any backend of its device.
        if (candidate.meter == nullptr) {
          candidate.meter = make_plugin_meter(device_kind_name(info.device.kind));
        }
        if (candidate.meter == nullptr) {
          fail(ErrorCode::kUnsupported, "backend ", named.backend,
               " computes on a device, and neither it nor a backend of that name offers a clock");
        }
      }
      candidates.push_back(std::move(candidate));
    }
  }
  require(!candidates.empty(), "there is no backend to measure on this machine");
  return candidates;
}

}  // namespace quire::benchmark

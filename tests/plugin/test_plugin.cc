// SPDX-License-Identifier: Apache-2.0
// The reference backend as a plug-in, and with QUIRE_TEST_FAULT plug-ins that are wrong in one way
// each: 1 built for another quire, 2 an entry of another size, 3 no entry function, 4 functions
// that throw, 5 needs a library that is not there, 6 no entry, 7 an entry that lacks a function.
#include <stdexcept>

#include "backends/reference/reference.h"
#include "registry/plugin.h"

#ifndef QUIRE_TEST_FAULT
#define QUIRE_TEST_FAULT 0
#endif

#if QUIRE_TEST_FAULT == 5
extern "C" int quire_test_absent();
#endif

namespace {

quire::Availability probe() {
#if QUIRE_TEST_FAULT == 4
  throw std::runtime_error("the vendor's library does not start");
#elif QUIRE_TEST_FAULT == 5
  return {.available = quire_test_absent() == 0, .version = {}, .reasons = {}};
#else
  return {.available = true, .version = "47.11", .reasons = {}};
#endif
}

std::vector<std::string> isa_levels() {
  return {"only"};
}

std::unique_ptr<quire::AttentionBackend> make(const quire::BackendOptions& options) {
  // An error that has to cross the border.
  if (options.num_threads == 13) {
    throw quire::Error(quire::ErrorCode::kOutOfMemory, "13 threads are too many");
  }
  return quire::make_reference_backend(options);
}

}  // namespace

#if QUIRE_TEST_FAULT == 3
#define quire_plugin quire_other
#endif
extern "C" QUIRE_API const quire::PluginEntry* quire_plugin() {
  static quire::PluginEntry entry = quire::plugin_entry(probe, isa_levels, make);
#if QUIRE_TEST_FAULT == 1
  entry.abi = "quire 0.0.1";
  entry.probe = nullptr;
#elif QUIRE_TEST_FAULT == 2
  entry.size_bytes = 24;
#elif QUIRE_TEST_FAULT == 6
  return nullptr;
#elif QUIRE_TEST_FAULT == 7
  entry.make = nullptr;
#endif
  return &entry;
}

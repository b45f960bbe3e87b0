// SPDX-License-Identifier: Apache-2.0
#include "registry/backend_row.h"

#include <exception>
#include <memory>

namespace quire {

BackendRow describe_backend(const BackendEntry& entry) {
  BackendRow row{
      .entry = &entry, .availability = entry.probe(), .levels = {}, .info = {}, .features = {}};
  if (!row.availability.available) return row;
  try {
    row.levels = entry.isa_levels();
    const std::unique_ptr<AttentionBackend> backend = entry.make({});
    row.info = backend->info();
    for (const FeatureProbe& probe : feature_probes()) {
      AttentionSpec spec = probe.spec;
      spec.kv.layout = backend->preferred_layout(spec).id;
      row.features.push_back(backend->supports(spec));
    }
  } catch (const std::exception& error) {
    row.availability.available = false;
    row.availability.reasons.emplace_back(error.what());
    row.levels.clear();
    row.info = {};
    row.features.clear();
  }
  return row;
}

}  // namespace quire

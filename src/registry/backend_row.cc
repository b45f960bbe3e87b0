// SPDX-License-Identifier: Apache-2.0
#include "registry/backend_row.h"

#include <memory>

namespace quire {

BackendRow describe_backend(const BackendEntry& entry) {
  BackendRow row{
      .entry = &entry, .availability = entry.probe(), .levels = {}, .info = {}, .features = {}};
  if (!row.availability.available) return row;
  row.levels = entry.isa_levels();
  const std::unique_ptr<AttentionBackend> backend = entry.make({});
  row.info = backend->info();
  for (const FeatureProbe& probe : feature_probes()) {
    AttentionSpec spec = probe.spec;
    spec.kv.layout = backend->preferred_layout(spec).id;
    row.features.push_back(backend->supports(spec));
  }
  return row;
}

}  // namespace quire

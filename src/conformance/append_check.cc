// SPDX-License-Identifier: Apache-2.0
// append alone, bit for bit.
#include "base/check.h"
#include "conformance/checks.h"
#include "conformance/loaded_batch.h"

namespace quire::conformance {

namespace {

std::optional<std::string> append_once(CheckContext& context, bool metadata_on_device) {
  const Problem& p = context.problem;
  const Arrangement arrangement = arrange(p, options_of(p));
  LoadOptions options;
  options.spec = spec_for(context.backend, p);
  options.arrival = arrival_for(context.backend, options.spec, Arrival::kAppended);
  options.metadata_on_device = metadata_on_device;
  LoadedBatch batch(context.backend, p, arrangement, options);
  batch.prepare();
  if (options.arrival == Arrival::kFused) {
    batch.attend();  // the outputs of special values are not looked at
  } else {
    batch.append();
  }
  batch.wait();
  return batch.cache().difference("cache");
}

}  // namespace

std::optional<std::string> check_append(CheckContext& context) {
  if (auto found = append_once(context, false)) return found;
  if (context.backend.memory().device().is_host()) return std::nullopt;
  if (auto found = append_once(context, true)) {
    return concat("with slots in device memory: ", *found);
  }
  return std::nullopt;
}

}  // namespace quire::conformance

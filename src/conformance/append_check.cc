// SPDX-License-Identifier: Apache-2.0
// append alone, bit for bit.
#include "conformance/checks.h"
#include "conformance/loaded_batch.h"

namespace quire::conformance {

std::optional<std::string> check_append(CheckContext& context) {
  const Problem& p = context.problem;
  const Arrangement arrangement = arrange(p, options_of(p));
  LoadOptions options;
  options.spec = spec_for(context.backend, p);
  options.arrival = arrival_for(context.backend, options.spec, Arrival::kAppended);
  LoadedBatch batch(context.backend, p, arrangement, options);
  batch.prepare();
  if (options.arrival == Arrival::kFused) {
    batch.attend();  // the outputs of special values are not looked at
  } else {
    batch.append();
  }
  context.backend.memory().synchronize({});
  return batch.cache().difference("cache");
}

}  // namespace quire::conformance

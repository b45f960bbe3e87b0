// SPDX-License-Identifier: Apache-2.0
// attend against the exact result; and that a sequence's bits depend on nothing but itself.
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "conformance/checks.h"
#include "conformance/index.h"
#include "conformance/loaded_batch.h"

namespace quire::conformance {
namespace {

std::uint64_t digest_of(const OutputData& data) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  const auto add = [&hash](const std::vector<std::uint32_t>& bits) {
    for (const std::uint32_t x : bits) hash = (hash ^ x) * 0x100000001b3ULL;
  };
  add(data.out_bits);
  add(data.lse_bits);
  return hash;
}

ResultShape shape_of(const Problem& p) {
  return {p.num_tokens, p.spec.num_q_heads, p.spec.value_dim};
}

// A stream of the backend, for as long as this lives.
class OwnStream {
 public:
  explicit OwnStream(DeviceMemory& memory) : memory_(memory), stream_(memory.create_stream()) {}
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  ~OwnStream() { memory_.destroy_stream(stream_); }
  Stream get() const noexcept { return stream_; }

 private:
  DeviceMemory& memory_;
  Stream stream_;
};

// One run in one arrangement, compared with what is exact.
std::optional<std::string> run_once(CheckContext& context, Stream stream, bool metadata_on_device,
                                    OutputData& output) {
  const Problem& p = context.problem;
  const Arrangement arrangement = arrange(p, options_of(p));
  LoadOptions options;
  options.spec = spec_for(context.backend, p);
  options.arrival = arrival_for(context.backend, options.spec, p.c.arrival);
  options.metadata_on_device = metadata_on_device;
  options.stream = stream;
  LoadedBatch batch(context.backend, p, arrangement, options);
  batch.run();
  output = batch.output();
  if (auto found = compare(*context.expected, output, shape_of(p), RowNames(p), context.accuracy)) {
    return found;
  }
  if (auto found = batch.side_effects()) return found;
  if (p.c.check != Check::kInvariance) return std::nullopt;
  // Plans, counters and flags of earlier batches must not be in the way.
  if (!arrangement.order.empty()) {
    ArrangeOptions last = options_of(p);
    last.order = {last.order.back()};
    batch.prepare_other(arrange(p, last));
  }
  batch.run();
  if (auto found = compare_bits(p, arrangement.order, output, batch.output())) {
    return concat("when run again: ", *found);
  }
  return std::nullopt;
}

// Another batch of some of the sequences; their bits must be the same.
struct Variant {
  const char* name;
  ArrangeOptions arrange;
  std::int64_t extra_bounds = 0;
};

std::optional<std::string> run_variant(CheckContext& context, const Variant& variant,
                                       const OutputData& want) {
  const Problem& p = context.problem;
  const Arrangement arrangement = arrange(p, variant.arrange);
  LoadOptions options;
  options.spec = spec_for(context.backend, p);
  options.arrival = arrival_for(context.backend, options.spec, p.c.arrival);
  options.extra_bounds = variant.extra_bounds;
  LoadedBatch batch(context.backend, p, arrangement, options);
  batch.run();
  if (auto found = compare_bits(p, variant.arrange.order, want, batch.output())) {
    return concat(variant.name, ": ", *found);
  }
  return std::nullopt;
}

}  // namespace

Arrival arrival_for(const AttentionBackend& backend, const AttentionSpec& spec, Arrival wanted) {
  return backend.supports(spec).fused_append ? Arrival::kFused : wanted;
}

std::optional<std::string> check_attend(CheckContext& context) {
  OutputData output;
  if (auto found = run_once(context, {}, false, output)) return found;
  context.digest = digest_of(output);
  DeviceMemory& memory = context.backend.memory();
  if (memory.device().is_host()) return std::nullopt;
  const OwnStream stream(memory);
  if (auto found = run_once(context, stream.get(), true, output)) {
    return concat("with metadata in device memory, on a stream of its own: ", *found);
  }
  return std::nullopt;
}

std::optional<std::string> check_invariance(CheckContext& context) {
  OutputData all;
  if (auto found = run_once(context, {}, false, all)) return found;
  context.digest = digest_of(all);
  const ArrangeOptions as_is = options_of(context.problem);

  Variant reversed{.name = "in reverse order, at other places", .arrange = as_is};
  std::reverse(reversed.arrange.order.begin(), reversed.arrange.order.end());
  reversed.arrange.seed += 1;
  reversed.arrange.padding_rows = as_is.padding_rows == 0 ? 2 : 0;
  reversed.arrange.table =
      as_is.table == TableStyle::kPadded ? TableStyle::kIndexed : TableStyle::kPadded;
  if (auto found = run_variant(context, reversed, all)) return found;

  Variant bounded{.name = "in larger bounds", .arrange = as_is, .extra_bounds = 300};
  if (auto found = run_variant(context, bounded, all)) return found;

  for (const std::int64_t s : as_is.order) {
    Variant alone{.name = "alone", .arrange = as_is};
    alone.arrange.order = {s};
    alone.arrange.seed += static_cast<std::uint64_t>(s) + 2;
    if (auto found = run_variant(context, alone, all)) return found;
  }
  return std::nullopt;
}

}  // namespace quire::conformance

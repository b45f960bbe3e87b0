// SPDX-License-Identifier: Apache-2.0
// Validation takes no memory: between make_prepared and its end a step allocates nothing. Counts
// every operator new of the whole test program.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocation/allocations.h"
#include "attention/validate.h"
#include "attention/validate_fixture.h"

namespace quire::testing {
namespace {

TEST(ValidateAllocation, NothingIsAllocated) {
  for (const ScaleGranularity scales : {ScaleGranularity::kNone, ScaleGranularity::kPerHead}) {
    Step step;
    if (scales != ScaleGranularity::kNone) step.quantize(scales);
    std::vector<std::int64_t> scratch(
        static_cast<std::size_t>(validation_scratch_bytes(step.bounds)) / 8);
    const std::int64_t before = test::num_allocations();
    const BatchFacts facts =
        validate_batch(step.spec, step.bounds, step.batch, Device{}, scratch.data());
    validate_append(step.spec, facts, step.new_kv, step.cache, Device{});
    validate_attend(step.spec, facts, step.batch, step.params, step.q,
                    KvSource(step.cache, step.new_kv), step.output, Device{});
    validate_merge(step.partials, step.merge_sinks, step.merged, Device{});
    validate_copy_blocks(step.src, step.dst, step.copies, CopyKind::kSameLayout, Device{});
    validate_copy_region(step.src, step.dst, step.region, Device{});
    EXPECT_EQ(test::num_allocations() - before, 0);
  }
  EXPECT_GT(test::num_allocations(), 0);
}

}  // namespace
}  // namespace quire::testing

// SPDX-License-Identifier: Apache-2.0
// The API carries a layout that one backend alone can read: the suite passes on caches of it, with
// K and V apart and in one record, and faults in its conversions are found.
#include "opaque_backend/opaque_backend.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/sanitizers.h"
#include "benchmark/rotating_cache.h"
#include "conformance/case_list.h"
#include "conformance/run.h"
#include "engine/engine_fixture.h"
#include "quire/registry.h"

namespace quire::testing {
namespace {

using conformance::CacheStyle;
using conformance::CaseResult;
using conformance::CaseStatus;
using conformance::Check;
using conformance::Suite;

// Cases that meet the private layout.
bool uses_layout(const conformance::Case& c) {
  return c.cache == CacheStyle::kPreferred || c.check == Check::kExport;
}

class OpaqueSuite : public ::testing::TestWithParam<OpaqueBackendOptions> {};

TEST_P(OpaqueSuite, Passes) {
  const std::unique_ptr<AttentionBackend> backend = make_opaque_backend(GetParam());
  conformance::RunSummary summary;
  for (const conformance::Case& c : conformance::all_cases()) {
    if (c.suite == Suite::kFull || (c.suite == Suite::kStandard && !uses_layout(c))) continue;
    // What moves memory is what a sanitizer watches.
    if (kHasAddressSanitizer && c.suite == Suite::kStandard &&
        !conformance::matches(c.name, "cache/*")) {
      continue;
    }
    // Once is enough: how the pieces lie does not matter there, and long sequences take their time.
    const char* once = GetParam().fuses_append ? "*/one_call/data/*" : "*/one_call/*";
    if (c.suite == Suite::kStandard && conformance::matches(c.name, once)) continue;
    const CaseResult result = conformance::run_case(*backend, c);
    summary.add(result);
    const bool refused = c.check == Check::kCopyRegion && c.cache == CacheStyle::kPreferred;
    EXPECT_EQ(result.status, refused ? CaseStatus::kSkipped : CaseStatus::kPassed)
        << c.name << ": " << result.reason;
  }
  EXPECT_GE(summary.num_passed, kHasAddressSanitizer ? 80 : 100);
  EXPECT_GE(summary.num_skipped, 10);
}

INSTANTIATE_TEST_SUITE_P(Options, OpaqueSuite,
                         ::testing::Values(OpaqueBackendOptions{},
                                           OpaqueBackendOptions{.pieces = Pieces::kJoint},
                                           OpaqueBackendOptions{.pieces = Pieces::kAreas},
                                           OpaqueBackendOptions{.fuses_append = true}),
                         [](const auto& options) {
                           return options.param.fuses_append               ? "FusesAppend"
                                  : options.param.pieces == Pieces::kJoint ? "Joint"
                                  : options.param.pieces == Pieces::kAreas ? "Areas"
                                                                           : "Apart";
                         });

// By the cases of the cache.
TEST(OpaqueBackend, FaultsAreFound) {
  for (const OpaqueFault fault :
       {OpaqueFault::kAppendsToEmptyBlocks, OpaqueFault::kCopiesNoV, OpaqueFault::kExportsNothing,
        OpaqueFault::kImportsFirstLayer, OpaqueFault::kWritesPastCache}) {
    if (kHasAddressSanitizer && fault == OpaqueFault::kWritesPastCache) continue;
    const std::unique_ptr<AttentionBackend> backend = make_opaque_backend({.fault = fault});
    int num_failed = 0;
    for (const conformance::Case& c : conformance::all_cases()) {
      if (c.suite == Suite::kFull || c.cache != CacheStyle::kPreferred) continue;
      if (!conformance::matches(c.name, "cache/*")) continue;
      if (conformance::run_case(*backend, c).status == CaseStatus::kFailed) ++num_failed;
    }
    EXPECT_GT(num_failed, 0) << "fault " << static_cast<int>(fault);
  }
}

AttentionSpec small_spec(KvLayoutId layout) {
  AttentionSpec spec = toy_spec();
  spec.kv.layout = layout;
  return spec;
}

KvCache make_cache(AttentionBackend& backend, int num_layers = 1) {
  const AttentionSpec spec = small_spec(kScrambled);
  return {backend.memory(),
          spec,
          backend.preferred_layout(spec),
          {.num_layers = num_layers, .num_blocks = 4}};
}

KvCache make_plain_cache(AttentionBackend& backend, int num_layers = 1) {
  const AttentionSpec spec = small_spec(KvLayoutId::kPlain);
  return {backend.memory(), spec, plain_layout(spec), {.num_layers = num_layers, .num_blocks = 4}};
}

ErrorCode code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::kOk;
}

constexpr std::array<BlockCopy, 1> kFirstToSecond = {{{0, 1}}};
constexpr std::array<BlockCopy, 1> kSecondToThird = {{{1, 2}}};

TEST(OpaqueBackend, NoticesADamagedBlock) {
  for (const std::int64_t damaged : {0, 5, 8, 70, 263}) {
    const std::unique_ptr<AttentionBackend> backend = make_opaque_backend();
    const KvCache plain = make_plain_cache(*backend);
    const KvCache cache = make_cache(*backend);
    backend->import_blocks(plain.layers(), cache.layers(), kFirstToSecond);
    backend->copy_blocks(cache.layers(), cache.layers(), kSecondToThird);
    const KvCacheView& layer = cache.layer(0);
    ASSERT_LT(damaged, layer.opaque_k_bytes);
    static_cast<unsigned char*>(layer.k)[layer.k_strides.block + damaged] ^= 1U;
    EXPECT_EQ(
        code_of([&] { backend->export_blocks(cache.layers(), plain.layers(), kSecondToThird); }),
        ErrorCode::kInternal);
    constexpr std::array<BlockCopy, 1> kCopied = {{{2, 3}}};
    backend->export_blocks(cache.layers(), plain.layers(), kCopied);
  }
}

TEST(OpaqueBackend, TokensAreNotCopiedApart) {
  const std::unique_ptr<AttentionBackend> backend = make_opaque_backend();
  const KvCache cache = make_cache(*backend);
  EXPECT_EQ(code_of([&] {
              backend->copy_region(cache.layers(), cache.layers(), {{0, 1}, 0, 2});
            }),
            ErrorCode::kInvalidArgument);
}

// Another backend moves the blocks as they are, and leaves what it cannot read.
TEST(OpaqueBackend, OthersDoNotConvertItsBlocks) {
  const std::unique_ptr<AttentionBackend> backend = make_opaque_backend();
  const KvCache plain = make_plain_cache(*backend, 2);
  const KvCache cache = make_cache(*backend, 2);
  backend->import_blocks(plain.layers(), cache.layers(), kFirstToSecond);
  for (const char* name : {"cpu", "reference"}) {
    const std::unique_ptr<AttentionBackend> other = make_backend(name);
    EXPECT_FALSE(other->supports(small_spec(kScrambled)).ok());
    other->copy_blocks(cache.layers(), cache.layers(), kSecondToThird);
    EXPECT_TRUE(is_sealed(cache.layer(1), 2));
    EXPECT_EQ(
        code_of([&] { other->export_blocks(cache.layers(), plain.layers(), kSecondToThird); }),
        ErrorCode::kUnsupported);
    EXPECT_EQ(
        code_of([&] { other->import_blocks(plain.layers(), cache.layers(), kSecondToThird); }),
        ErrorCode::kUnsupported);
    EXPECT_TRUE(is_sealed(cache.layer(0), 2));
  }
}

// Swaps and copy-on-write of an engine, from memory that holds no block yet.
TEST(OpaqueBackend, CarriesAnEngine) {
  for (const OpaqueBackendOptions& backend :
       {OpaqueBackendOptions{}, OpaqueBackendOptions{.pieces = Pieces::kJoint},
        OpaqueBackendOptions{.pieces = Pieces::kAreas},
        OpaqueBackendOptions{.fuses_append = true}}) {
    EngineOptions options = toy_options(13, 12);
    add_windowed_group(options, 12);
    add_cross_group(options, 12);
    EngineFixture f(make_opaque_backend(backend), options);
    EXPECT_EQ(f.engine.cache(0).format.layout, kScrambled);
    for (int i = 0; i < 6; ++i) {
      const std::vector<Token> tokens(static_cast<std::size_t>(5 + 2 * i), static_cast<Token>(i));
      f.submit(tokens, 14, i % 2, i % 3 == 0 ? 2 * i : 0);
    }
    f.step_without_tokens();
    ASSERT_FALSE(f.result.ready.empty());
    const RequestId second = f.fork(f.result.ready.front().id);
    f.extend(second, 50);
    for (const ReadyRequest& ready : f.result.ready) f.extend(ready.id, 51);
    EXPECT_TRUE(f.run());
    EXPECT_EQ(f.finished.size(), 7U);
    EXPECT_GT(f.engine.block_manager().stats().num_copies, 0);
    EXPECT_GT(f.engine.scheduler().stats().num_swaps, 0);
  }
}

// The cache of a benchmark is filled by its backend.
TEST(OpaqueBackend, FillsTheCacheOfABenchmark) {
  const std::unique_ptr<AttentionBackend> backend = make_opaque_backend();
  AttentionSpec spec = small_spec(kScrambled);
  spec.kv.dtype = DType::kI8;
  spec.kv.scales = ScaleGranularity::kPerTokenHead;
  const KvLayout layout = benchmark::layout_for(*backend, spec, CacheStyle::kPreferred);
  benchmark::RotatingCache cache(*backend, spec, layout, {.num_blocks = 3, .num_layers = 2});
  EXPECT_FALSE(cache.serves(*backend, layout));
  for (int i = 0; i < 2; ++i) {
    const KvCacheView& layer = cache.next();
    for (std::int64_t block = 0; block < 3; ++block) EXPECT_TRUE(is_sealed(layer, block));
  }
}

}  // namespace
}  // namespace quire::testing

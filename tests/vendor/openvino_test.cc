// SPDX-License-Identifier: Apache-2.0
// The backend `openvino` through its plug-in: what it claims of the suite, caches that move between
// it and others, its 8-bit cache, which rounds in its own way; and its parts by themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "backends/openvino/cache_blocks.h"
#include "backends/openvino/operation_spec.h"
#include "backends/openvino/packed_batch.h"
#include "backends/openvino/paged_attention.h"
#include "base/number_formats.h"
#include "conformance/case_list.h"
#include "conformance/run.h"
#include "layout/kv_rows.h"
#include "quire/registry.h"
#include "vendor/generation.h"
#include "vendor/suite_claims.h"

namespace quire::testing {
namespace {

using conformance::CacheStyle;
using conformance::Case;
using conformance::Check;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const BackendEntry& entry() {
  for (const BackendEntry& entry : backend_table()) {
    if (std::string_view(entry.name) == "openvino") return entry;
  }
  throw std::logic_error("the registry has no row for openvino");
}

// Everything that is refused, and nothing else is.
const std::vector<Refusal>& all_refusals() {
  static const std::vector<Refusal> refusals = {
      {"does not promise batch invariance",
       [](const Case& c) { return c.check == Check::kInvariance; }},
      {"blocks of ", [](const Case& c) { return c.spec.kv.block_size != 32; }},
      {"does not return lse", [](const Case& c) { return c.spec.features.lse; }},
      {"bits are not compared",
       [](const Case& c) {
         return c.spec.kv.dtype == DType::kI8 &&
                (c.check == Check::kAppend || c.check == Check::kCopyBlocks ||
                 c.check == Check::kExport);
       }},
  };
  return refusals;
}

TEST(OpenVino, PassesWhatItClaims) {
  ASSERT_TRUE(entry().probe().available) << entry().probe().reasons.front();
  const std::vector<std::string> levels = entry().isa_levels();
  ASSERT_FALSE(levels.empty());
  for (const std::string& level : levels) {
    SCOPED_TRACE(level);
    const std::unique_ptr<AttentionBackend> backend =
        make_backend("openvino", {.num_threads = 2, .isa = level});
    EXPECT_EQ(backend->info().isa, level);
    EXPECT_EQ(backend->info().version, entry().probe().version);
    const conformance::RunSummary summary = expect_claims(*backend, all_refusals());
    EXPECT_EQ(summary.num_failed, 0);
    EXPECT_GE(summary.num_passed, 177);  // it may grow, not shrink
  }
}

// The cases above are this: none of it may become a refusal.
TEST(OpenVino, ClaimsTheFeaturesOfThePagedOperation) {
  const std::unique_ptr<AttentionBackend> backend = make_backend("openvino");
  std::vector<std::string> taken;
  for (const FeatureProbe& probe : feature_probes()) {
    AttentionSpec spec = probe.spec;
    spec.kv.layout = backend->preferred_layout(spec).id;
    const Support support = backend->supports(spec);
    EXPECT_TRUE(support.fused_append && support.clears_tails);
    EXPECT_EQ(support.ok() && support.own_rounding, spec.kv.dtype == DType::kI8) << probe.name;
    if (support.ok()) taken.emplace_back(probe.name);
  }
  EXPECT_THAT(taken, ElementsAre("causal", "window left", "alibi", "sinks", "query f32",
                                 "query f16", "query bf16", "kv f32", "kv f16", "kv bf16",
                                 "kv i8 per token-head", "head dim 40", "head dim 256",
                                 "dims 192/128", "head group 1", "head group 7", "one kv head"));
}

TEST(OpenVino, RefusesWithEveryReason) {
  const std::unique_ptr<AttentionBackend> backend = make_backend("openvino");
  AttentionSpec spec = feature_probes()[0].spec;
  spec.kv.block_size = 16;
  spec.mask.window_left = 5;
  spec.mask.chunk = 64;
  spec.features = {
      .softcap = true, .alibi = true, .sinks = true, .bias = true, .tree_mask = true, .lse = true};
  spec.kv.dtype = DType::kF8E4M3;
  spec.kv.scales = ScaleGranularity::kPerHead;
  EXPECT_THAT(backend->supports(spec).reasons,
              ElementsAre(HasSubstr("chunks"), HasSubstr("tree masks"), HasSubstr("softcap"),
                          HasSubstr("bias"), HasSubstr("lse"), HasSubstr("ALiBi with a window"),
                          HasSubstr("blocks of 16"), HasSubstr("f8e4m3")));
  spec = feature_probes()[0].spec;  // a plain cache
  EXPECT_THAT(backend->supports(spec).reasons, ElementsAre(HasSubstr("preferred_layout")));
  spec.kv.layout = static_cast<KvLayoutId>(300);
  EXPECT_THAT(backend->supports(spec).reasons, ElementsAre(HasSubstr("private to another")));
}

TEST(OpenVino, RunsOnItsOwnThreads) {
  for (const int num_threads : {1, 2}) {
    openvino::RuntimeOptions options;
    options.num_threads = num_threads;
    const std::unique_ptr<openvino::Runtime> runtime = openvino::make_runtime(options);
    openvino::ModelKey key;
    key.num_q_heads = key.num_kv_heads = 2;
    key.head_dim = key.value_dim = 16;
    EXPECT_EQ(runtime->model(key)->num_threads(), num_threads);
  }
  EXPECT_THROW(
      static_cast<void>(make_backend("openvino", {.num_threads = 1, .isa = {}, .cpus = {0}})),
      Error);
}

TEST(OpenVino, ModelsAreKeptByUseAndBounded) {
  openvino::RuntimeOptions options;
  options.max_models = 3;
  const std::unique_ptr<openvino::Runtime> runtime = openvino::make_runtime(options);
  openvino::ModelKey key;
  key.num_q_heads = key.num_kv_heads = 1;
  key.head_dim = key.value_dim = 16;
  const std::shared_ptr<openvino::Model> first = runtime->model(key);
  EXPECT_EQ(runtime->model(key), first);
  EXPECT_EQ(runtime->num_models(), 1);
  for (const float sink : {1.0F, 2.0F, 3.0F, 4.0F}) {
    openvino::ModelKey other = key;
    other.sinks = {sink};
    EXPECT_NE(runtime->model(other), first);
    EXPECT_EQ(runtime->model(key), first);  // used last, so it stays
  }
  EXPECT_EQ(runtime->num_models(), 3);
}

TEST(OpenVino, ItsErrorsNameTheConfiguration) {
  const std::unique_ptr<openvino::Runtime> runtime = openvino::make_runtime({});
  openvino::ModelKey key;
  key.num_q_heads = 3;
  key.num_kv_heads = 2;
  key.head_dim = key.value_dim = 16;
  try {
    static_cast<void>(runtime->model(key));
    FAIL() << "OpenVINO took 3 query heads on 2 kv heads";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDevice);
    EXPECT_THAT(error.what(), HasSubstr("PagedAttention of 3/2 heads, dims 16/16, queries f32"));
  }
  EXPECT_EQ(runtime->num_models(), 0);
}

TEST(OpenVino, CopiesRegionsOfAnyStride) {
  std::vector<char> from = {'a', 'b', '-', 'c', 'd', '-', 'e', 'f'};  // blocks of 2, 3 apart
  std::vector<char> to(4, '.');
  const std::vector<BlockCopy> copies = {{.src = 2, .dst = 0}, {.src = 0, .dst = 1}};
  openvino::copy_regions({from.data(), 3, 2, 3}, {to.data(), 2, 2, 2}, copies);
  EXPECT_EQ(std::string(to.begin(), to.end()), "efab");
  // Of one block the stride may be anything.
  openvino::copy_regions({from.data() + 3, 1, 2, 0}, {to.data(), 1, 2, 0},
                         std::vector<BlockCopy>{{.src = 0, .dst = 0}});
  EXPECT_EQ(std::string(to.begin(), to.end()), "cdab");
}

struct Stored {
  DType dtype;
  ScaleGranularity scales;
  float tolerance;
};

class OpenVinoCache : public ::testing::TestWithParam<Stored> {
 protected:
  static GenerationShape shape() {
    GenerationShape shape;
    shape.kv_dtype = GetParam().dtype;
    shape.scales = GetParam().scales;
    return shape;
  }
};

// The prompt is stored and attended by one backend, the next tokens by another, and so on: at every
// step rows are those of the reference on numbers that were never rounded to 8 bits.
TEST_P(OpenVinoCache, MovesToAndFromOthers) {
  const std::unique_ptr<AttentionBackend> cpu = make_backend("cpu");
  const std::unique_ptr<AttentionBackend> vino = make_backend("openvino");
  Generation generation(shape());
  generation.start(*cpu, {70, 33, 5});
  EXPECT_LE(generation.step(*cpu), GetParam().tolerance);
  generation.move_to(*vino);
  for (int i = 0; i < 3; ++i) EXPECT_LE(generation.step(*vino), GetParam().tolerance);
  generation.move_to(*cpu);
  for (int i = 0; i < 2; ++i) EXPECT_LE(generation.step(*cpu), GetParam().tolerance);
}

// Over the ends of blocks, from the prompt on: 8-bit K is rounded anew when its block grows.
TEST_P(OpenVinoCache, GeneratesOverBlockEnds) {
  const std::unique_ptr<AttentionBackend> vino = make_backend("openvino");
  Generation generation(shape());
  generation.start(*vino, {31, 1, 64, 20});
  for (int i = 0; i < 40; ++i) ASSERT_LE(generation.step(*vino), GetParam().tolerance) << i;
  generation.swap_out_and_in(*vino);
  EXPECT_LE(generation.step(*vino), GetParam().tolerance);
  EXPECT_LE(generation.stored_error(*vino), GetParam().tolerance);
}

INSTANTIATE_TEST_SUITE_P(Types, OpenVinoCache,
                         ::testing::Values(Stored{DType::kF32, ScaleGranularity::kNone, 2e-6F},
                                           Stored{DType::kF16, ScaleGranularity::kNone, 2e-3F},
                                           Stored{DType::kBF16, ScaleGranularity::kNone, 2e-2F},
                                           Stored{DType::kI8, ScaleGranularity::kPerTokenHead,
                                                  4e-2F}),
                         [](const auto& stored) { return dtype_name(stored.param.dtype); });

AttentionSpec batch_spec(std::int64_t window_left) {
  AttentionSpec spec;
  spec.num_q_heads = spec.num_kv_heads = 1;
  spec.head_dim = spec.value_dim = 16;
  spec.kv.block_size = 32;
  spec.mask.window_left = window_left;
  return spec;
}

TEST(OpenVinoBatch, LeavesOutGapsPaddingAndWhatNobodySees) {
  const std::vector<std::int32_t> begins = {1, 3, 3};
  const std::vector<std::int32_t> ends = {3, 3, 4};
  const std::vector<std::int32_t> lens = {34, 5, 100};
  constexpr std::int32_t kNowhere = -7;
  const std::vector<std::int32_t> table = {8,        9,        kNowhere, kNowhere,  //
                                           4,        kNowhere, kNowhere, kNowhere,  //
                                           kNowhere, kNowhere, 6,        2};
  const std::vector<std::int64_t> slots = {-1, 9 * 32 + 0, 9 * 32 + 1, -1, 2 * 32 + 3};
  BatchView batch;
  batch.queries = {begins, ends};
  batch.kv.lens = lens;
  batch.kv.blocks = BlockTables::padded(table, 4);
  batch.kv.slots = slots;
  openvino::PackedBatch packed;
  packed.reserve({3, 8, 100, 139});
  packed.fill(batch_spec(33), batch);
  EXPECT_THAT(packed.q_rows(), ElementsAre(1, 2, 3));
  EXPECT_THAT(packed.kv_rows(), ElementsAre(1, 2, 4));
  EXPECT_FALSE(packed.q_in_place() || packed.kv_in_place());
  const auto list = [](const ArrayView<std::int32_t>& view) {
    return std::vector<std::int32_t>(view.begin(), view.end());
  };
  const OpenVinoMetadata& metadata = packed.metadata();
  // The third sequence sees keys 66.. of 100: its first two blocks do not exist here.
  EXPECT_THAT(list(metadata.past_lens), ElementsAre(32, 35));
  EXPECT_THAT(list(metadata.subsequence_begins), ElementsAre(0, 2, 3));
  EXPECT_THAT(list(metadata.block_indices), ElementsAre(8, 9, 6, 2));
  EXPECT_THAT(list(metadata.block_indices_begins), ElementsAre(0, 2, 4));
  EXPECT_EQ(metadata.max_context_len, 36);
}

TEST(OpenVinoBatch, RefusesWhatTheOperationCannotStore) {
  const std::vector<std::int32_t> begins = {0};
  const std::vector<std::int32_t> ends = {2};
  const std::vector<std::int32_t> lens = {34};
  const std::vector<std::int32_t> table = {8, 9};
  BatchView batch;
  batch.queries = {begins, ends};
  batch.kv.lens = lens;
  batch.kv.blocks = BlockTables::padded(table, 2);
  openvino::PackedBatch packed;
  packed.reserve({1, 2, 34, 34});
  const auto refused = [&](const std::vector<std::int64_t>& slots) {
    batch.kv.slots = slots;
    try {
      packed.fill(batch_spec(-1), batch);
    } catch (const Error& error) {
      return error.code() == ErrorCode::kInvalidArgument;
    }
    return false;
  };
  EXPECT_FALSE(refused({9 * 32, 9 * 32 + 1}));
  EXPECT_TRUE(packed.q_in_place() && packed.kv_in_place());
  EXPECT_TRUE(refused({}));                    // stores nothing
  EXPECT_TRUE(refused({9 * 32 + 1, 9 * 32}));  // in another order
  EXPECT_TRUE(refused({9 * 32, 9 * 32 + 2}));  // elsewhere
  EXPECT_TRUE(refused({9 * 32, -1}));          // one of two
}

TEST(OpenVinoBlocks, UnknownFormsAreRefused) {
  using openvino::CacheElement;
  openvino::CacheForm form;
  form.k = {"u8", 1, 2, 40, 64};
  form.v = {"u8", 1, 2, 32, 72};
  EXPECT_NO_THROW(openvino::require_known_form(form, CacheElement::kU8, 64, 64));
  form.k.num_rows = 48;  // smaller groups
  EXPECT_THROW(openvino::require_known_form(form, CacheElement::kU8, 64, 64), Error);
  EXPECT_THROW(openvino::require_known_form(form, CacheElement::kF32, 64, 64), Error);
}

TEST(OpenVinoSpec, LevelsDecideWhatIsComputedIn) {
  using openvino::CacheElement;
  using openvino::Level;
  AttentionSpec spec = batch_spec(-1);
  EXPECT_TRUE(model_key(spec, Level::kBF16).in_bf16);
  EXPECT_EQ(model_key(spec, Level::kBF16).cache, CacheElement::kBF16);
  EXPECT_FALSE(model_key(spec, Level::kF32).in_bf16);
  EXPECT_EQ(model_key(spec, Level::kF32).cache, CacheElement::kF32);
  spec.out_dtype = DType::kF32;
  EXPECT_EQ(model_key(spec, Level::kBF16).cache, CacheElement::kF32);
  for (const CacheElement element :
       {CacheElement::kF32, CacheElement::kF16, CacheElement::kBF16, CacheElement::kU8}) {
    EXPECT_EQ(openvino::element_of(openvino::layout_id(element)), element);
  }
  EXPECT_EQ(openvino::element_of(KvLayoutId::kPlain), std::nullopt);
}

}  // namespace
}  // namespace quire::testing

// SPDX-License-Identifier: Apache-2.0
// That the list holds what it promises: names, sizes, and every value of every dimension in the
// standard suite.
#include "conformance/case_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "conformance/run.h"
#include "quire/kv_cache.h"

namespace quire::conformance {
namespace {

std::vector<Case> standard() {
  return select(all_cases(), Suite::kStandard);
}

// Some case of the standard suite, among those that compare outputs.
template <class F>
bool has_case(F&& f) {
  static const std::vector<Case> cases = standard();
  return std::any_of(cases.begin(), cases.end(), [&](const Case& c) {
    const bool compares = c.check == Check::kAttend || c.check == Check::kInvariance;
    return compares && f(c);
  });
}

bool is_decode(const Case& c) {
  return std::all_of(c.sequences.begin(), c.sequences.end(),
                     [](const SequenceShape& s) { return s.q_len <= 1; });
}

TEST(CaseList, NamesAreUniqueAndSpecsValid) {
  std::set<std::string> names;
  for (const Case& c : all_cases()) {
    EXPECT_TRUE(names.insert(c.name).second) << c.name;
    EXPECT_NO_THROW(validate(c.spec)) << c.name;
    EXPECT_TRUE(c.cache != CacheStyle::kPairTiled || pair_tiled_layout_fits(c.spec)) << c.name;
    EXPECT_TRUE(c.cache != CacheStyle::kRagged || c.spec.kv.block_size == 1) << c.name;
  }
}

TEST(CaseList, SuitesContainEachOther) {
  const std::vector<Case> cases = all_cases();
  EXPECT_TRUE(std::is_sorted(cases.begin(), cases.end(),
                             [](const Case& a, const Case& b) { return a.suite < b.suite; }));
  const std::size_t smoke = select(cases, Suite::kSmoke).size();
  const std::size_t medium = select(cases, Suite::kStandard).size();
  EXPECT_GE(smoke, 40U);
  EXPECT_GE(medium, 400U);
  EXPECT_GE(cases.size(), medium + 500);
}

TEST(CaseList, ErrorsAreAveragedOverEnoughOutputs) {
  for (const Case& c : all_cases()) {
    const bool compares = c.check == Check::kAttend || c.check == Check::kInvariance;
    const std::int64_t outputs = num_tokens(c) * c.spec.num_q_heads * c.spec.value_dim;
    EXPECT_TRUE(!compares || outputs == 0 || outputs >= kMinOutputs) << c.name;
  }
}

TEST(CaseList, CoversHeadDims) {
  for (const int dim : {32, 40, 64, 72, 80, 96, 112, 120, 128, 160, 192, 256, 512}) {
    const auto fits = [dim](const Case& c) {
      return c.spec.head_dim == dim && c.spec.value_dim == dim;
    };
    EXPECT_TRUE(has_case([&](const Case& c) { return is_decode(c) && fits(c); })) << dim;
    EXPECT_TRUE(has_case([&](const Case& c) { return !is_decode(c) && fits(c); })) << dim;
  }
  for (const auto& [head_dim, value_dim] : {std::pair{192, 128}, {576, 512}, {64, 256}}) {
    const auto fits = [head_dim = head_dim, value_dim = value_dim](const Case& c) {
      const bool in_k = head_dim == 576;
      return c.spec.head_dim == head_dim && c.spec.value_dim == value_dim &&
             c.spec.kv.v_in_k == in_k;
    };
    EXPECT_TRUE(has_case(fits)) << head_dim << " and " << value_dim;
  }
}

TEST(CaseList, CoversGroupsAndBlockSizes) {
  for (const int group : {1, 2, 3, 4, 5, 7, 8, 16, 32}) {
    EXPECT_TRUE(has_case([&](const Case& c) { return c.spec.head_group() == group; })) << group;
  }
  for (const int size : {1, 2, 3, 8, 16, 19, 32, 64, 128, 256}) {
    // Lengths right before, at and after the end of a block.
    for (const std::int64_t length : {size - 1, size, size + 1}) {
      EXPECT_TRUE(has_case([&](const Case& c) {
        return c.spec.kv.block_size == size &&
               std::any_of(c.sequences.begin(), c.sequences.end(),
                           [&](const SequenceShape& s) { return s.kv_len == length; });
      })) << size
          << " with " << length;
    }
  }
}

TEST(CaseList, CoversTypes) {
  for (const DType q : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const DType kv :
         {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
      for (const ScaleGranularity scales :
           {ScaleGranularity::kNone, ScaleGranularity::kPerTensor, ScaleGranularity::kPerHead,
            ScaleGranularity::kPerTokenHead}) {
        if (is_quantized(kv) == (scales == ScaleGranularity::kNone)) continue;
        const auto fits = [&](const Case& c) {
          return c.spec.q_dtype == q && c.spec.kv.dtype == kv && c.spec.kv.scales == scales;
        };
        const std::string name = std::string(dtype_name(q)) + " " + dtype_name(kv);
        EXPECT_TRUE(has_case([&](const Case& c) { return is_decode(c) && fits(c); })) << name;
        EXPECT_TRUE(has_case([&](const Case& c) { return !is_decode(c) && fits(c); })) << name;
      }
    }
    EXPECT_TRUE(has_case(
        [&](const Case& c) { return c.spec.q_dtype == q && c.spec.out_dtype == DType::kF32; }));
  }
}

TEST(CaseList, CoversPlaces) {
  for (const CacheStyle style :
       {CacheStyle::kPreferred, CacheStyle::kPlainRecord, CacheStyle::kPairTiled,
        CacheStyle::kSeparate, CacheStyle::kUnaligned, CacheStyle::kRagged}) {
    EXPECT_TRUE(has_case([&](const Case& c) { return c.cache == style; }));
  }
  for (const KvOrder order : {KvOrder::kBlockHeadTokenDim, KvOrder::kBlockTokenHeadDim}) {
    for (const KvPacking packing :
         {KvPacking::kKvFirst, KvPacking::kKvPerBlock, KvPacking::kKvPerToken}) {
      EXPECT_TRUE(has_case([&](const Case& c) {
        return c.cache == CacheStyle::kPacked && c.order == order && c.packing == packing;
      }));
    }
  }
  for (const Arrival arrival : {Arrival::kStored, Arrival::kAppended, Arrival::kFused}) {
    EXPECT_TRUE(has_case([&](const Case& c) { return c.arrival == arrival; }));
  }
  EXPECT_TRUE(has_case([](const Case& c) { return c.shared_blocks > 0; }));
  EXPECT_TRUE(has_case([](const Case& c) { return c.table == TableStyle::kIndexed; }));
  EXPECT_TRUE(has_case([](const Case& c) { return c.padding_rows > 0; }));
  EXPECT_TRUE(has_case([](const Case& c) { return c.padding_slots; }));
}

TEST(Select, MatchesPatterns) {
  EXPECT_TRUE(matches("decode/basic", ""));
  EXPECT_TRUE(matches("decode/basic", "decode/*"));
  EXPECT_TRUE(matches("decode/basic", "*basic"));
  EXPECT_TRUE(matches("decode/basic", "prefill/*,*/bas?c"));
  EXPECT_FALSE(matches("decode/basic", "decode"));
  EXPECT_FALSE(matches("decode/basic", "decode/basic?"));
  EXPECT_FALSE(matches("decode/basic", "prefill/*,mixed/*"));
}

TEST(SeedOf, FollowsTheName) {
  EXPECT_EQ(seed_of(""), 0xcbf29ce484222325ULL);
  EXPECT_NE(seed_of("decode/basic"), seed_of("decode/basib"));
}

}  // namespace
}  // namespace quire::conformance

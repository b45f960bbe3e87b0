// SPDX-License-Identifier: Apache-2.0
// How the families write their cases: a base, and the one or two things in which a case differs.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "conformance/case.h"

namespace quire::conformance {

class CaseBuilder {
 public:
  // Causal self-attention, 8 query and 2 kv heads of dim 64, bf16, blocks of 16, with lse.
  CaseBuilder(std::string name, Suite suite, std::vector<SequenceShape> sequences) {
    case_.name = std::move(name);
    case_.suite = suite;
    case_.sequences = std::move(sequences);
    case_.spec.num_q_heads = 8;
    case_.spec.num_kv_heads = 2;
    case_.spec.features.lse = true;
    dims(64, 64);
  }

  CaseBuilder& heads(int num_q, int num_kv) {
    case_.spec.num_q_heads = num_q;
    case_.spec.num_kv_heads = num_kv;
    return *this;
  }
  CaseBuilder& dims(int head_dim, int value_dim) {
    case_.spec.head_dim = head_dim;
    case_.spec.value_dim = value_dim;
    return *this;
  }
  CaseBuilder& query(DType dtype) {
    case_.spec.q_dtype = dtype;
    case_.spec.out_dtype = dtype;
    return *this;
  }
  CaseBuilder& kv(DType dtype, ScaleGranularity scales = ScaleGranularity::kNone) {
    case_.spec.kv.dtype = dtype;
    case_.spec.kv.scales = scales;
    return *this;
  }
  CaseBuilder& block_size(int size) {
    case_.spec.kv.block_size = size;
    return *this;
  }
  CaseBuilder& mask(const Mask& mask) {
    case_.spec.mask = mask;
    return *this;
  }
  CaseBuilder& cross() {
    case_.spec.alignment = Alignment::kUnaligned;
    case_.spec.mask = {.causal = false};
    return *this;
  }
  CaseBuilder& softcap(float value = 20.0F) {
    case_.spec.features.softcap = true;
    case_.softcap = value;
    return *this;
  }
  CaseBuilder& alibi() {
    case_.spec.features.alibi = true;
    return *this;
  }
  CaseBuilder& sinks() {
    case_.spec.features.sinks = true;
    return *this;
  }
  CaseBuilder& bias(BiasStyle style, DType dtype = DType::kF32) {
    case_.spec.features.bias = true;
    case_.bias = style;
    case_.bias_dtype = dtype;
    return *this;
  }
  CaseBuilder& tree(TreeStyle style) {
    case_.spec.features.tree_mask = true;
    case_.tree = style;
    return *this;
  }
  CaseBuilder& data(DataStyle style) {
    case_.data = style;
    return *this;
  }
  CaseBuilder& cache(CacheStyle style) {
    case_.cache = style;
    if (style == CacheStyle::kRagged) case_.spec.kv.block_size = 1;
    return *this;
  }
  CaseBuilder& order(KvOrder order) {
    case_.order = order;
    return *this;
  }
  CaseBuilder& arrival(Arrival arrival, DType new_kv_dtype = DType::kBF16) {
    case_.arrival = arrival;
    case_.new_kv_dtype = new_kv_dtype;
    return *this;
  }
  CaseBuilder& check(Check check) {
    case_.check = check;
    return *this;
  }
  // Anything else.
  template <class F>
  CaseBuilder& with(F&& change) {
    change(case_);
    return *this;
  }

  // Repeats the sequences until there are the 4,096 outputs over which errors are averaged.
  void add_to(std::vector<Case>& cases);

 private:
  Case case_;
};

// The families, in the order of the list.
void add_decode_cases(std::vector<Case>& cases);
void add_prefill_cases(std::vector<Case>& cases);
void add_mixed_cases(std::vector<Case>& cases);
void add_cross_cases(std::vector<Case>& cases);
void add_cache_cases(std::vector<Case>& cases);
void add_merge_cases(std::vector<Case>& cases);
void add_model_cases(std::vector<Case>& cases);
void add_pair_cases(std::vector<Case>& cases);
void add_one_call_cases(std::vector<Case>& cases);

// Values that several families walk through.
struct KvType {
  DType dtype;
  ScaleGranularity scales;
};
const std::vector<KvType>& kv_types();
std::string kv_type_name(const KvType& type);
const std::vector<DType>& query_types();

struct NamedMask {
  const char* name;
  Mask mask;
};
// Of self-attention; windows and chunks in causal and in two-sided form.
const std::vector<NamedMask>& causal_masks();
const std::vector<NamedMask>& two_sided_masks();

struct NamedBias {
  const char* name;
  BiasStyle style;
};
const std::vector<NamedBias>& bias_styles();

struct NamedCache {
  const char* name;
  CacheStyle style;
  KvOrder order;
  KvPacking packing;
};
// Every place where K and V of equal dims can lie, but ragged.
const std::vector<NamedCache>& cache_places();

}  // namespace quire::conformance

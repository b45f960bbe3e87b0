// SPDX-License-Identifier: Apache-2.0
#include "attention/validate_fixture.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <utility>

namespace quire::testing {
namespace {

constexpr int kRows = 8;      // of q, out and lse
constexpr int kNumNewKv = 6;  // slots
constexpr float kPoison = -77.0F;

AttentionSpec make_spec() {
  AttentionSpec spec;
  spec.num_q_heads = 4;
  spec.num_kv_heads = 2;
  spec.head_dim = 8;
  spec.value_dim = 6;
  spec.q_dtype = DType::kF32;
  spec.out_dtype = DType::kF32;
  spec.kv.dtype = DType::kF32;
  spec.kv.block_size = 4;
  spec.features = {
      .softcap = true, .alibi = true, .sinks = true, .bias = true, .tree_mask = true, .lse = true};
  return spec;
}

std::vector<float> poisoned(std::int64_t size) {
  return std::vector<float>(static_cast<std::size_t>(size), kPoison);
}

constexpr std::size_t kLayerOfK = Step::kNumBlocks * 2 * 4 * 8;
constexpr std::size_t kLayerOfV = Step::kNumBlocks * 2 * 4 * 6;

// Two layers, one behind the other.
std::vector<KvCacheView> make_layers(const AttentionSpec& spec, std::vector<float>& k,
                                     std::vector<float>& v) {
  KvCacheView cache;
  k = poisoned(2 * kLayerOfK);
  v = poisoned(2 * kLayerOfV);
  cache.k = k.data();
  cache.v = v.data();
  cache.k_strides = {.block = 64, .head = 32, .token = 8};
  cache.v_strides = {.block = 48, .head = 24, .token = 6};
  cache.num_blocks = Step::kNumBlocks;
  cache.num_kv_heads = 2;
  cache.head_dim = 8;
  cache.value_dim = 6;
  cache.format = spec.kv;
  std::vector<KvCacheView> layers(2, cache);
  layers[1].k = k.data() + kLayerOfK;
  layers[1].v = v.data() + kLayerOfV;
  return layers;
}

}  // namespace

Step::Step()
    : spec(make_spec()),
      new_k_data(poisoned(kNumNewKv * 2 * 8)),
      new_v_data(poisoned(kNumNewKv * 2 * 6)),
      q_data(poisoned(kRows * 4 * 8)),
      bias_data(poisoned(4 * 4 * 3 * 10)),
      out_data(poisoned(kRows * 4 * 6)),
      lse_data(poisoned(kRows * 4)),
      merged_out_data(poisoned(kRows * 4 * 6)),
      merged_lse_data(poisoned(kRows * 4)) {
  batch.queries = {begins, ends};
  batch.kv = {lens, BlockTables::padded(indices, 3), slots};
  batch.tree_mask = {tree_bits, tree_begins, tree_depths};
  params.scale = 0.125F;
  params.softcap = 30.0F;
  params.alibi_slopes = slopes;
  params.sinks = sinks;
  params.bias = TensorView(bias_data.data(), DType::kF32, {4, 4, 3, 10});
  new_kv.k = TensorView(new_k_data.data(), DType::kF32, {kNumNewKv, 2, 8});
  new_kv.v = TensorView(new_v_data.data(), DType::kF32, {kNumNewKv, 2, 6});
  q = TensorView(q_data.data(), DType::kF32, {kRows, 4, 8});
  output.out = MutableTensorView(out_data.data(), DType::kF32, {kRows, 4, 6});
  output.lse = MutableTensorView(lse_data.data(), DType::kF32, {kRows, 4});
  src = make_layers(spec, k_data, v_data);
  cache = src[0];
  for (int i = 0; i < 2; ++i) partials.push_back({output.out, output.lse});
  merge_sinks = sinks;
  merged.out = MutableTensorView(merged_out_data.data(), DType::kF32, {kRows, 4, 6});
  merged.lse = MutableTensorView(merged_lse_data.data(), DType::kF32, {kRows, 4});
  dst = make_layers(spec, other_k_data, other_v_data);
}

void Step::quantize(ScaleGranularity granularity) {
  spec.kv.dtype = DType::kI8;
  spec.kv.scales = granularity;
  k_scale_data.assign(kNumBlocks * 2 * 4, 0.5F);
  v_scale_data.assign(kNumBlocks * 2 * 4, 0.25F);
  KvStrides strides;
  if (granularity == ScaleGranularity::kPerHead) strides = {.head = 1};
  if (granularity == ScaleGranularity::kPerTokenHead) strides = {.block = 8, .head = 4, .token = 1};
  for (KvCacheView* view : {&cache, &src[0], &src[1], &dst[0], &dst[1]}) {
    view->format = spec.kv;
    view->k_scales = {k_scale_data.data(), strides};
    view->v_scales = {v_scale_data.data(), strides};
  }
}

void Step::use_indexed() {
  batch.kv.blocks = BlockTables::indexed(index_begins, indices);
}

void Step::use_ragged() {
  spec.kv.block_size = 1;
  batch.kv.blocks = BlockTables::ragged(rows);
  cache.format.block_size = 1;
  cache.num_blocks = kNumBlocks * 4;
  cache.k_strides = {.block = 16, .head = 8};
  cache.v_strides = {.block = 12, .head = 6};
}

void Step::use_cross() {
  spec.alignment = Alignment::kUnaligned;
  spec.mask.causal = false;
  spec.features.alibi = false;
  spec.features.tree_mask = false;
  batch.tree_mask = {};
  params.alibi_slopes = {};
  for (std::int32_t& block : indices) block = block < 0 ? 0 : block;
}

std::vector<std::vector<float>> Step::written() const {
  return {out_data, lse_data,     merged_out_data, merged_lse_data, k_data,
          v_data,   k_scale_data, v_scale_data,    other_k_data,    other_v_data};
}

void Step::remember_written() {
  remembered_ = written();
}

bool Step::written_is_unchanged() const {
  const std::vector<std::vector<float>> now = written();
  for (std::size_t i = 0; i < now.size(); ++i) {  // as bytes: a scale may be NaN
    const std::size_t bytes = now[i].size() * sizeof(float);
    if (now[i].size() != remembered_[i].size() ||
        (bytes != 0 && std::memcmp(now[i].data(), remembered_[i].data(), bytes) != 0)) {
      return false;
    }
  }
  return true;
}

Refusal run_all(RecordingBackend& backend, Step& step) {
  std::unique_ptr<PreparedBatch> prepared;
  std::vector<std::byte> host;
  const auto make_prepared = [&] {
    Workspace workspace;
    workspace.size = backend.workspace(step.spec, step.bounds);
    host.resize(static_cast<std::size_t>(workspace.size.host_bytes) + 128);
    const auto address = reinterpret_cast<std::uintptr_t>(host.data());
    workspace.host = host.data() + (64 - address % 64) % 64 + step.workspace_offset_bytes;
    workspace.size.host_bytes -= step.missing_workspace_bytes;
    prepared = backend.make_prepared(step.spec, step.bounds, workspace);
  };
  const auto attend = [&] {
    const KvSource source =
        step.attend_stores ? KvSource(step.cache, step.new_kv) : KvSource(step.cache);
    backend.attend(*prepared, step.params, step.q, source, step.output, step.stream);
  };
  const auto append = [&] {
    if (!step.attend_stores) backend.append(*prepared, step.new_kv, step.cache, step.stream);
  };
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"supports", [&] { (void)backend.supports(step.spec); }},
      {"make_prepared", make_prepared},
      {"prepare", [&] { backend.prepare(*prepared, step.batch, step.stream); }},
      {"append", append},
      {"attend", attend},
      {"merge", [&] { backend.merge(step.partials, step.merge_sinks, step.merged, step.stream); }},
      {"copy_blocks", [&] { backend.copy_blocks(step.src, step.dst, step.copies, step.stream); }},
      {"copy_region", [&] { backend.copy_region(step.src, step.dst, step.region, step.stream); }},
      {"export_blocks",
       [&] { backend.export_blocks(step.src, step.dst, step.copies, step.stream); }},
      {"import_blocks",
       [&] { backend.import_blocks(step.src, step.dst, step.copies, step.stream); }},
  };
  for (const auto& [name, call] : calls) {
    backend.calls.clear();
    step.remember_written();
    try {
      call();
    } catch (const Error& error) {
      return {name, error.code(), error.what()};
    }
  }
  return {};
}

void expect_refused(const Case& spoiled) {
  RecordingBackend backend;
  Step step;
  spoiled.spoil(step);
  const Refusal refusal = run_all(backend, step);
  EXPECT_EQ(refusal.call, spoiled.call);
  const std::string expected = spoiled.message;
  if (expected.ends_with("*")) {
    EXPECT_EQ(refusal.message.substr(0, expected.size() - 1) + "*", expected) << refusal.message;
  } else {
    EXPECT_EQ(refusal.message, expected);
  }
  EXPECT_EQ(refusal.code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(backend.calls.empty()) << "reached do_" << backend.calls.front();
  EXPECT_TRUE(step.written_is_unchanged());
}

}  // namespace quire::testing

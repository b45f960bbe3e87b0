// SPDX-License-Identifier: Apache-2.0
// Memory of a device is never read: only shapes, devices and descriptions are checked. The pointers
// of these tests lead nowhere.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/validate_fixture.h"
#include "quire/backend.h"

namespace quire::testing {
namespace {

constexpr Device kDevice{DeviceKind::kCustom, 2};

template <class T>
void move(ArrayView<T>& array) {
  if (array.empty()) return;
  array.data = reinterpret_cast<const T*>(std::uintptr_t{4096});
  array.device = kDevice;
}

template <class Pointer>
void move(BasicTensorView<Pointer>& tensor, std::uintptr_t address = std::uintptr_t{1} << 30) {
  tensor.data = reinterpret_cast<Pointer>(address);
  tensor.device = kDevice;
}

void move(KvCacheView& cache, std::uintptr_t address) {
  const std::uintptr_t v_address = address + (std::uintptr_t{1} << 20);
  cache.k = reinterpret_cast<void*>(address);
  cache.v = reinterpret_cast<void*>(v_address);
  if (cache.k_scales.data != nullptr) {
    cache.k_scales.data = reinterpret_cast<float*>(address + 64);
    cache.v_scales.data = reinterpret_cast<float*>(v_address + 64);
  }
  cache.device = kDevice;
}

void move_batch(Step& step) {
  move(step.batch.queries.begins);
  move(step.batch.queries.ends);
  move(step.batch.kv.lens);
  move(step.batch.kv.blocks.indices);
  move(step.batch.kv.blocks.begins);
  move(step.batch.kv.blocks.rows);
  move(step.batch.kv.slots);
  move(step.batch.tree_mask.bits);
  move(step.batch.tree_mask.begins);
  step.tree_depths.resize(static_cast<std::size_t>(step.bounds.max_tokens));
  step.batch.tree_mask.depths = step.tree_depths;
  move(step.batch.tree_mask.depths);
}

// Tensors as large as the bounds, and nothing on the host.
void move_tensors(Step& step) {
  for (std::int64_t* rows :
       {&step.q.shape[0], &step.output.out.shape[0], &step.output.lse.shape[0]}) {
    *rows = step.bounds.max_tokens;
  }
  step.params.bias.shape[2] = step.bounds.max_tokens;
  step.params.bias.shape[3] = step.bounds.max_kv_len;
  move(step.params.alibi_slopes);
  move(step.params.sinks);
  std::uintptr_t address = std::uintptr_t{1} << 30;
  for (TensorView* read : {&step.params.bias, &step.new_kv.k, &step.new_kv.v, &step.q}) {
    move(*read, address += 1 << 20);
  }
  move(step.output.out, address += 1 << 20);
  move(step.output.lse, std::uintptr_t{1} << 31);
  move(step.cache, 1 << 16);
  step.partials.clear();
  move(step.merge_sinks);
  move(step.merged.out);
  move(step.merged.lse, std::uintptr_t{1} << 31);
  for (KvCacheView& layer : step.src) move(layer, 1 << 16);
}

TEST(ValidateDevice, ReadsNothing) {
  for (const ScaleGranularity scales :
       {ScaleGranularity::kNone, ScaleGranularity::kPerHead, ScaleGranularity::kPerTokenHead}) {
    for (int kind = 0; kind < 3; ++kind) {
      RecordingBackend backend(kDevice);
      Step step;
      if (scales != ScaleGranularity::kNone) step.quantize(scales);
      if (kind == 1) step.use_indexed();
      if (kind == 2) step.use_ragged();
      move_batch(step);
      move_tensors(step);  // dst stays on the host: a swap
      step.stream.handle = &step;
      const Refusal refusal = run_all(backend, step);
      EXPECT_EQ(refusal.call + ": " + refusal.message, ": ");
    }
  }
}

const Case kDeviceCases[] = {
    {"elsewhere", "prepare",
     [](Step& s) {
       for (Device* device : {&s.batch.queries.begins.device, &s.batch.queries.ends.device,
                              &s.batch.kv.lens.device, &s.batch.kv.blocks.indices.device,
                              &s.batch.kv.slots.device, &s.batch.tree_mask.bits.device,
                              &s.batch.tree_mask.begins.device, &s.batch.tree_mask.depths.device}) {
         *device = {DeviceKind::kCustom, 3};
       }
     },
     "queries.begins: on custom 3, but the backend computes on custom 2"},
    {"partly_on_host", "prepare", [](Step& s) { s.batch.kv.slots.device = {}; },
     "kv.slots: on host, but queries.begins on custom 2"},
    {"null", "prepare", [](Step& s) { s.batch.queries.ends.data = nullptr; },
     "queries.ends: null, size 4"},
    {"too_many_sequences", "prepare", [](Step& s) { s.bounds.max_sequences = 3; },
     "queries.begins: 4 sequences, more than max_sequences 3"},
    {"table_too_small", "prepare", [](Step& s) { s.batch.kv.blocks.row_stride = 4; },
     "kv.blocks.indices: too few for 4 rows of 4: 12"},
    {"too_few_depths", "prepare", [](Step& s) { s.batch.tree_mask.depths.size = 15; },
     "tree_mask.depths: needs 16 rows, has 15"},
    {"k_on_host", "append", [](Step& s) { s.new_kv.k.device = {}; },
     "new_kv.k: on host, but the backend computes on custom 2"},
    {"cache_on_host", "append", [](Step& s) { s.cache.device = {}; },
     "cache: on host, but the backend computes on custom 2"},
    {"fewer_rows_than_bound", "attend", [](Step& s) { s.q.shape[0] = 15; },
     "q: needs shape [>= 16, 4, 8], has [15, 4, 8]"},
    {"bias_below_bound", "attend", [](Step& s) { s.params.bias.shape[3] = 63; },
     "params.bias: needs shape [>= 4, 4, >= 16, >= 64], has [4, 4, 16, 63]"},
    {"sinks_on_host", "attend", [](Step& s) { s.params.sinks.device = {}; },
     "params.sinks: on host, but the backend computes on custom 2"},
    {"mixed_layers", "copy_blocks", [](Step& s) { s.src[1].device = {}; },
     "src[1]: on host, but src[0] on custom 2"},
};

class BadDeviceCall : public ::testing::TestWithParam<Case> {};

TEST_P(BadDeviceCall, IsRefused) {
  RecordingBackend backend(kDevice);
  Step step;
  move_batch(step);
  move_tensors(step);
  GetParam().spoil(step);
  const Refusal refusal = run_all(backend, step);
  EXPECT_EQ(refusal.call, GetParam().call);
  EXPECT_EQ(refusal.message, GetParam().message);
  EXPECT_TRUE(backend.calls.empty());
}

std::string case_name(const ::testing::TestParamInfo<Case>& tested) {
  return tested.param.name;
}
INSTANTIATE_TEST_SUITE_P(Validate, BadDeviceCall, ::testing::ValuesIn(kDeviceCases), case_name);

// The contents are unknown, so the bounds stand for them.
TEST(ValidateDevice, FactsAreTheBounds) {
  RecordingBackend backend(kDevice);
  Step step;
  move_batch(step);
  Workspace workspace;
  workspace.size = backend.workspace(step.spec, step.bounds);
  alignas(64) std::byte memory[1024];
  workspace.host = memory;
  const auto prepared = backend.make_prepared(step.spec, step.bounds, workspace);
  backend.prepare(*prepared, step.batch);
  const BatchFacts& facts = prepared->facts();
  EXPECT_TRUE(facts.on_device);
  EXPECT_EQ(facts.num_sequences, 4);
  EXPECT_EQ(facts.num_new_kv, 6);
  EXPECT_EQ(facts.num_rows, 16);
  EXPECT_EQ(facts.num_tokens, 16);
  EXPECT_EQ(facts.max_q_len, 16);
  EXPECT_EQ(facts.max_kv_len, 64);
  EXPECT_EQ(facts.total_kv_len, 100);
  EXPECT_EQ(facts.largest_block.value, -1);
  EXPECT_EQ(facts.largest_slot.value, -1);
}

// Metadata on the host is validated in full, wherever the backend computes.
TEST(ValidateDevice, HostMetadataIsRead) {
  RecordingBackend backend(kDevice);
  Step step;
  step.indices[4] = -7;
  EXPECT_EQ(run_all(backend, step).message,
            "kv.blocks: sequence 1, table entry 1: negative block: -7");
}

}  // namespace
}  // namespace quire::testing

// SPDX-License-Identifier: Apache-2.0
// The public calls of a backend: what they accept, what they learn of a batch, and what they do in
// which order. The validate tests hold what they refuse.
#include "quire/backend.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/validate_fixture.h"

namespace quire::testing {
namespace {

using Calls = std::vector<std::string>;

// A prepared batch with its memory.
struct Prepared {
  Prepared(AttentionBackend& backend, const Step& step) {
    workspace.size = backend.workspace(step.spec, step.bounds);
    memory.resize(static_cast<std::size_t>(workspace.size.host_bytes) + 64);
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    workspace.host = memory.data() + (64 - address % 64) % 64;
    batch = backend.make_prepared(step.spec, step.bounds, workspace);
  }
  std::vector<std::byte> memory;
  Workspace workspace;
  std::unique_ptr<PreparedBatch> batch;
};

struct Thrown {
  ErrorCode code = ErrorCode::kOk;
  std::string message;
};

Thrown thrown_by(auto&& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {};
}

TEST(Backend, RunsAValidStep) {
  for (void (*change)(Step&) :
       {+[](Step&) {}, +[](Step& s) { s.use_indexed(); }, +[](Step& s) { s.use_ragged(); },
        +[](Step& s) { s.use_cross(); }, +[](Step& s) { s.attend_stores = true; },
        +[](Step& s) { s.quantize(ScaleGranularity::kPerTensor); },
        +[](Step& s) { s.quantize(ScaleGranularity::kPerHead); },
        +[](Step& s) { s.quantize(ScaleGranularity::kPerTokenHead); }}) {
    RecordingBackend backend;
    Step step;
    change(step);
    const Refusal refusal = run_all(backend, step);
    EXPECT_EQ(refusal.call + ": " + refusal.message, ": ");
    for (const std::vector<float>* memory :
         {&step.out_data, &step.lse_data, &step.merged_out_data, &step.merged_lse_data,
          &step.k_data, &step.v_data, &step.other_k_data, &step.other_v_data}) {
      EXPECT_NE((*memory)[0], (*memory)[1]);  // the recording backend has written its byte
    }
  }
}

TEST(Backend, KnowsWhatItPrepared) {
  RecordingBackend backend;
  Step step;
  Prepared prepared(backend, step);
  backend.prepare(*prepared.batch, step.batch);
  const BatchFacts& facts = prepared.batch->facts();
  EXPECT_EQ(facts.num_sequences, 4);
  EXPECT_EQ(facts.num_rows, 7);
  EXPECT_EQ(facts.num_tokens, 6);
  EXPECT_EQ(facts.num_new_kv, 6);
  EXPECT_EQ(facts.max_q_len, 3);
  EXPECT_EQ(facts.max_kv_len, 10);
  EXPECT_EQ(facts.total_kv_len, 27);
  EXPECT_EQ(facts.largest_block.value, 8);
  EXPECT_EQ(facts.largest_block.sequence, 3);
  EXPECT_EQ(facts.largest_block.index, 0);
  EXPECT_EQ(facts.largest_slot.value, 22);
  EXPECT_EQ(facts.largest_slot.index, 2);
  EXPECT_EQ(facts.largest_row.value, -1);
  EXPECT_FALSE(facts.on_device);
  EXPECT_EQ(prepared.batch->batch().kv.lens.data, step.lens.data());
  EXPECT_EQ(prepared.batch->spec(), step.spec);
}

TEST(Backend, PreparesNothing) {
  RecordingBackend backend;
  Step step;
  Prepared prepared(backend, step);
  backend.prepare(*prepared.batch, BatchView{});
  const BatchFacts& facts = prepared.batch->facts();
  EXPECT_EQ(facts.num_sequences, 0);
  EXPECT_EQ(facts.num_rows, 0);
  EXPECT_EQ(facts.largest_block.value, -1);
}

// More queries than keys: the first rows have negative positions and see nothing.
TEST(Backend, AcceptsMoreQueriesThanKeys) {
  RecordingBackend backend;
  Step step;
  step.batch.tree_mask = {};
  step.lens = {0, 1, 0, 1};
  step.indices = {-1, -1, -1, 0, -1, -1, -1, -1, -1, 3, -1, -1};
  EXPECT_EQ(run_all(backend, step).message, "");
}

TEST(Backend, SplitsTheWorkspace) {
  RecordingBackend backend;
  Step step;
  Prepared prepared(backend, step);
  EXPECT_EQ(prepared.workspace.size.host_bytes, 100 + 128);  // 32 entries for 16 slots
  EXPECT_EQ(prepared.batch->workspace().size.host_bytes, 100);
  EXPECT_EQ(prepared.batch->workspace().host,
            static_cast<std::byte*>(prepared.workspace.host) + 128);
  Workspace shifted = prepared.workspace;
  shifted.host = static_cast<std::byte*>(shifted.host) + 32;
  const std::string message =
      thrown_by([&] { (void)backend.make_prepared(step.spec, step.bounds, shifted); }).message;
  EXPECT_EQ(message.rfind("workspace.host: not aligned to 64 bytes: 0x", 0), 0U) << message;
  Workspace absent = prepared.workspace;
  absent.host = nullptr;
  EXPECT_EQ(thrown_by([&] { (void)backend.make_prepared(step.spec, step.bounds, absent); }).message,
            "workspace.host: missing, needed bytes: 228");
  backend.own_workspace.device_bytes = 64;
  const Workspace& host_only = prepared.workspace;
  EXPECT_EQ(
      thrown_by([&] { (void)backend.make_prepared(step.spec, step.bounds, host_only); }).message,
      "workspace.device: missing, needed bytes: 64");
}

TEST(Backend, GivesEveryReason) {
  RecordingBackend backend;
  Step step;
  Prepared prepared(backend, step);
  backend.support.reasons = {"alibi: not here", "dim 8: too small"};
  EXPECT_FALSE(backend.supports(step.spec).ok());
  const auto expect_reasons = [](const Thrown& thrown) {
    EXPECT_EQ(thrown.code, ErrorCode::kUnsupported);
    EXPECT_EQ(thrown.message,
              "backend recording refuses the spec: alibi: not here; dim 8: too small");
  };
  expect_reasons(thrown_by([&] { (void)backend.workspace(step.spec, step.bounds); }));
  expect_reasons(
      thrown_by([&] { (void)backend.make_prepared(step.spec, step.bounds, prepared.workspace); }));
}

TEST(Backend, TakesOnlyItsOwnReadyBatches) {
  RecordingBackend backend;
  RecordingBackend other;
  Step step;
  Prepared prepared(backend, step);
  const auto append = [&] { backend.append(*prepared.batch, step.new_kv, step.cache); };
  const auto attend = [&] {
    backend.attend(*prepared.batch, step.params, step.q, step.cache, step.output);
  };
  const std::string not_ready = "prepared: no batch, because prepare was not called or has failed";
  EXPECT_EQ(thrown_by(append).message, not_ready);
  EXPECT_EQ(thrown_by(attend).message, not_ready);
  backend.prepare(*prepared.batch, step.batch);
  EXPECT_EQ(thrown_by(append).message, "");
  EXPECT_EQ(thrown_by([&] { other.prepare(*prepared.batch, step.batch); }).message,
            "prepared: made by another backend than this recording");
  EXPECT_EQ(thrown_by([&] { other.append(*prepared.batch, step.new_kv, step.cache); }).message,
            "prepared: made by another backend than this recording");
  EXPECT_EQ(thrown_by(attend).message, "");

  step.lens[0] = -1;
  EXPECT_NE(thrown_by([&] { backend.prepare(*prepared.batch, step.batch); }).message, "");
  EXPECT_EQ(thrown_by(append).message, not_ready);
  EXPECT_EQ(thrown_by(attend).message, not_ready);
  step.lens[0] = 3;
  backend.prepare(*prepared.batch, step.batch);
  EXPECT_EQ(thrown_by(attend).message, "");
  EXPECT_TRUE(other.calls.empty());
}

TEST(Backend, StoresBeforeItAttends) {
  RecordingBackend backend;
  Step step;
  Prepared prepared(backend, step);
  backend.prepare(*prepared.batch, step.batch);
  backend.calls.clear();
  backend.attend(*prepared.batch, step.params, step.q, KvSource(step.cache, step.new_kv),
                 step.output);
  EXPECT_EQ(backend.calls, (Calls{"append", "attend"}));
}

TEST(Backend, LeavesStoringToFusedAttend) {
  RecordingBackend backend;
  backend.support.fused_append = true;
  Step step;
  Prepared prepared(backend, step);
  backend.prepare(*prepared.batch, step.batch);
  backend.calls.clear();
  const Thrown append =
      thrown_by([&] { backend.append(*prepared.batch, step.new_kv, step.cache); });
  EXPECT_EQ(append.code, ErrorCode::kUnsupported);
  EXPECT_EQ(append.message,
            "append: backend recording stores K and V inside attend; give them to attend");
  const Thrown attend = thrown_by(
      [&] { backend.attend(*prepared.batch, step.params, step.q, step.cache, step.output); });
  EXPECT_EQ(attend.code, ErrorCode::kUnsupported);
  EXPECT_EQ(attend.message,
            "attend: backend recording stores K and V inside attend; give it new K and V");
  EXPECT_TRUE(backend.calls.empty());
  backend.attend(*prepared.batch, step.params, step.q, KvSource(step.cache, step.new_kv),
                 step.output);
  EXPECT_EQ(backend.calls, (Calls{"attend with new K and V"}));
}

TEST(Backend, ReadsWhereHeadsShareMemory) {
  RecordingBackend backend;
  Step step;
  Prepared prepared(backend, step);
  backend.prepare(*prepared.batch, step.batch);
  step.cache.k_strides.head = 0;
  step.cache.v = step.cache.k;
  step.cache.v_strides = step.cache.k_strides;
  EXPECT_EQ(thrown_by([&] {
              backend.attend(*prepared.batch, step.params, step.q, step.cache, step.output);
            }).message,
            "");
  EXPECT_NE(thrown_by([&] { backend.append(*prepared.batch, step.new_kv, step.cache); }).message,
            "");
}

TEST(Backend, DefaultsArePlainAndSilent) {
  RecordingBackend backend;
  Step step;
  Prepared prepared(backend, step);
  EXPECT_TRUE(backend.poll(*prepared.batch).ok());
  const KvLayout layout = backend.preferred_layout(step.spec);
  EXPECT_EQ(layout.id, KvLayoutId::kPlain);
  EXPECT_EQ(layout.block_bytes, plain_layout(step.spec).block_bytes);
}

TEST(Spec, ReadsAsText) {
  AttentionSpec spec;
  spec.num_q_heads = 32;
  spec.num_kv_heads = 8;
  spec.head_dim = spec.value_dim = 128;
  spec.kv = {.dtype = DType::kF8E4M3, .scales = ScaleGranularity::kPerHead};
  spec.mask.window_left = 1023;
  spec.features.sinks = true;
  EXPECT_EQ(to_string(spec),
            "32/8 heads, dim 128, bf16, kv f8e4m3 block 16 per-head, causal window 1023:-1, sinks");
  spec = {};
  spec.num_q_heads = 16;
  spec.num_kv_heads = 1;
  spec.head_dim = 576;
  spec.value_dim = 512;
  spec.out_dtype = DType::kF32;
  spec.kv = {.block_size = 64, .v_in_k = true, .layout = KvLayoutId::kPairTiled};
  spec.mask = {.causal = false, .chunk = 4096};
  spec.features = {.softcap = true, .alibi = true, .bias = true, .tree_mask = true, .lse = true};
  EXPECT_EQ(to_string(spec),
            "16/1 heads, dim 576/512, bf16 out f32, kv bf16 block 64 v-in-k pair-tiled, "
            "full chunk 4096, softcap, alibi, bias, tree mask, lse");
  spec.alignment = Alignment::kUnaligned;
  spec.mask.chunk = 0;
  spec.features = {};
  spec.kv.layout = static_cast<KvLayoutId>(257);
  EXPECT_EQ(to_string(spec),
            "16/1 heads, dim 576/512, bf16 out f32, kv bf16 block 64 v-in-k private 257, "
            "unaligned");
}

}  // namespace
}  // namespace quire::testing

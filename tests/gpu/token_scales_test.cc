// SPDX-License-Identifier: Apache-2.0
// Values with scales of their own tokens: a row is as exact as the values that it sees, whatever
// others hold. Runs on the emulator and, in gpu_graph_tests, on a CUDA device.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/number_formats.h"
#include "conformance/device_buffer.h"
#include "gpu/tested_gpu.h"
#include "quire/kv_cache.h"

namespace quire::testing {
namespace {

using conformance::DeviceBuffer;

constexpr int kHeads = 2;  // of the queries; one of K and V
constexpr int kDim = 64;

AttentionSpec make_spec(DType stored) {
  AttentionSpec spec;
  spec.num_q_heads = kHeads;
  spec.num_kv_heads = 1;
  spec.head_dim = spec.value_dim = kDim;
  spec.q_dtype = spec.out_dtype = DType::kF16;
  spec.kv.dtype = stored;
  spec.kv.block_size = 16;
  spec.kv.scales = ScaleGranularity::kPerTokenHead;
  return spec;
}

template <class T>
DeviceBuffer buffer_of(DeviceMemory& memory, const std::vector<T>& values) {
  DeviceBuffer buffer(memory, static_cast<std::int64_t>(values.size() * sizeof(T)));
  buffer.upload(values.data(), 0, buffer.size_bytes());
  return buffer;
}

// Out of one sequence of new tokens alone, the values of the last one multiplied by `factor`.
std::vector<float> attend_with_last(AttentionBackend& backend, DType stored, int num_tokens,
                                    float factor) {
  const AttentionSpec spec = make_spec(stored);
  DeviceMemory& memory = backend.memory();
  const auto wave = [](int i) { return std::sin(static_cast<float>(i) * 1.7F); };
  std::vector<float> k(static_cast<std::size_t>(num_tokens * kDim));
  std::vector<float> v(k.size());
  std::vector<Float16> q(static_cast<std::size_t>(num_tokens * kHeads * kDim));
  for (std::size_t i = 0; i < k.size(); ++i) {
    k[i] = wave(static_cast<int>(i));
    v[i] = wave(3 * static_cast<int>(i) + 1);
    if (i >= k.size() - kDim) v[i] *= factor;
  }
  for (std::size_t i = 0; i < q.size(); ++i) {
    q[i] = from_float<Float16>(wave(5 * static_cast<int>(i) + 2));
  }
  const DeviceBuffer k_there = buffer_of(memory, k);
  const DeviceBuffer v_there = buffer_of(memory, v);
  const DeviceBuffer q_there = buffer_of(memory, q);
  const DeviceBuffer out_there = buffer_of(memory, q);

  const KvCache cache(memory, spec, plain_layout(spec), {.num_blocks = 4});
  const std::vector<std::int32_t> begins = {0};
  const std::vector<std::int32_t> ends = {num_tokens};
  const std::vector<std::int32_t> table = {2, 0, 3, 1};
  std::vector<std::int64_t> slots;
  for (int i = 0; i < num_tokens; ++i) {
    slots.push_back(table[static_cast<std::size_t>(i / 16)] * 16 + i % 16);
  }
  BatchView batch;
  batch.queries = {begins, ends};
  batch.kv.lens = ends;
  batch.kv.blocks = BlockTables::padded(table, 4);
  batch.kv.slots = slots;
  const BatchBounds bounds{1, num_tokens, num_tokens, num_tokens};
  const WorkspaceBuffer workspace(memory, backend.workspace(spec, bounds));
  const auto prepared = backend.make_prepared(spec, bounds, workspace.view());
  backend.prepare(*prepared, batch);
  const auto rows = [&](const DeviceBuffer& buffer, DType dtype, int heads) {
    return MutableTensorView(buffer.data(), dtype, {num_tokens, heads, kDim}, memory.device());
  };
  backend.append(*prepared, {rows(k_there, DType::kF32, 1), rows(v_there, DType::kF32, 1)},
                 cache.layer(0));
  AttentionParams params;
  params.scale = 0.125F;
  backend.attend(*prepared, params, rows(q_there, DType::kF16, kHeads), cache.layer(0),
                 {rows(out_there, DType::kF16, kHeads), {}});
  memory.synchronize(Stream{});
  out_there.download(q.data(), 0, out_there.size_bytes());
  std::vector<float> out;
  for (const Float16 x : q) out.push_back(to_float(x));
  return out;
}

TEST(GpuTokenScales, LargeValuesChangeOnlyRowsThatSeeThem) {
  const TestedGpu gpu = make_tested_gpu();
  if (!gpu.reason.empty()) GTEST_SKIP() << gpu.reason;
  for (const DType stored : {DType::kI8, DType::kF8E4M3}) {
    for (const int num_tokens : {3, 7, 40}) {  // rows for each of the three kernels
      SCOPED_TRACE(num_tokens);
      const std::vector<float> want = attend_with_last(*gpu.backend, stored, num_tokens, 1.0F);
      const std::vector<float> got = attend_with_last(*gpu.backend, stored, num_tokens, 1e30F);
      const std::size_t num_earlier = want.size() - kHeads * kDim;
      for (std::size_t i = 0; i < num_earlier; ++i) {
        ASSERT_NEAR(got[i], want[i], 2e-3F) << "row " << i / kDim << ", dim " << i % kDim;
      }
    }
  }
}

}  // namespace
}  // namespace quire::testing

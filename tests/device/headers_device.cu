// SPDX-License-Identifier: Apache-2.0
// The headers that host and device share, as device code: number formats, masks, cache offsets and
// the plan. Clang compiles the kernels for AMD GPUs (device side alone, without the vendor's
// headers). nvcc makes a program that plans a batch and walks its items on the host and on the
// device where there is one; it returns 1 when anything differs.
#include <cstdint>

#include "attention/mask.h"
#include "base/host_device.h"
#include "base/number_formats.h"
#include "layout/kv_offset.h"
#include "plan/plan.h"

#if defined(__HIP__)
#define QUIRE_TEST_KERNEL __attribute__((global))
QUIRE_HOST_DEVICE inline std::int64_t thread_index() {
#if defined(__HIP_DEVICE_COMPILE__)
  return std::int64_t{__builtin_amdgcn_workgroup_id_x()} * 64 + __builtin_amdgcn_workitem_id_x();
#else
  return 0;
#endif
}
#else
#define QUIRE_TEST_KERNEL __global__
__device__ inline std::int64_t thread_index() {
  return std::int64_t{blockIdx.x} * 64 + threadIdx.x;
}
#endif

namespace {

using quire::BatchPlan;
using quire::BatchView;
using quire::KvCacheView;
using quire::KvTensor;
using quire::PlanSpec;

// What the host and the device must agree on for one item.
struct Walked {
  quire::WorkItem item;
  std::int64_t cost;
  std::int64_t merge_rows;    // of the merge that it feeds
  std::int64_t num_visible;   // pairs of rows and keys
  std::int64_t k_sum, v_sum;  // of a stored element of every visible key, in sixteenths
};

QUIRE_HOST_DEVICE inline std::int64_t sixteenths(const KvCacheView& cache, KvTensor tensor,
                                                 std::int64_t slot, std::int64_t head,
                                                 std::int64_t dim) {
  const void* base = tensor == KvTensor::kK ? cache.k : cache.v;
  const std::int64_t offset = element_offset(cache, tensor, slot / cache.format.block_size, head,
                                             slot % cache.format.block_size, dim);
  return static_cast<std::int64_t>(quire::load_float(cache.format.dtype, base, offset) * 16.0f);
}

QUIRE_HOST_DEVICE inline Walked walk(const PlanSpec& spec, const BatchView& batch,
                                     const BatchPlan& plan, const KvCacheView& cache,
                                     std::int64_t index) {
  Walked result{};
  result.item = item_at(spec, plan, index);
  const quire::WorkItem& item = result.item;
  result.cost = item_cost(spec, item);
  if (item.num_splits > 1) result.merge_rows = merge_at(spec, plan, item.merge).rows.size();
  const quire::SequenceView sequence = sequence_view(batch, item.sequence);
  for (std::int64_t head = item.kv_heads.begin; head < item.kv_heads.end; ++head) {
    for (std::int64_t key = item.keys.begin; key < item.keys.end; ++key) {
      const std::int64_t slot =
          key_slot(batch.kv.blocks, cache.format.block_size, item.sequence, key);
      for (std::int64_t row = item.rows.begin; row < item.rows.end; ++row) {
        if (!is_visible(spec.mask, spec.alignment, sequence, row / spec.group, key)) continue;
        ++result.num_visible;
        result.k_sum += sixteenths(cache, KvTensor::kK, slot, head, row % cache.head_dim);
        result.v_sum += sixteenths(cache, KvTensor::kV, slot, head, row % cache.value_dim);
      }
    }
  }
  return result;
}

QUIRE_TEST_KERNEL void plan_kernel(PlanSpec spec, BatchView batch, BatchPlan plan) {
  if (thread_index() == 0) plan_batch(spec, batch, plan);
}

// `plan` has been filled by plan_kernel, the number of sequences apart.
QUIRE_TEST_KERNEL void walk_kernel(PlanSpec spec, BatchView batch, BatchPlan plan,
                                   KvCacheView cache, Walked* results) {
  plan.num_sequences = batch.queries.begins.size;
  const std::int64_t i = thread_index();
  if (i < plan.offsets[plan.num_sequences].items) results[i] = walk(spec, batch, plan, cache, i);
}

}  // namespace

#if !defined(__HIP__)

#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

namespace {

constexpr int kNumSequences = 40;
constexpr int kBlockSize = 16;
constexpr int kMaxBlocks = 64;  // of one sequence

// Memory that host and device both read; the program ends before it would have to be freed.
template <class T>
T* shared_array(std::size_t size) {
  void* data = nullptr;
  if (cudaMallocManaged(&data, size * sizeof(T)) != cudaSuccess) data = new char[size * sizeof(T)];
  std::memset(data, 0, size * sizeof(T));
  return static_cast<T*>(data);
}

quire::AttentionSpec make_spec() {
  quire::AttentionSpec spec;
  spec.num_q_heads = 20;
  spec.num_kv_heads = 4;
  spec.head_dim = 32;
  spec.value_dim = 16;
  spec.kv.dtype = quire::DType::kF8E4M3;
  spec.kv.scales = quire::ScaleGranularity::kPerTensor;
  spec.kv.block_size = kBlockSize;
  spec.mask.window_left = 700;
  return spec;
}

// kv_heads_per_item 3 of 4 heads, tiles that end inside a token, splits from 64 keys on.
PlanSpec make_plan(const quire::AttentionSpec& spec) {
  PlanSpec plan;
  plan.params.kv_heads_per_item = 3;
  plan.params.row_tile = 16;
  plan.params.key_tile = 32;
  plan.params.split = {
      .min_keys = 64, .unsplit_keys = 100, .merge_keys = 4, .max_partial_percent = 90};
  plan.mask = spec.mask;
  plan.group = spec.num_q_heads / spec.num_kv_heads;
  plan.num_kv_heads = spec.num_kv_heads;
  plan.key_bytes = spec.head_dim + spec.value_dim;
  plan.partial_row_bytes = spec.value_dim * 4 + 8;
  return plan;
}

// Ragged lengths, every third sequence with a tree mask.
BatchView make_batch(std::mt19937& random) {
  const auto below = [&random](int n) {
    return static_cast<int>(random() % static_cast<unsigned>(n));
  };
  auto* begins = shared_array<std::int32_t>(kNumSequences);
  auto* ends = shared_array<std::int32_t>(kNumSequences);
  auto* lens = shared_array<std::int32_t>(kNumSequences);
  auto* table = shared_array<std::int32_t>(kNumSequences * kMaxBlocks);
  auto* tree_begins = shared_array<std::int64_t>(kNumSequences);
  auto* tree_bits = shared_array<std::uint8_t>(kNumSequences * 40 * 5);
  std::int64_t num_bits_bytes = 0;
  for (int s = 0; s < kNumSequences; ++s) {
    const int q_len = below(3) == 0 ? 1 : below(40);
    begins[s] = s == 0 ? 0 : ends[s - 1] + below(2);
    ends[s] = begins[s] + q_len;
    lens[s] = below(kMaxBlocks * kBlockSize);
    tree_begins[s] = s % 3 == 0 && q_len <= lens[s] ? num_bits_bytes : -1;
    if (tree_begins[s] >= 0) num_bits_bytes += quire::tree_mask_bytes(q_len);
  }
  for (std::int64_t i = 0; i < num_bits_bytes; ++i)
    tree_bits[i] = static_cast<std::uint8_t>(random());
  for (int i = 0; i < kNumSequences * kMaxBlocks; ++i) table[i] = below(kMaxBlocks);
  BatchView batch;
  batch.queries = {{begins, kNumSequences}, {ends, kNumSequences}};
  batch.kv.lens = {lens, kNumSequences};
  batch.kv.blocks = quire::BlockTables::padded({table, kNumSequences * kMaxBlocks}, kMaxBlocks);
  batch.tree_mask.bits = {tree_bits, num_bits_bytes};
  batch.tree_mask.begins = {tree_begins, kNumSequences};
  return batch;
}

KvCacheView make_cache(const quire::AttentionSpec& spec, std::mt19937& random) {
  const std::int64_t token = spec.num_kv_heads * spec.head_dim;
  const auto size = static_cast<std::size_t>(kMaxBlocks * kBlockSize * token);
  auto* bytes = shared_array<std::uint8_t>(2 * size);
  // Small positive numbers: never NaN.
  for (std::size_t i = 0; i < 2 * size; ++i) bytes[i] = static_cast<std::uint8_t>(random() % 0x60);
  KvCacheView cache;
  cache.k = bytes;
  cache.v = bytes + size;
  cache.k_strides = {kBlockSize * token, spec.head_dim, token};
  cache.v_strides = cache.k_strides;
  cache.num_blocks = kMaxBlocks;
  cache.num_kv_heads = spec.num_kv_heads;
  cache.head_dim = spec.head_dim;
  cache.value_dim = spec.value_dim;
  cache.format = spec.kv;
  return cache;
}

BatchPlan make_storage() {
  auto* memory = shared_array<std::int64_t>(
      static_cast<std::size_t>(quire::plan_bytes(kNumSequences)) / sizeof(std::int64_t));
  return quire::view_plan(memory, kNumSequences);
}

}  // namespace

int main() {
  std::mt19937 random(1);
  const quire::AttentionSpec attention = make_spec();
  const PlanSpec spec = make_plan(attention);
  const BatchView batch = make_batch(random);
  const KvCacheView cache = make_cache(attention, random);
  BatchPlan host_plan = make_storage();
  plan_batch(spec, batch, host_plan);
  const std::int64_t num_items = host_plan.offsets[kNumSequences].items;
  std::vector<Walked> expected;
  for (std::int64_t i = 0; i < num_items; ++i)
    expected.push_back(walk(spec, batch, host_plan, cache, i));
  std::printf("host: %ld items, %ld merges\n", static_cast<long>(num_items),
              static_cast<long>(host_plan.offsets[kNumSequences].merges));
  int num_devices = 0;
  if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
    std::printf("device: skipped, no CUDA device here\n");
    return 0;
  }
  const BatchPlan device_plan = make_storage();
  auto* results = shared_array<Walked>(static_cast<std::size_t>(num_items));
  plan_kernel<<<1, 64>>>(spec, batch, device_plan);
  walk_kernel<<<static_cast<unsigned>(num_items / 64 + 1), 64>>>(spec, batch, device_plan, cache,
                                                                 results);
  if (cudaDeviceSynchronize() != cudaSuccess) {
    std::printf("device: %s\n", cudaGetErrorString(cudaGetLastError()));
    return 1;
  }
  long failed = 0;
  for (std::int64_t i = 0; i < num_items; ++i) {
    if (std::memcmp(&expected[static_cast<std::size_t>(i)], &results[i], sizeof(Walked)) == 0)
      continue;
    if (++failed <= 10) std::printf("device differs from host at item %ld\n", static_cast<long>(i));
  }
  std::printf("device: %ld items agree, %ld differ\n", static_cast<long>(num_items) - failed,
              failed);
  return failed == 0 ? 0 : 1;
}

#endif  // !__HIP__

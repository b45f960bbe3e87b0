// SPDX-License-Identifier: Apache-2.0
#include "backends/openvino/openvino_backend.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "backends/cpu/merge_partials.h"
#include "backends/host_backend.h"
#include "backends/openvino/cache_blocks.h"
#include "backends/openvino/operation_spec.h"
#include "backends/openvino/packed_batch.h"
#include "backends/openvino/paged_attention.h"
#include "backends/openvino/row_packing.h"
#include "base/check.h"
#include "base/cpu_features.h"
#include "layout/kv_extent.h"
#include "layout/kv_rows.h"

namespace quire::openvino {
namespace {

struct Prepared final : PreparedBatch {
  using PreparedBatch::PreparedBatch;
  PackedBatch packed;
};

// Parts of the workspace, for tensors that are not as the operation wants them.
struct Scratch {
  std::byte* q = nullptr;    // [max_tokens, num_q_heads, head_dim], q_dtype
  std::byte* k = nullptr;    // [max_tokens, num_kv_heads, head_dim], computed
  std::byte* v = nullptr;    // [max_tokens, num_kv_heads, value_dim], computed
  std::byte* out = nullptr;  // [max_tokens, num_q_heads, value_dim], computed
  std::int64_t size_bytes = 0;
};

Scratch divide(const ModelKey& key, std::int64_t max_tokens, void* memory) {
  Scratch scratch;
  const auto take = [&](std::byte*& part, DType dtype, int num_heads, int dim) {
    constexpr std::int64_t kAlignment = 64;
    if (memory != nullptr) part = static_cast<std::byte*>(memory) + scratch.size_bytes;
    const std::int64_t bytes = max_tokens * num_heads * dim * dtype_bytes(dtype);
    scratch.size_bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  take(scratch.q, key.q_dtype, key.num_q_heads, key.head_dim);
  take(scratch.k, key.computed(), key.num_kv_heads, key.head_dim);
  take(scratch.v, key.computed(), key.num_kv_heads, key.value_dim);
  take(scratch.out, key.computed(), key.num_q_heads, key.value_dim);
  return scratch;
}

// The rows of a tensor as the operation takes them: the tensor itself where it is that already.
const void* packed_rows(const TensorView& tensor, const std::vector<std::int64_t>& rows,
                        bool in_place, DType dtype, DType through, std::byte* scratch) {
  const bool same = tensor.dtype == dtype && through == dtype;
  if (same && in_place && is_dense(tensor)) return tensor.data;
  pack_rows(tensor, rows, dtype, through, scratch);
  return scratch;
}

// Tokens that a row sees, its own included, as the operation counts them.
std::int32_t window_of(const Mask& mask) {
  if (mask.window_left < 0) return 0;
  return static_cast<std::int32_t>(
      std::min<std::int64_t>(mask.window_left + 1, std::numeric_limits<std::int32_t>::max()));
}

class OpenVinoBackend final : public HostBackend {
 public:
  OpenVinoBackend(Level level, const RuntimeOptions& options)
      : level_(level), runtime_(make_runtime(options)) {}

  BackendInfo info() const override {
    return {.name = "openvino",
            .version = runtime_->facts().version,
            .isa = level_name(level_),
            .device = {},
            .batch_invariant = false};
  }

  KvLayout preferred_layout(const AttentionSpec& spec) const override {
    if (!refusals(spec, runtime_->has_sinks()).empty()) return plain_layout(spec);
    const ModelKey key = model_key(spec, level_);
    return cache_layout(key.cache, runtime_->model(key)->form());
  }

 protected:
  void collect_reasons(const AttentionSpec& spec, Support& support) const override {
    support.reasons = refusals(spec, runtime_->has_sinks());
    support.fused_append = true;
    support.clears_tails = true;
    if (!support.reasons.empty()) return;
    const ModelKey key = model_key(spec, level_);
    support.own_rounding = key.cache == CacheElement::kU8;
    if (spec.kv.layout == layout_id(key.cache)) return;
    if (is_opaque(spec.kv.layout) && !element_of(spec.kv.layout)) {
      return HostBackend::collect_reasons(spec, support);
    }
    support.reasons.push_back(concat(
        "the operation works on a cache in the layout ", static_cast<int>(layout_id(key.cache)),
        " (preferred_layout), not ", static_cast<int>(spec.kv.layout)));
  }

  WorkspaceSize do_workspace(const AttentionSpec& spec, const BatchBounds& bounds) const override {
    return {divide(model_key(spec, level_), bounds.max_tokens, nullptr).size_bytes, 0};
  }

  std::unique_ptr<PreparedBatch> do_make_prepared(const AttentionSpec& spec,
                                                  const BatchBounds& bounds,
                                                  const Workspace& workspace) override {
    auto prepared = std::make_unique<Prepared>(spec, bounds, workspace);
    prepared->packed.reserve(bounds);
    // Compiled now, so that the first step does not wait; sinks come with the calls.
    if (!spec.features.sinks) static_cast<void>(runtime_->model(model_key(spec, level_)));
    return prepared;
  }

  void do_prepare(PreparedBatch& prepared, Stream /*stream*/) override {
    static_cast<Prepared&>(prepared).packed.fill(prepared.spec(), prepared.batch());
  }

  void do_append(const PreparedBatch& /*prepared*/, const NewKv& /*new_kv*/,
                 const KvCacheView& /*cache*/, Stream /*stream*/) override {
    fail(ErrorCode::kInternal, "openvino: K and V are stored by attend");
  }

  void do_attend(const PreparedBatch& prepared, const AttentionParams& params, const TensorView& q,
                 const KvSource& source, const AttentionOutput& output,
                 Stream /*stream*/) override {
    const PackedBatch& packed = static_cast<const Prepared&>(prepared).packed;
    if (packed.num_tokens() == 0) return;
    const AttentionSpec& spec = prepared.spec();
    ModelKey key = model_key(spec, level_);
    const Scratch scratch = divide(key, prepared.bounds().max_tokens, prepared.workspace().host);
    key.sinks.assign(params.sinks.begin(), params.sinks.end());
    const std::shared_ptr<Model> model = runtime_->model(key);
    Call call = cache_call(*model, source.cache);
    call.num_tokens = packed.num_tokens();
    call.metadata = packed.metadata();
    call.scale = params.scale;
    call.window = window_of(spec.mask);
    call.alibi_slopes = params.alibi_slopes;
    const DType computed = key.computed();
    const DType stored = spec.kv.dtype == DType::kBF16 ? DType::kBF16 : computed;
    const auto packed_kv = [&](const TensorView& rows, std::byte* memory) {
      return packed_rows(rows, packed.kv_rows(), packed.kv_in_place(), computed, stored, memory);
    };
    call.q =
        packed_rows(q, packed.q_rows(), packed.q_in_place(), key.q_dtype, key.q_dtype, scratch.q);
    call.k = packed_kv(source.new_kv.k, scratch.k);
    call.v = packed_kv(source.new_kv.v, scratch.v);
    const bool in_place =
        output.out.dtype == computed && packed.q_in_place() && is_dense(output.out);
    call.out = in_place ? output.out.data : scratch.out;
    model->run(call);
    if (!in_place) unpack_rows(scratch.out, computed, packed.q_rows(), output.out);
  }

  void do_merge(std::span<const Partial> partials, ArrayView<float> sinks,
                const AttentionOutput& output, Stream /*stream*/) override {
    for (std::int64_t row = 0; row < output.out.shape[0]; ++row) {
      for (std::int64_t head = 0; head < output.out.shape[1]; ++head) {
        cpu::merge_partials_row(partials, sinks, output, row, head);
      }
    }
  }

  void do_copy_blocks(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                      std::span<const BlockCopy> copies, Stream stream) override {
    for (std::size_t layer = 0; layer < src.size(); ++layer) {
      const KvCacheView& from = src[layer];
      const KvCacheView& to = dst[layer];
      const bool exports = element_of(from.format.layout) && !is_opaque(to.format.layout);
      const bool imports = element_of(to.format.layout) && !is_opaque(from.format.layout);
      if (exports) {
        const CacheForm form = known_form(from);
        for (const BlockCopy& copy : copies) export_block(from, form, copy.src, to, copy.dst);
      } else if (imports && element_of(to.format.layout) == CacheElement::kU8) {
        store_blocks(from, to, copies);
      } else if (imports) {
        const CacheForm form = known_form(to);
        for (const BlockCopy& copy : copies) import_block(from, copy.src, to, form, copy.dst);
      } else if (element_of(from.format.layout) && from.format.layout == to.format.layout) {
        copy_regions(k_blocks(from), k_blocks(to), copies);
        if (from.opaque_v_bytes > 0) copy_regions(v_blocks(from), v_blocks(to), copies);
      } else {
        HostBackend::do_copy_blocks(src.subspan(layer, 1), dst.subspan(layer, 1), copies, stream);
      }
    }
  }

 private:
  static BlockMemory k_blocks(const KvCacheView& cache) noexcept {
    return {cache.k, cache.num_blocks, cache.opaque_k_bytes, cache.k_strides.block};
  }
  static BlockMemory v_blocks(const KvCacheView& cache) noexcept {
    return {cache.v, cache.num_blocks, cache.opaque_v_bytes, cache.v_strides.block};
  }

  // A model whose caches have the form of a cache; query heads do not matter for that.
  static ModelKey key_of(const KvCacheView& cache) {
    ModelKey key;
    key.num_q_heads = key.num_kv_heads = cache.num_kv_heads;
    key.head_dim = cache.head_dim;
    key.value_dim = cache.value_dim;
    key.cache = *element_of(cache.format.layout);
    if (key.cache == CacheElement::kBF16) {
      key.q_dtype = DType::kBF16;
      key.in_bf16 = true;
    }
    return key;
  }

  CacheForm known_form(const KvCacheView& cache) const {
    CacheForm form = runtime_->model(key_of(cache))->form();
    require_known_form(form, *element_of(cache.format.layout), cache.head_dim, cache.value_dim);
    return form;
  }

  static Call cache_call(const Model& model, const KvCacheView& cache) {
    const CacheForm& form = model.form();
    require(cache.k_strides.block == form.k.block_bytes() &&
                cache.v_strides.block == form.v.block_bytes(),
            "openvino: the blocks of K and V must follow each other every ", form.k.block_bytes(),
            " and ", form.v.block_bytes(), " bytes, they do every ", cache.k_strides.block, " and ",
            cache.v_strides.block);
    Call call;
    call.k_cache = cache.k;
    call.v_cache = cache.v;
    call.num_blocks = cache.num_blocks;
    return call;
  }

  // Import into u8: only the operation knows how to round, so it stores the tokens of each block as
  // a sequence of their own, and what it attends is thrown away. Values that are not finite, as
  // slots without a token may hold, would spoil the scale of a whole block: they become 0.
  void store_blocks(const KvCacheView& plain, const KvCacheView& cache,
                    std::span<const BlockCopy> copies) {
    const ModelKey key = key_of(cache);
    const std::shared_ptr<Model> model = runtime_->model(key);
    const auto rows = [&](int dim) {
      return std::vector<float>(static_cast<std::size_t>(cache.num_kv_heads * kBlockSize * dim));
    };
    std::vector<float> k = rows(cache.head_dim);
    std::vector<float> v = rows(cache.value_dim);
    const std::vector<float> q = rows(cache.head_dim);
    std::vector<float> out = rows(cache.value_dim);
    const std::vector<std::int32_t> begins = {0, kBlockSize};
    const std::vector<std::int32_t> past = {0};
    const std::vector<std::int32_t> table_begins = {0, 1};
    for (const BlockCopy& copy : copies) {
      load_block(plain, KvTensor::kK, copy.src, k);
      load_block(plain, KvTensor::kV, copy.src, v);
      const std::vector<std::int32_t> table = {copy.dst};
      Call call = cache_call(*model, cache);
      call.num_tokens = kBlockSize;
      call.q = q.data();
      call.k = k.data();
      call.v = v.data();
      call.out = out.data();
      call.metadata = {past, begins, table, table_begins, kBlockSize};
      model->run(call);
    }
  }

  // rows: [kBlockSize, num_kv_heads, dim]
  static void load_block(const KvCacheView& plain, KvTensor tensor, std::int64_t block,
                         std::vector<float>& rows) {
    const std::int64_t dim = row_dims(plain, tensor);
    float* row = rows.data();
    for (std::int64_t token = 0; token < kBlockSize; ++token) {
      for (std::int64_t head = 0; head < plain.num_kv_heads; ++head, row += dim) {
        load_row(plain, tensor, block, head, token, row);
      }
    }
    for (float& x : rows) x = std::isfinite(x) ? x : 0.0F;
  }

  const Level level_;
  const std::unique_ptr<Runtime> runtime_;
};

}  // namespace

std::vector<std::string> levels() {
  std::vector<std::string> names;
  if (runtime_facts().has_bf16) names.emplace_back(level_name(Level::kBF16));
  names.emplace_back(level_name(Level::kF32));
  return names;
}

std::unique_ptr<AttentionBackend> make_backend(const BackendOptions& options) {
  if (options.executor != nullptr || !options.cpus.empty()) {
    fail(ErrorCode::kUnsupported,
         "backend openvino runs on threads of OpenVINO: it takes num_threads, but neither an "
         "executor nor cpus");
  }
  RuntimeOptions runtime;
  runtime.num_threads =
      options.num_threads > 0 ? options.num_threads : detect_cpu_features().num_cpus;
  const std::string level = options.isa.empty() ? levels().front() : options.isa;
  return std::make_unique<OpenVinoBackend>(
      level == level_name(Level::kBF16) ? Level::kBF16 : Level::kF32, runtime);
}

}  // namespace quire::openvino

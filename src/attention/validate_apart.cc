// SPDX-License-Identifier: Apache-2.0
#include "attention/validate_apart.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "attention/batch_arrays.h"
#include "attention/validate.h"
#include "base/check.h"
#include "layout/byte_lattice.h"
#include "layout/kv_extent.h"
#include "layout/stride_check.h"

namespace quire {
namespace {

// The last axis of what is written, and of most that is read, is contiguous. `num_rows` of the
// first axis count.
template <class Pointer>
ByteLattice bytes_of(const BasicTensorView<Pointer>& tensor, std::int64_t num_rows) {
  const std::int64_t bytes = dtype_bytes(tensor.dtype);
  const auto last = static_cast<std::size_t>(tensor.rank - 1);
  const bool has_run = tensor.strides[last] == 1 && last > 0;
  ByteLattice lattice(tensor.data, has_run ? tensor.shape[last] * bytes : bytes);
  for (std::size_t i = has_run ? last : last + 1; i-- > 0;) {
    lattice.repeat(i == 0 ? num_rows : tensor.shape[i], tensor.strides[i], bytes);
  }
  return lattice;
}

template <class Pointer>
ByteLattice bytes_of(const BasicTensorView<Pointer>& tensor) {
  return tensor.present() ? bytes_of(tensor, tensor.shape[0]) : ByteLattice();
}

template <class T>
ByteLattice bytes_of(const ArrayView<T>& array) {
  return {array.data, array.size * static_cast<std::int64_t>(sizeof(T))};
}

ByteLattice bytes_of(const KvCacheView& cache, KvTensor tensor) {
  if (cache.num_blocks == 0) return {};
  const bool is_k = tensor == KvTensor::kK || cache.format.v_in_k;
  const void* first = is_k ? cache.k : cache.v;
  const KvStrides& strides = is_k ? cache.k_strides : cache.v_strides;
  if (is_opaque(cache.format.layout)) {
    // K begins a record, whose padding belongs to the cache too; V may have no bytes of its own.
    const std::int64_t last =
        is_k ? std::max(strides.block, cache.opaque_k_bytes) : cache.opaque_v_bytes;
    return last == 0 ? ByteLattice()
                     : ByteLattice(first, (cache.num_blocks - 1) * strides.block + last);
  }
  const std::int64_t bytes = dtype_bytes(cache.format.dtype);
  const std::int64_t row = (is_k ? cache.head_dim : cache.value_dim) * bytes;
  const bool is_plain = cache.format.layout == KvLayoutId::kPlain;
  ByteLattice lattice(first, is_plain ? row : row * cache.format.block_size);
  if (is_plain) lattice.repeat(cache.format.block_size, strides.token, bytes);
  lattice.repeat(cache.num_kv_heads, strides.head, bytes);
  lattice.repeat(cache.num_blocks, strides.block, bytes);
  return lattice;
}

ByteLattice bytes_of(const KvCacheView& cache, const KvScales& scales) {
  if (scales.data == nullptr) return {};
  constexpr std::int64_t kBytes = sizeof(float);
  ByteLattice lattice(scales.data, kBytes);
  lattice.repeat(cache.format.block_size, scales.strides.token, kBytes);
  lattice.repeat(cache.num_kv_heads, scales.strides.head, kBytes);
  lattice.repeat(cache.num_blocks, scales.strides.block, kBytes);
  return lattice;
}

// out and lse, and what they are compared with.
class Written {
 public:
  Written(const AttentionOutput& output, std::int64_t num_rows)
      : device_(output.out.device), out_(bytes_of(output.out, num_rows)) {
    if (output.lse.present()) lse_ = bytes_of(output.lse, num_rows);
    require(!lattices_overlap(out_, lse_), "lse: overlaps out");
  }

  void require_apart_from(const FieldName& name, const ByteLattice& read) const {
    require(!lattices_overlap(out_, read), "out: overlaps ", name);
    require_lse_apart_from(name, read);
  }
  void require_lse_apart_from(const FieldName& name, const ByteLattice& read) const {
    require(!lattices_overlap(lse_, read), "lse: overlaps ", name);
  }
  // Metadata may be elsewhere, where addresses mean something else.
  template <class T>
  void require_apart_from(const FieldName& name, const ArrayView<T>& read) const {
    if (!read.empty() && read.device == device_) require_apart_from(name, bytes_of(read));
  }

  const ByteLattice& out() const noexcept { return out_; }

 private:
  Device device_;
  ByteLattice out_;
  ByteLattice lse_;
};

// Every element of out is that of the same row and head of q, and of no other.
bool is_in_place(const MutableTensorView& out, const TensorView& q, std::int64_t num_rows) {
  const std::int64_t num_heads = q.shape[1];
  return out.data == q.data && out.dtype == q.dtype &&
         (num_rows <= 1 || out.strides[0] == q.strides[0]) &&
         (num_heads <= 1 || out.strides[1] == q.strides[1]) &&
         strides_are_disjoint(std::array<StridedAxis, 3>{
             {{num_rows, q.strides[0]}, {num_heads, q.strides[1]}, {q.shape[2], 1}}});
}

void require_apart_from(const Written& written, const BatchView& batch) {
  for_each_array(batch, [&written](const char* name, const auto& array) {
    written.require_apart_from(name, array);
  });
}

void require_apart_from(const Written& written, const KvCacheView& cache) {
  written.require_apart_from("the cache", bytes_of(cache, KvTensor::kK));
  if (!cache.format.v_in_k) {
    written.require_apart_from("the cache", bytes_of(cache, KvTensor::kV));
  }
  if (cache.k_scales.data == nullptr) return;
  written.require_apart_from("cache.k_scales", bytes_of(cache, cache.k_scales));
  written.require_apart_from("cache.v_scales", bytes_of(cache, cache.v_scales));
}

}  // namespace

void validate_attend_apart(const BatchFacts& facts, const BatchView& batch,
                           const AttentionParams& params, const TensorView& q,
                           const KvSource& source, const AttentionOutput& output) {
  const Written written(output, facts.num_rows);
  const ByteLattice q_bytes = bytes_of(q, facts.num_rows);
  written.require_lse_apart_from("q", q_bytes);
  require(!lattices_overlap(written.out(), q_bytes) || is_in_place(output.out, q, facts.num_rows),
          "out: overlaps q, and is not q element for element");
  written.require_apart_from("new_kv.k", bytes_of(source.new_kv.k));
  written.require_apart_from("new_kv.v", bytes_of(source.new_kv.v));
  require_apart_from(written, source.cache);
  written.require_apart_from("params.alibi_slopes", params.alibi_slopes);
  written.require_apart_from("params.sinks", params.sinks);
  written.require_apart_from("params.bias", bytes_of(params.bias));
  require_apart_from(written, batch);
}

void validate_merge_apart(std::span<const Partial> partials, const ArrayView<float>& sinks,
                          const AttentionOutput& output) {
  const Written written(output, output.out.shape[0]);
  for (std::size_t i = 0; i < partials.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    written.require_apart_from({"partials", index, ".out"}, bytes_of(partials[i].out));
    written.require_apart_from({"partials", index, ".lse"}, bytes_of(partials[i].lse));
  }
  written.require_apart_from("sinks", sinks);
}

}  // namespace quire

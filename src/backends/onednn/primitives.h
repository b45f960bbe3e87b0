// SPDX-License-Identifier: Apache-2.0
// The oneDNN primitives of one tile of rows, and a bounded cache of them.
//
// A tile has num_rows query rows and row_keys keys, both rounded up to a bucket, and walks the keys
// in chunks whose dense K or V stays in a core's cache:
//
//   S [num_rows, row_keys] = Q [num_rows, head_dim] x K^T          scores, chunk by chunk
//   P [num_rows, row_keys] = softmax(S)                            softmax, in place
//   O [num_rows, value_dim] = P x V                                values, summed over the chunks
//
// For 16-bit products the caller rounds P in between.
//
// Everything is made for one thread: parallelism is over tiles. That also fixes the order of every
// sum, whatever the number of threads.
//
// Thread safety: PrimitiveCache may be used from any thread; a TilePrimitives is constant once
// made, and may run in several threads at once, each with its own memory.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>

#include "quire/attention_spec.h"

namespace quire::onednn {

// Keys of a chunk: 1024 keys of 128 f32 are half a megabyte, of which a core's second cache holds
// one or two.
inline constexpr std::int64_t kChunkKeys = 1024;

// What a tile needs done; equal shapes share their primitives.
struct TileShape {
  DType compute = DType::kF32;  // of Q, K, P and V; S, O and all sums are f32
  int head_dim = 0;
  int value_dim = 0;
  int num_rows = 0;           // a bucket
  std::int64_t row_keys = 0;  // a bucket
  bool softcap = false;

  // NOLINTNEXTLINE(modernize-use-nullptr): it takes the zero inside of <=> for a pointer
  friend auto operator<=>(const TileShape&, const TileShape&) = default;
};

// "f32 rows 32 keys 1280 dims 128/128".
std::string to_string(const TileShape& shape);

// num_keys rounded up: to a multiple of 64 up to a chunk, then four buckets for each doubling.
std::int64_t key_bucket(std::int64_t num_keys) noexcept;

// A primitive and the descriptions of its memory.
struct Primitive {
  dnnl::primitive run;
  dnnl::memory::desc src;
  dnnl::memory::desc weights;
  dnnl::memory::desc dst;
  dnnl::memory::desc scratchpad;
};

class TilePrimitives {
 public:
  // Throws dnnl::error. REQUIRES: a SerialRegion.
  TilePrimitives(const dnnl::engine& engine, const TileShape& shape);

  const TileShape& shape() const noexcept { return shape_; }
  std::int64_t num_chunks() const noexcept {
    return (shape_.row_keys + kChunkKeys - 1) / kChunkKeys;
  }
  std::int64_t scratchpad_bytes() const noexcept { return scratchpad_bytes_; }
  // All products run on oneDNN's blocked kernels and not on a fallback.
  bool is_blocked() const noexcept { return is_blocked_; }

  // Pointers into one thread's memory. REQUIRES: a SerialRegion.
  struct Memory {
    void* q = nullptr;        // [num_rows, head_dim], compute
    void* kv = nullptr;       // [chunk keys, head_dim or value_dim], compute
    float* scores = nullptr;  // [num_rows, row_keys], then the weights
    void* weights = nullptr;  // [num_rows, row_keys], compute; is `scores` for f32
    float* out = nullptr;     // [num_rows, value_dim]
    void* scratchpad = nullptr;
  };
  std::int64_t chunk_keys(std::int64_t chunk) const noexcept;
  void compute_scores(const dnnl::stream& stream, const Memory& memory, std::int64_t chunk) const;
  void apply_tanh(const dnnl::stream& stream, const Memory& memory) const;       // to all scores
  void compute_weights(const dnnl::stream& stream, const Memory& memory) const;  // in place
  void add_values(const dnnl::stream& stream, const Memory& memory, std::int64_t chunk) const;

 private:
  Primitive make_matmul(const dnnl::memory::desc& src, const dnnl::memory::desc& weights,
                        const dnnl::memory::desc& dst, bool adds);
  void make_softmax();
  void make_tanh();
  void keep(Primitive& primitive);

  dnnl::engine engine_;
  TileShape shape_;
  std::int64_t scratchpad_bytes_ = 0;
  bool is_blocked_ = true;
  // [full chunk, last chunk]; equal where the last one is full or the only one.
  std::array<Primitive, 2> scores_;
  std::array<Primitive, 2> first_values_;  // O = P x V
  std::array<Primitive, 2> next_values_;   // O += P x V
  Primitive softmax_;
  Primitive tanh_;
};

// Keeps the most recently used shapes.
class PrimitiveCache {
 public:
  // Of all shapes that fit into two octaves of keys, every row count included.
  static constexpr std::size_t kMaxShapes = 128;

  explicit PrimitiveCache(const dnnl::engine& engine) : engine_(engine) {}

  // Throws Error(kDevice) that names the shape. The result outlives its place in the cache.
  std::shared_ptr<const TilePrimitives> find(const TileShape& shape);
  std::size_t size() const;

 private:
  struct Entry {
    std::shared_ptr<const TilePrimitives> primitives;
    std::list<TileShape>::iterator used;
  };

  dnnl::engine engine_;
  mutable std::mutex mutex_;
  std::map<TileShape, Entry> entries_;
  std::list<TileShape> used_;  // most recent first
};

// Whether oneDNN multiplies this format on this machine. Its fallback widens every element again in
// every product, which is slower than f32: only blocked kernels are fast.
enum class Kernels : std::uint8_t { kBlocked, kAny };
bool multiplies(const dnnl::engine& engine, DType dtype, Kernels wanted);

}  // namespace quire::onednn

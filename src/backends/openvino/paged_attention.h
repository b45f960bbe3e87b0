// SPDX-License-Identifier: Apache-2.0
// PagedAttention of OpenVINO's CPU plugin: compiled models of one operation, found by what decides
// them, and their calls. No header of OpenVINO is needed to use it.
//
// The operation stores new K and V behind the past ones of each sequence and then attends. It works
// on two dense cache tensors [num_blocks, num_kv_heads, ..., ...] in host memory of the caller,
// whose element type and shape are read from the compiled model (CacheForm).
//
// Thread safety: all calls may be made from any thread; calls on one model take turns. What
// OpenVINO throws becomes Error(kDevice) with the configuration.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/batch_convert.h"
#include "quire/dtype.h"
#include "quire/kv_cache.h"

namespace quire::openvino {

// Tokens of a block: the operation knows no other size on a CPU.
inline constexpr int kBlockSize = 32;

// The element of the cache tensors. u8 holds scales and zero points beside the codes.
enum class CacheElement : std::uint8_t { kF32, kF16, kBF16, kU8 };

const char* cache_element_name(CacheElement element) noexcept;

// All that decides a compiled model. Scale, window and slopes are inputs of it.
struct ModelKey {
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int value_dim = 0;
  DType q_dtype = DType::kF32;
  CacheElement cache = CacheElement::kF32;
  bool in_bf16 = false;      // computes in bf16, else in f32
  std::vector<float> sinks;  // [num_q_heads] or empty: constants of the graph

  // Of K, V and out. Out is rounded outside: the conversion of OpenVINO to bf16 cuts.
  DType computed() const noexcept { return in_bf16 ? DType::kBF16 : DType::kF32; }
  friend bool operator==(const ModelKey&, const ModelKey&) = default;
};

std::string to_string(const ModelKey& key);

// One block of a cache tensor: [num_heads, num_rows, num_columns].
struct CacheTensor {
  std::string element;  // OpenVINO's name of it
  std::int64_t element_bytes = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_rows = 0;
  std::int64_t num_columns = 0;

  std::int64_t block_bytes() const noexcept {
    return num_heads * num_rows * num_columns * element_bytes;
  }
};

struct CacheForm {
  CacheTensor k;
  CacheTensor v;
};

// Dense tensors of one call.
struct Call {
  std::int64_t num_tokens = 0;
  const void* q = nullptr;  // [num_tokens, num_q_heads, head_dim], q_dtype
  const void* k = nullptr;  // [num_tokens, num_kv_heads, head_dim], computed()
  const void* v = nullptr;  // [num_tokens, num_kv_heads, value_dim], computed()
  void* out = nullptr;      // [num_tokens, num_q_heads, value_dim], computed()
  void* k_cache = nullptr;  // [num_blocks] blocks of CacheForm::k
  void* v_cache = nullptr;
  std::int64_t num_blocks = 0;
  OpenVinoMetadata metadata;
  float scale = 1.0F;
  std::int32_t window = 0;        // tokens with the query's own; 0: all
  ArrayView<float> alibi_slopes;  // [num_q_heads] or empty
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const CacheForm& form() const noexcept = 0;
  virtual int num_threads() const = 0;  // that the compiled model says it uses
  virtual void run(const Call& call) = 0;
};

struct RuntimeFacts {
  std::string version;    // "2026.4.1"
  bool has_bf16 = false;  // this CPU computes in bf16
};
// Throws Error(kDevice) if the CPU plugin cannot be loaded.
RuntimeFacts runtime_facts();

struct RuntimeOptions {
  int num_threads = 1;
  int max_models = 64;  // compiled ones that are kept; the one used longest ago goes first
};

class Runtime {
 public:
  virtual ~Runtime() = default;

  // Compiles on first use: tens of milliseconds.
  virtual std::shared_ptr<Model> model(const ModelKey& key) = 0;
  virtual const RuntimeFacts& facts() const noexcept = 0;
  virtual bool has_sinks() const noexcept = 0;  // the operation of this version takes sinks
  virtual int num_models() const = 0;           // that are kept now
};

std::unique_ptr<Runtime> make_runtime(const RuntimeOptions& options);

// Blocks of a cache tensor in memory, of whatever element: [num_blocks, block_bytes],
// `stride_bytes` apart.
struct BlockMemory {
  void* data = nullptr;
  std::int64_t num_blocks = 0;
  std::int64_t block_bytes = 0;
  std::int64_t stride_bytes = 0;
};
// Copies blocks as regions of interest of tensors over both. REQUIRES: equal block_bytes; blocks
// exist; no block is both a source and a destination.
void copy_regions(const BlockMemory& from, const BlockMemory& to,
                  std::span<const BlockCopy> copies);

}  // namespace quire::openvino

// SPDX-License-Identifier: Apache-2.0
#include "backends/openvino/paged_attention.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <openvino/core/version.hpp>
#include <openvino/runtime/core.hpp>
#include <openvino/runtime/properties.hpp>

#include "backends/openvino/model_graph.h"
#include "base/check.h"

namespace quire::openvino {
namespace {

// Their messages are lines of where and why; one line is what a message of ours is.
std::string one_line(const char* message) {
  std::string line;
  for (const char* at = message; *at != '\0'; ++at) {
    const char c = *at == '\n' ? ' ' : *at;
    if (c != ' ' || (!line.empty() && line.back() != ' ')) line += c;
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

// Calls f; what it throws names the configuration.
template <class F>
auto guarded(const std::string& what, F&& f) {
  try {
    return f();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorCode::kDevice, "openvino: ", what, ": ", one_line(error.what()));
  }
}

ov::element::Type cache_type(CacheElement element) {
  switch (element) {
    case CacheElement::kF32:
      return ov::element::f32;
    case CacheElement::kF16:
      return ov::element::f16;
    case CacheElement::kBF16:
      return ov::element::bf16;
    case CacheElement::kU8:
      break;
  }
  return ov::element::u8;
}

std::size_t size_of(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

RuntimeFacts facts_of(ov::Core& core) {
  const auto capabilities = core.get_property("CPU", ov::device::capabilities);
  const std::string build = ov::get_openvino_version().buildNumber;
  return {.version = build.substr(0, build.find('-')),
          .has_bf16 = std::find(capabilities.begin(), capabilities.end(),
                                ov::device::capability::BF16) != capabilities.end()};
}

class CompiledModel final : public Model {
 public:
  CompiledModel(ov::Core& core, const ModelKey& key, int num_threads) : key_(key) {
    guarded(concat("cannot compile ", to_string(key)), [&] {
      compiled_ = core.compile_model(
          make_graph(key), "CPU", ov::hint::kv_cache_precision(cache_type(key.cache)),
          ov::hint::inference_precision(key.in_bf16 ? ov::element::bf16 : ov::element::f32),
          ov::inference_num_threads(num_threads), ov::num_streams(1),
          ov::hint::enable_cpu_pinning(false));
      request_ = compiled_.create_infer_request();
      using N = InputNames;
      form_ = {read_form(N::kKeyCache), read_form(N::kValueCache)};
    });
    const std::string want = cache_type(key.cache).get_type_name();
    if (form_.k.element != want || form_.v.element != want) {
      fail(ErrorCode::kDevice, "openvino: ", to_string(key), ": the compiled model keeps K in ",
           form_.k.element, " and V in ", form_.v.element);
    }
  }

  const ModelKey& key() const noexcept { return key_; }
  const CacheForm& form() const noexcept override { return form_; }
  int num_threads() const override { return compiled_.get_property(ov::inference_num_threads); }

  void run(const Call& call) override {
    const std::lock_guard lock(mutex_);
    guarded(to_string(key_), [&] {
      set_tensors(call);
      request_.infer();
    });
  }

 private:
  CacheTensor read_form(const char* name) const {
    const ov::Output<const ov::Node> input = compiled_.input(name);
    const auto extent = [&input](std::ptrdiff_t axis) {
      return static_cast<std::int64_t>(input.get_partial_shape()[axis].get_length());
    };
    return {.element = input.get_element_type().get_type_name(),
            .element_bytes = static_cast<std::int64_t>(input.get_element_type().size()),
            .num_heads = extent(1),
            .num_rows = extent(2),
            .num_columns = extent(3)};
  }

  // The operation reads all but the caches and out, though a tensor is never const there.
  void set(const char* name, const ov::Shape& shape, const void* data) {
    const ov::element::Type type = compiled_.input(name).get_element_type();
    request_.set_tensor(name, data == nullptr ? ov::Tensor(type, shape)
                                              : ov::Tensor(type, shape, const_cast<void*>(data)));
  }
  void set_list(const char* name, const ArrayView<std::int32_t>& list) {
    set(name, {size_of(list.size)}, list.data);
  }
  void set_cache(const char* name, const CacheTensor& form, std::int64_t num_blocks, void* data) {
    set(name,
        {size_of(num_blocks), size_of(form.num_heads), size_of(form.num_rows),
         size_of(form.num_columns)},
        data);
  }

  void set_tensors(const Call& call) {
    using N = InputNames;
    const auto rows = [&](int num_heads, int dim) {
      return ov::Shape{size_of(call.num_tokens), size_of(std::int64_t{num_heads} * dim)};
    };
    set(N::kQ, rows(key_.num_q_heads, key_.head_dim), call.q);
    set(N::kK, rows(key_.num_kv_heads, key_.head_dim), call.k);
    set(N::kV, rows(key_.num_kv_heads, key_.value_dim), call.v);
    set_cache(N::kKeyCache, form_.k, call.num_blocks, call.k_cache);
    set_cache(N::kValueCache, form_.v, call.num_blocks, call.v_cache);
    set_list(N::kPastLens, call.metadata.past_lens);
    set_list(N::kSubsequenceBegins, call.metadata.subsequence_begins);
    set_list(N::kBlockIndices, call.metadata.block_indices);
    set_list(N::kBlockIndicesBegins, call.metadata.block_indices_begins);
    set(N::kMaxContextLen, {}, &call.metadata.max_context_len);
    set(N::kScale, {}, &call.scale);
    set(N::kWindow, {}, &call.window);
    set(N::kAlibi, {size_of(call.alibi_slopes.size)}, call.alibi_slopes.data);
    request_.set_output_tensor(ov::Tensor(compiled_.output().get_element_type(),
                                          rows(key_.num_q_heads, key_.value_dim), call.out));
  }

  const ModelKey key_;
  ov::CompiledModel compiled_;
  std::mutex mutex_;  // of the request
  ov::InferRequest request_;
  CacheForm form_;
};

class CpuRuntime final : public Runtime {
 public:
  explicit CpuRuntime(const RuntimeOptions& options) : options_(options) {
    guarded("the CPU plugin cannot be used", [&] {
      facts_ = facts_of(core_);
      has_sinks_ = operation_has_sinks();
    });
  }

  std::shared_ptr<Model> model(const ModelKey& key) override {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(models_.begin(), models_.end(),
                                    [&key](const auto& model) { return model->key() == key; });
    if (found != models_.end()) {
      models_.splice(models_.begin(), models_, found);
    } else {
      models_.push_front(std::make_shared<CompiledModel>(core_, key, options_.num_threads));
      while (std::ssize(models_) > options_.max_models) models_.pop_back();
    }
    return models_.front();
  }

  const RuntimeFacts& facts() const noexcept override { return facts_; }
  bool has_sinks() const noexcept override { return has_sinks_; }
  int num_models() const override {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(models_.size());
  }

 private:
  const RuntimeOptions options_;
  ov::Core core_;
  RuntimeFacts facts_;
  bool has_sinks_ = false;
  mutable std::mutex mutex_;
  std::list<std::shared_ptr<CompiledModel>> models_;  // used last, first
};

}  // namespace

const char* cache_element_name(CacheElement element) noexcept {
  switch (element) {
    case CacheElement::kF32:
      return "f32";
    case CacheElement::kF16:
      return "f16";
    case CacheElement::kBF16:
      return "bf16";
    case CacheElement::kU8:
      break;
  }
  return "u8";
}

std::string to_string(const ModelKey& key) {
  return concat("PagedAttention of ", key.num_q_heads, "/", key.num_kv_heads, " heads, dims ",
                key.head_dim, "/", key.value_dim, ", queries ", dtype_name(key.q_dtype), ", cache ",
                cache_element_name(key.cache), key.in_bf16 ? ", in bf16" : ", in f32",
                key.sinks.empty() ? "" : ", sinks");
}

RuntimeFacts runtime_facts() {
  return guarded("the CPU plugin cannot be loaded", [] {
    ov::Core core;
    return facts_of(core);
  });
}

std::unique_ptr<Runtime> make_runtime(const RuntimeOptions& options) {
  return std::make_unique<CpuRuntime>(options);
}

void copy_regions(const BlockMemory& from, const BlockMemory& to,
                  std::span<const BlockCopy> copies) {
  guarded("copy of blocks", [&] {
    const std::size_t block_bytes = size_of(from.block_bytes);
    const auto tensor_over = [&](const BlockMemory& memory) {
      // The stride of one block alone may be anything.
      const std::size_t stride = memory.num_blocks > 1 ? size_of(memory.stride_bytes) : block_bytes;
      return ov::Tensor(ov::element::u8, {size_of(memory.num_blocks), block_bytes}, memory.data,
                        ov::Strides{stride, 1});
    };
    const auto region = [&](const ov::Tensor& tensor, std::int64_t block) {
      return ov::Tensor(tensor, {size_of(block), 0}, {size_of(block) + 1, block_bytes});
    };
    const ov::Tensor source = tensor_over(from);
    const ov::Tensor destination = tensor_over(to);
    for (const BlockCopy& copy : copies) {
      region(source, copy.src).copy_to(region(destination, copy.dst));
    }
  });
}

}  // namespace quire::openvino

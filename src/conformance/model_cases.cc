// SPDX-License-Identifier: Apache-2.0
// Shapes of real models at sizes of real batches: the full suite checks them, benchmarks time them.
#include "conformance/case_builder.h"

namespace quire::conformance {
namespace {

// `count` sequences of about `kv_len` keys, none a multiple of anything.
std::vector<SequenceShape> batch(std::int64_t count, std::int64_t q_len, std::int64_t kv_len) {
  std::vector<SequenceShape> sequences;
  for (std::int64_t n = 0; n < count; ++n) sequences.push_back({q_len, kv_len - 37 * n});
  return sequences;
}

CaseBuilder model(const std::string& name, std::vector<SequenceShape> sequences) {
  return std::move(CaseBuilder(name, Suite::kFull, std::move(sequences))
                       .cache(CacheStyle::kPreferred)
                       .arrival(Arrival::kAppended));
}

void add_llama(std::vector<Case>& cases) {
  struct Kind {
    const char* name;
    DType dtype;
    ScaleGranularity scales;
  };
  for (const Kind& kind : {Kind{"bf16", DType::kBF16, ScaleGranularity::kNone},
                           Kind{"f8", DType::kF8E4M3, ScaleGranularity::kPerTensor},
                           Kind{"i8", DType::kI8, ScaleGranularity::kPerTokenHead}}) {
    const auto llama = [&](const char* family, std::vector<SequenceShape> sequences) {
      return std::move(model(concat(family, "/model/llama_8b_", kind.name), std::move(sequences))
                           .heads(32, 8)
                           .dims(128, 128)
                           .kv(kind.dtype, kind.scales));
    };
    llama("decode", batch(8, 1, 2048)).add_to(cases);
    llama("prefill", {{512, 512}, {256, 1024}}).add_to(cases);
    std::vector<SequenceShape> mixed = batch(12, 1, 1024);
    mixed.push_back({256, 700});
    llama("mixed", mixed).add_to(cases);
  }
  model("decode/model/llama_8b_long", {{1, 32768}}).heads(32, 8).dims(128, 128).add_to(cases);
}

}  // namespace

void add_model_cases(std::vector<Case>& cases) {
  add_llama(cases);
  model("decode/model/mla", batch(4, 1, 2048))
      .heads(16, 1)
      .dims(576, 512)
      .block_size(64)
      .with([](Case& c) { c.spec.kv.v_in_k = true; })
      .add_to(cases);
  model("decode/model/gpt_oss", batch(8, 1, 2048))
      .heads(64, 8)
      .mask({.window_left = 127})
      .sinks()
      .add_to(cases);
  model("prefill/model/gpt_oss", {{512, 512}, {128, 900}})
      .heads(16, 2)
      .mask({.window_left = 127})
      .sinks()
      .add_to(cases);
  model("decode/model/gemma_2", batch(4, 1, 1500))
      .heads(16, 8)
      .dims(256, 256)
      .mask({.window_left = 1023})
      .softcap(50.0F)
      .add_to(cases);
  model("mixed/model/mpt", {{64, 300}, {1, 512}, {1, 900}, {32, 32}})
      .heads(16, 16)
      .dims(128, 128)
      .alibi()
      .add_to(cases);
  model("cross/model/whisper", batch(4, 4, 1500)).cross().heads(20, 20).add_to(cases);
  model("prefill/model/t5_encoder", {{128, 128}, {200, 200}})
      .heads(12, 12)
      .mask({.causal = false})
      .bias(BiasStyle::kRelative)
      .add_to(cases);
}

}  // namespace quire::conformance

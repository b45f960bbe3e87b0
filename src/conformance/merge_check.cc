// SPDX-License-Identifier: Apache-2.0
// merge: of partial results that attend made over disjoint keys, and of drawn ones.
#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "base/check.h"
#include "conformance/checks.h"
#include "conformance/index.h"
#include "conformance/loaded_batch.h"
#include "conformance/random.h"
#include "conformance/tensor_image.h"

namespace quire::conformance {
namespace {

// The merged result in the backend's memory.
struct MergedOutput {
  TensorImage out;
  TensorImage lse;

  MergedOutput(DeviceMemory& memory, TensorStyle style, DType dtype, const ResultShape& shape)
      : out(memory,
            TensorImage::shape_of(style, dtype, shape.num_tokens, shape.num_heads, shape.dim)),
        lse(memory, TensorImage::lse_shape(style, shape.num_tokens, shape.num_heads)) {}

  AttentionOutput view() const { return {out.view(), lse.view()}; }

  OutputData data(const ResultShape& shape) const {
    const TensorImage::Contents out_now = out.download();
    const TensorImage::Contents lse_now = lse.download();
    OutputData data;
    for (std::int64_t row = 0; row < shape.num_tokens; ++row) {
      for (std::int64_t h = 0; h < shape.num_heads; ++h) {
        data.lse.push_back(lse_now({row, h}));
        for (std::int64_t d = 0; d < shape.dim; ++d) data.out.push_back(out_now({row, h, d}));
      }
    }
    return data;
  }

  std::optional<std::string> side_effects(const ResultShape& shape) const {
    const std::vector<std::uint8_t> written(at(shape.num_tokens), 1);
    if (auto found = out.changed_outside("merged out", written)) return found;
    return lse.changed_outside("merged lse", written);
  }
};

// The keys of part n of num_parts, by sequence. Parts end at blocks, and all but the last hold only
// keys that every query of the sequence sees.
std::vector<KeySpan> part_of(const Problem& p, int n, int num_parts) {
  std::vector<KeySpan> spans;
  const std::int64_t block_size = p.spec.kv.block_size;
  for (const ProblemSequence& sequence : p.sequences) {
    const bool causal = p.spec.mask.causal;
    const std::int64_t common =
        causal ? std::max<std::int64_t>(0, sequence.kv_len - sequence.q_len) : sequence.kv_len;
    const auto cut = [&](int k) {
      if (k == num_parts) return sequence.kv_len;
      return common * k / num_parts / block_size * block_size;
    };
    spans.push_back({cut(n), cut(n + 1)});
  }
  return spans;
}

AttentionSpec partial_spec(const Problem& p, bool is_last) {
  AttentionSpec spec = p.spec;
  spec.out_dtype = DType::kF32;
  spec.features.lse = true;
  spec.features.sinks = false;
  if (is_last) return spec;
  spec.alignment = Alignment::kUnaligned;
  spec.mask = Mask{.causal = false};
  return spec;
}

// Partials for merge alone: some rows empty in some partials or in all, some far apart.
std::vector<PartialData> draw_partials(const Problem& p, const ResultShape& shape) {
  Random random(seed_of(p.c.name));
  std::vector<PartialData> partials(at(p.c.num_partials));
  for (PartialData& partial : partials) {
    for (std::int64_t row = 0; row < shape.num_tokens * shape.num_heads; ++row) {
      const bool is_empty = row % 7 == 3 || random.below(4) == 0;
      const float spread = row % 5 == 0 ? 100.0F : 3.0F;
      partial.lse.push_back(is_empty ? -std::numeric_limits<float>::infinity()
                                     : spread * random.normal());
      for (std::int64_t d = 0; d < shape.dim; ++d) {
        partial.out.push_back(is_empty ? std::numeric_limits<float>::quiet_NaN()
                                       : round_to(p.c.new_kv_dtype, random.normal()));
      }
    }
  }
  return partials;
}

struct PartialImage {
  std::unique_ptr<TensorImage> out;
  std::unique_ptr<TensorImage> lse;
};

PartialImage load(DeviceMemory& memory, const Problem& p, const PartialData& partial,
                  const ResultShape& shape) {
  PartialImage image;
  image.out = std::make_unique<TensorImage>(
      memory, TensorImage::shape_of(p.c.tensors, p.c.new_kv_dtype, shape.num_tokens,
                                    shape.num_heads, shape.dim));
  image.lse = std::make_unique<TensorImage>(
      memory, TensorImage::lse_shape(p.c.tensors, shape.num_tokens, shape.num_heads));
  for (std::int64_t row = 0; row < shape.num_tokens; ++row) {
    for (std::int64_t h = 0; h < shape.num_heads; ++h) {
      const std::int64_t index = row * shape.num_heads + h;
      image.lse->set({row, h}, partial.lse[at(index)]);
      for (std::int64_t d = 0; d < shape.dim; ++d) {
        image.out->set({row, h, d}, partial.out[at(index * shape.dim + d)]);
      }
    }
  }
  image.out->upload();
  image.lse->upload();
  return image;
}

}  // namespace

std::optional<std::string> check_cascade(CheckContext& context) {
  const Problem& p = context.problem;
  AttentionBackend& backend = context.backend;
  std::vector<Problem> parts;
  for (int n = 0; n < p.c.num_partials; ++n) {
    const bool is_last = n + 1 == p.c.num_partials;
    parts.push_back(slice_keys(p, partial_spec(p, is_last), part_of(p, n, p.c.num_partials)));
  }
  std::vector<Arrangement> arrangements;
  std::vector<std::unique_ptr<LoadedBatch>> batches;
  std::vector<Partial> partials;
  for (const Problem& part : parts) arrangements.push_back(arrange(part, options_of(part)));
  for (std::size_t n = 0; n < parts.size(); ++n) {
    LoadOptions options;
    options.spec = spec_for(backend, parts[n]);
    options.arrival = arrival_for(backend, options.spec, Arrival::kStored);  // of no tokens
    batches.push_back(std::make_unique<LoadedBatch>(backend, parts[n], arrangements[n], options));
    batches[n]->run();
    if (auto found = batches[n]->side_effects()) return concat("partial ", n, ": ", *found);
    partials.push_back(batches[n]->partial());
  }
  const ResultShape shape{p.num_tokens, p.spec.num_q_heads, p.spec.value_dim};
  MergedOutput merged(backend.memory(), p.c.tensors, p.spec.out_dtype, shape);
  const ArrayImage<float> sinks(backend.memory(), p.sinks, !backend.memory().device().is_host());
  backend.merge(partials, sinks.view(), merged.view());
  backend.memory().synchronize({});
  if (auto found =
          compare(*context.expected, merged.data(shape), shape, RowNames(p), context.accuracy)) {
    return found;
  }
  return merged.side_effects(shape);
}

std::optional<std::string> check_merge(CheckContext& context) {
  const Problem& p = context.problem;
  DeviceMemory& memory = context.backend.memory();
  const ResultShape shape{p.num_tokens, p.spec.num_q_heads, p.spec.value_dim};
  const std::vector<PartialData> data = draw_partials(p, shape);
  const Expected expected =
      expect_merge(data, p.sinks, {shape.num_tokens, shape.num_heads, shape.dim, p.spec.out_dtype});
  std::vector<PartialImage> images;
  std::vector<Partial> partials;
  for (const PartialData& partial : data) {
    images.push_back(load(memory, p, partial, shape));
    partials.push_back({images.back().out->view(), images.back().lse->view()});
  }
  MergedOutput merged(memory, p.c.tensors, p.spec.out_dtype, shape);
  const ArrayImage<float> sinks(memory, p.sinks, !memory.device().is_host());
  context.backend.merge(partials, sinks.view(), merged.view());
  memory.synchronize({});
  if (auto found = compare(expected, merged.data(shape), shape, RowNames(), context.accuracy)) {
    return found;
  }
  for (const PartialImage& image : images) {
    if (auto found = image.out->changed("partial out")) return found;
    if (auto found = image.lse->changed("partial lse")) return found;
  }
  return merged.side_effects(shape);
}

}  // namespace quire::conformance

// SPDX-License-Identifier: Apache-2.0
#include "conformance/problem.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/number_formats.h"
#include "conformance/index.h"
#include "conformance/problem_data.h"
#include "conformance/random.h"

namespace quire::conformance {
namespace {

// Keys that arrive in this step: the last ones of self-attention, all of every second sequence
// of cross-attention.
std::int64_t num_new_keys(const Problem& p, std::int64_t s) {
  const ProblemSequence& sequence = p.sequences[at(s)];
  if (p.spec.alignment == Alignment::kAligned) return std::min(sequence.q_len, sequence.kv_len);
  return s % 2 == 0 ? sequence.kv_len : 0;
}

// Logical blocks. A block is shared only where every key in it is old for every sequence.
void assign_blocks(Problem& p) {
  const std::int64_t block_size = p.spec.kv.block_size;
  std::vector<std::int32_t> prefix;
  for (std::size_t s = 0; s < p.sequences.size(); ++s) {
    ProblemSequence& sequence = p.sequences[s];
    const std::int64_t num_old = sequence.kv_len - num_new_keys(p, static_cast<std::int64_t>(s));
    const std::int64_t num_shared = std::min(p.c.shared_blocks, num_old / block_size);
    for (std::int64_t n = 0; n < ceil_div(sequence.kv_len, block_size); ++n) {
      if (n >= num_shared) {
        sequence.blocks.push_back(static_cast<std::int32_t>(p.num_blocks++));
        continue;
      }
      if (n == static_cast<std::int64_t>(prefix.size())) {
        prefix.push_back(static_cast<std::int32_t>(p.num_blocks++));
      }
      sequence.blocks.push_back(prefix[at(n)]);
    }
  }
}

// Ragged rows: one after the other, or overlapping, each `shared_blocks` after the one before.
void assign_ragged_rows(Problem& p) {
  std::int64_t first = 0;
  for (ProblemSequence& sequence : p.sequences) {
    for (std::int64_t j = 0; j < sequence.kv_len; ++j) {
      sequence.blocks.push_back(static_cast<std::int32_t>(first + j));
    }
    p.num_blocks = std::max(p.num_blocks, first + sequence.kv_len);
    first += p.c.shared_blocks > 0 ? p.c.shared_blocks : sequence.kv_len;
  }
}

void make_sequences(Problem& p) {
  for (const SequenceShape& shape : p.c.sequences) {
    ProblemSequence sequence;
    sequence.q_len = shape.q_len;
    sequence.kv_len = shape.kv_len;
    sequence.first_token = p.num_tokens;
    p.num_tokens += shape.q_len;
    p.sequences.push_back(sequence);
  }
  if (p.c.cache == CacheStyle::kRagged) {
    assign_ragged_rows(p);
  } else {
    assign_blocks(p);
  }
}

// A head without a sink, a sink that takes all but everything, and usual ones.
float draw_sink(int head, Random& random) {
  if (head % 8 == 3) return -std::numeric_limits<float>::infinity();
  return head % 8 == 6 ? 30.0F : 1.0F + 2.0F * random.normal();
}

void make_params(Problem& p, Random& random) {
  const Features& features = p.spec.features;
  const double usual = 1.0 / std::sqrt(static_cast<double>(p.spec.head_dim));
  p.scale = p.c.scale > 0 ? p.c.scale : static_cast<float>(usual);
  p.softcap = features.softcap ? p.c.softcap : 0.0F;
  for (int h = 0; h < p.spec.num_q_heads; ++h) {
    const double exponent = -8.0 * (h + 1) / p.spec.num_q_heads;
    if (features.alibi) p.alibi_slopes.push_back(static_cast<float>(std::exp2(exponent)));
    if (features.sinks) p.sinks.push_back(draw_sink(h, random));
  }
}

void make_new_tokens(Problem& p) {
  if (p.c.cache == CacheStyle::kRagged) return;
  for (std::size_t s = 0; s < p.sequences.size(); ++s) {
    const std::int64_t kv_len = p.sequences[s].kv_len;
    const std::int64_t num_new = num_new_keys(p, static_cast<std::int64_t>(s));
    for (std::int64_t j = kv_len - num_new; j < kv_len; ++j) {
      p.new_tokens.push_back({static_cast<std::int64_t>(s), j});
    }
  }
}

Problem outline(const Case& c, Random& random) {
  Problem p;
  p.c = c;
  p.spec = c.spec;
  p.spec.kv.layout = KvLayoutId::kPlain;
  make_sequences(p);
  make_params(p, random);
  make_new_tokens(p);
  return p;
}

}  // namespace

float round_to(DType dtype, float x) noexcept {
  float storage = 0;
  store_float(dtype, &storage, 0, x);
  return load_float(dtype, &storage, 0);
}

std::int64_t ProblemSequence::query_position(std::int64_t i) const noexcept {
  return kv_len - q_len + (depths.empty() ? i : depths[at(i)]);
}

std::int64_t ProblemSequence::key_position(std::int64_t j) const noexcept {
  const std::int64_t first_new = kv_len - q_len;
  return depths.empty() || j < first_new ? j : first_new + depths[at(j - first_new)];
}

std::int64_t ProblemBias::index(std::int64_t s, std::int64_t h, std::int64_t i,
                                std::int64_t j) const noexcept {
  const auto along = [](std::int64_t n, std::int64_t x) { return n == 1 ? 0 : x; };
  const std::int64_t row =
      (along(num_sequences, s) * num_heads + along(num_heads, h)) * num_queries;
  return (row + along(num_queries, i)) * num_keys + along(num_keys, j);
}

std::int64_t Problem::slot(std::int64_t s, std::int64_t j) const noexcept {
  const std::int64_t block_size = spec.kv.block_size;
  return sequences[at(s)].blocks[at(j / block_size)] * block_size + j % block_size;
}

// Written from the contract and not shared with the backends, so that a mistake there shows here.
bool Problem::is_visible(std::int64_t s, std::int64_t i, std::int64_t j) const noexcept {
  if (spec.alignment == Alignment::kUnaligned) return true;
  const Mask& mask = spec.mask;
  const ProblemSequence& sequence = sequences[at(s)];
  const std::int64_t query = sequence.query_position(i);
  const std::int64_t key = sequence.key_position(j);
  const std::int64_t new_key = j - (sequence.kv_len - sequence.q_len);
  if (mask.causal && !sequence.tree.empty() && new_key >= 0) {
    if (sequence.tree[at(i * sequence.q_len + new_key)] == 0) return false;
  } else if (mask.causal && key > query) {
    return false;
  }
  if (mask.window_left >= 0 && query - key > mask.window_left) return false;
  if (mask.window_right >= 0 && key - query > mask.window_right) return false;
  if (mask.chunk <= 0) return true;
  const auto chunk_of = [&](std::int64_t position) {
    return std::floor(static_cast<double>(position) / static_cast<double>(mask.chunk));
  };
  return chunk_of(key) == chunk_of(query);
}

Problem make_outline(const Case& c) {
  Random random(seed_of(c.name));
  return outline(c, random);
}

Problem make_problem(const Case& c) {
  Random random(seed_of(c.name));
  Problem p = outline(c, random);
  if (c.tree != TreeStyle::kNone) draw_trees(p, random);
  if (c.bias != BiasStyle::kNone) draw_bias(p, random);
  find_seen_slots(p);
  draw_queries(p, random);
  draw_kv(p, random);
  return p;
}

Problem slice_keys(const Problem& problem, const AttentionSpec& spec,
                   const std::vector<KeySpan>& spans) {
  const std::int64_t block_size = problem.spec.kv.block_size;
  Problem part = problem;
  part.spec = spec;
  part.sinks.clear();
  part.new_tokens.clear();
  for (std::size_t s = 0; s < spans.size(); ++s) {
    const KeySpan& span = spans[s];
    QUIRE_CHECK(span.begin % block_size == 0 && span.begin <= span.end);
    ProblemSequence& sequence = part.sequences[s];
    const std::vector<std::int32_t>& blocks = problem.sequences[s].blocks;
    sequence.kv_len = span.end - span.begin;
    sequence.blocks.assign(blocks.begin() + span.begin / block_size,
                           blocks.begin() + ceil_div(span.end, block_size));
  }
  return part;
}

}  // namespace quire::conformance

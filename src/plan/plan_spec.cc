// SPDX-License-Identifier: Apache-2.0
#include "plan/plan_spec.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/check.h"
#include "plan/split.h"

namespace quire {
namespace {

double real(std::int64_t value) {
  return static_cast<double>(value);
}

// What batches within some bounds may add up to, given what one sequence adds at most: in all, per
// token and per key that it needs.
struct Peak {
  double per_sequence = 0;
  double per_token = 0;
  double per_key = 0;

  void add(double count, std::int64_t tokens, double keys) {
    per_sequence = std::max(per_sequence, count);
    per_token = std::max(per_token, count / real(tokens));
    per_key = std::max(per_key, count / keys);
  }
};

// The bounds of a batch of sequences that are split.
struct SplitBatch {
  double sequences;
  double tokens;
  double keys;

  double total(const Peak& peak) const {
    return std::min({sequences * peak.per_sequence, tokens * peak.per_token, keys * peak.per_key});
  }
};

// The most keys that a row tile can see. With a tree mask it sees those of all queries.
std::int64_t longest_span(const PlanSpec& spec, std::int64_t q_len, std::int64_t max_kv_len) {
  const Mask& mask = spec.mask;
  double span = real(max_kv_len);
  if (spec.alignment == Alignment::kUnaligned) return max_kv_len;
  if (mask.window_left >= 0 && (mask.causal || mask.window_right >= 0)) {
    const double right = mask.causal ? 0.0 : real(mask.window_right);
    span = std::min(span, real(mask.window_left) + right + real(q_len));
  }
  if (mask.chunk > 0) span = std::min(span, 2.0 * real(mask.chunk) + real(q_len));
  return static_cast<std::int64_t>(span);
}

// No split of a sequence with such row tiles has fewer keys, on average.
double shortest_split(const PlanSpec& spec, std::int64_t tile_rows) {
  const SplitRule& rule = spec.params.split;
  const double partial_bytes = 2.0 * real(tile_rows) * real(spec.partial_row_bytes);
  const double keys = 100.0 * partial_bytes / real(spec.key_bytes * rule.max_partial_percent);
  return std::max(keys, real(rule.min_keys));
}

// The partial rows of sequences of one row tile and of several, with the keys shared out between
// them in the worst way. Many tiles and many splits at once are rare: rows_i * splits_i <= peak
// gives, by Cauchy and Schwarz, sum(rows_i * splits_i) <= sqrt(peak * sum(rows_i) * sum(splits_i)).
double mixed_rows(const PlanSpec& spec, const SplitBatch& batch, const Peak& one_tile,
                  const Peak& many_tiles) {
  constexpr int kShares = 64;
  const double rows = batch.tokens * real(spec.group * spec.num_kv_heads);
  const double split = shortest_split(spec, spec.params.row_tile);
  double worst = 0;
  for (int share = 0; share < kShares; ++share) {  // rounded up on both sides
    SplitBatch single = batch;
    SplitBatch tiled = batch;
    single.keys = batch.keys * (share + 1) / kShares;
    tiled.keys = batch.keys * (kShares - share) / kShares;
    const double schwarz = std::sqrt(many_tiles.per_sequence * rows * tiled.keys / split);
    worst = std::max(worst, single.total(one_tile) + std::min(tiled.total(many_tiles), schwarz));
  }
  return worst;
}

}  // namespace

PlanSpec make_plan_spec(const AttentionSpec& spec, const PlanParams& params) {
  const SplitRule& rule = params.split;
  for (const std::int64_t value :
       {params.kv_heads_per_item, params.row_tile, params.key_tile, params.item_rows,
        params.rows_per_key_read, rule.min_keys, rule.merge_keys, rule.max_partial_percent,
        rule.max_items, rule.max_partial_rows}) {
    require(value >= 1, "a plan parameter must be at least 1, got ", value);
  }
  require(rule.unsplit_keys >= 0, "unsplit_keys must not be negative, got ", rule.unsplit_keys);
  require(rule.min_keys >= params.key_tile, "min_keys must be at least key_tile ", params.key_tile,
          ", got ", rule.min_keys);
  const bool token_scales = spec.kv.scales == ScaleGranularity::kPerTokenHead;
  const std::int64_t scale_bytes = token_scales ? 4 : 0;
  const std::int64_t element_bytes = dtype_bytes(spec.kv.dtype);
  PlanSpec plan;
  plan.params = params;
  plan.mask = spec.mask;
  plan.alignment = spec.alignment;
  plan.group = spec.head_group();
  plan.num_kv_heads = spec.num_kv_heads;
  plan.key_bytes = spec.head_dim * element_bytes + scale_bytes;
  if (!spec.kv.v_in_k) plan.key_bytes += spec.value_dim * element_bytes + scale_bytes;
  plan.partial_row_bytes = spec.value_dim * 4 + 8;
  return plan;
}

// Sequences are told apart by q_len alone: for each the most splits that max_kv_len allows, and the
// fewest keys that a split needs. A sequence with so many tokens that two splits pass max_items or
// max_partial_rows is never split, which ends the list.
PlanBounds plan_bounds(const PlanSpec& spec, const BatchBounds& bounds) {
  const SplitRule& rule = spec.params.split;
  const std::int64_t row_tile = spec.params.row_tile;
  const double sequences = real(std::min(bounds.max_sequences, bounds.max_tokens));
  const double tokens = real(bounds.max_tokens);
  const double keys = real(bounds.max_total_kv_len);
  const SplitBatch batch{std::min(sequences, keys / real(rule.unsplit_keys + 1)), tokens, keys};

  Peak extra_items, merges, rows_in_tile, rows_in_tiles, rows;
  double units_per_token = 0;
  SequencePlan full;
  plan_heads(spec, row_tile, full);
  for (std::int64_t q_len = 1; q_len <= bounds.longest_query(); ++q_len) {
    const SequencePlan plan = plan_sequence(spec, {.q_len = q_len, .kv_len = 0});
    const std::int64_t num_rows = q_len * spec.group;
    const std::int64_t units = plan.num_units();
    units_per_token = std::max(units_per_token, real(units) / real(q_len));
    if (plan.num_row_tiles > 1 &&
        (2 * units > rule.max_items || 2 * num_rows * spec.num_kv_heads > rule.max_partial_rows)) {
      break;
    }
    const std::int64_t splits =
        count_splits(spec, longest_span(spec, q_len, bounds.max_kv_len), num_rows, units);
    if (splits < 2) continue;
    const double split = shortest_split(spec, smaller(num_rows, row_tile));
    const double partial_rows = real(num_rows * spec.num_kv_heads * splits);
    extra_items.add(real(units * (splits - 1)), q_len, split * real(splits - 1));
    merges.add(real(units), q_len, std::max(2 * split, real(rule.unsplit_keys + 1)));
    rows.add(partial_rows, q_len, split * real(splits));
    (plan.num_row_tiles == 1 ? rows_in_tile : rows_in_tiles)
        .add(partial_rows, q_len, split * real(splits));
  }

  const double partial_rows =
      std::min(batch.total(rows), mixed_rows(spec, batch, rows_in_tile, rows_in_tiles));

  // ceil(rows / row_tile) <= 1 + rows / row_tile, and <= 2 * rows / row_tile from one tile on.
  const double tiles_per_token = real(spec.group) / real(row_tile);
  const double ranges = real(full.num_head_ranges);
  const double units = std::min(ranges * (sequences + tokens * tiles_per_token),
                                tokens * std::max(units_per_token, 2 * ranges * tiles_per_token));
  const auto ceil = [](double count) { return static_cast<std::int64_t>(std::ceil(count)); };
  return {.items = ceil(units + batch.total(extra_items)),
          .merges = ceil(std::min(units, batch.total(merges))),
          .partial_rows = ceil(partial_rows)};
}

}  // namespace quire

// SPDX-License-Identifier: Apache-2.0
// `quire bench`: how fast the backends are, against what the machine can do in the same minute.
#include <fmt/core.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/batch_grammar.h"
#include "benchmark/report_json.h"
#include "benchmark/runner.h"
#include "cli/bench_table.h"
#include "cli/command.h"
#include "cli/progress.h"
#include "quire/error.h"

namespace quire::cli {
namespace {

using benchmark::BenchCase;
using benchmark::CacheChoice;
using benchmark::Report;

struct BenchOptions {
  std::string suite = "decode";
  bool custom = false;
  benchmark::CustomShape shape;
  benchmark::CandidateChoice candidates;
  std::string filter;
  int rounds = 0;  // 0: as many as the form of the run asks for
  bool quick = false;
  bool list = false;
  bool json = false;
};

constexpr int kRounds = 12;
constexpr int kQuickRounds = 3;

std::vector<BenchCase> chosen_cases(const BenchOptions& options) {
  if (options.custom) return {benchmark::custom_case(options.shape)};
  return benchmark::select_cases(benchmark::bench_cases(), options.suite, options.filter,
                                 options.quick);
}

Report measure(const std::vector<BenchCase>& cases, const BenchOptions& options) {
  const std::vector<benchmark::Candidate> candidates =
      benchmark::make_candidates(options.candidates);
  benchmark::RunOptions run;
  run.num_rounds = options.rounds > 0 ? options.rounds : options.quick ? kQuickRounds : kRounds;
  Progress progress(static_cast<std::int64_t>(cases.size()));
  run.progress = [&](std::int64_t done, std::int64_t, std::string_view what) {
    progress.update(done, what);
  };
  return run_benchmarks(cases, candidates, run);
}

int run_bench(const BenchOptions& options) {
  const std::vector<BenchCase> cases = chosen_cases(options);
  if (cases.empty()) {
    fmt::print(stderr, "quire bench: no case of suite {} matches '{}'\n", options.suite,
               options.filter);
    return kUsage;
  }
  if (options.list) {
    for (const BenchCase& c : cases) fmt::print("{}\n", c.c.name);
    return kSuccess;
  }
  const Report report = measure(cases, options);
  if (options.json) {
    fmt::print("{}\n", to_json(report).dump(2, ' ', false,
                                            nlohmann::ordered_json::error_handler_t::replace));
  } else {
    print_report(report);
  }
  return kSuccess;
}

// The message that follows the name of the flag, or nothing.
std::string batch_error(const std::string& text) {
  try {
    static_cast<void>(benchmark::parse_batch(text));
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

const std::map<std::string, DType>& dtypes() {
  static const std::map<std::string, DType> names{
      {"f32", DType::kF32},       {"f16", DType::kF16},       {"bf16", DType::kBF16},
      {"f8e4m3", DType::kF8E4M3}, {"f8e5m2", DType::kF8E5M2}, {"i8", DType::kI8}};
  return names;
}

void add_shape_flags(CLI::App& bench, BenchOptions& options) {
  benchmark::CustomShape& shape = options.shape;
  constexpr int kLimit = 1 << 16;
  const std::map<std::string, ScaleGranularity> scales{
      {"none", ScaleGranularity::kNone},
      {"per-tensor", ScaleGranularity::kPerTensor},
      {"per-head", ScaleGranularity::kPerHead},
      {"per-token-head", ScaleGranularity::kPerTokenHead}};
  const std::map<std::string, CacheChoice> layouts{{"preferred", CacheChoice::kPreferred},
                                                   {"plain", CacheChoice::kPlain},
                                                   {"caller", CacheChoice::kCaller}};
  const std::map<std::string, DType> q_dtypes{
      {"f32", DType::kF32}, {"f16", DType::kF16}, {"bf16", DType::kBF16}};
  const std::string group = "Shape of a batch of your own (with --batch)";
  bench.add_option("--batch", shape.batch, "qL@K*N,...: N sequences with q_len L and kv_len K")
      ->check(CLI::Validator(batch_error, ""))
      ->option_text("SPEC")
      ->group(group);
  bench.add_option("--q-heads", shape.num_q_heads, "32")
      ->check(CLI::Range(1, kLimit))
      ->group(group);
  bench.add_option("--kv-heads", shape.num_kv_heads, "8")
      ->check(CLI::Range(1, kLimit))
      ->group(group);
  bench.add_option("--head-dim", shape.head_dim, "128")->check(CLI::Range(1, kLimit))->group(group);
  bench.add_option("--value-dim", shape.value_dim, "As the head dim")
      ->check(CLI::Range(1, kLimit))
      ->group(group);
  bench.add_option("--q-dtype", shape.q_dtype, "bf16, f16 or f32")
      ->transform(CLI::CheckedTransformer(q_dtypes))
      ->option_text("TYPE")
      ->group(group);
  bench.add_option("--kv-dtype", shape.kv_dtype, "bf16, f16, f32, f8e4m3, f8e5m2 or i8")
      ->transform(CLI::CheckedTransformer(dtypes()))
      ->option_text("TYPE")
      ->group(group);
  bench.add_option("--scales", shape.scales, "per-tensor, per-head or per-token-head (8-bit K, V)")
      ->transform(CLI::CheckedTransformer(scales))
      ->option_text("HOW")
      ->group(group);
  bench.add_option("--block-size", shape.block_size, "32")
      ->check(CLI::Range(1, kLimit))
      ->group(group);
  bench
      .add_option("--layout", shape.cache,
                  "preferred, plain ([head, token, dim]) or caller ([token, head, dim])")
      ->transform(CLI::CheckedTransformer(layouts))
      ->option_text("WHICH")
      ->group(group);
  bench.add_option("--window", shape.window, "Keys that a query sees, itself included")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 31))
      ->group(group);
  bench.add_option("--shared-prefix", shape.shared_tokens, "Tokens that sequences have in common")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 31))
      ->group(group);
  bench.add_flag("--hot", shape.hot, "The same memory every time")->group(group);
}

void add_run_flags(CLI::App& bench, BenchOptions& options) {
  bench.add_option("--suite", options.suite, "decode, prefill, mixed, append, copy or all")
      ->check(CLI::IsMember({"decode", "prefill", "mixed", "append", "copy", "all"}))
      ->option_text("NAME");
  bench.add_option("--filter", options.filter, "Only cases whose name matches, as in '*/b16'");
  bench
      .add_option("--backend", options.candidates.backends,
                  "Candidates, separated by commas: cpu, cpu:avx2, reference")
      ->delimiter(',')
      ->option_text("LIST");
  bench
      .add_option("--isa", options.candidates.levels,
                  "Levels of backends named without one, or all; default: the best")
      ->delimiter(',')
      ->option_text("LIST");
  bench.add_option("--threads", options.candidates.num_threads, "Numbers of threads; 0: all CPUs")
      ->delimiter(',')
      ->check(CLI::Range(0, 4096))
      ->option_text("LIST");
  bench.add_option("--rounds", options.rounds, "12, with --quick 3")->check(CLI::Range(1, 100000));
  bench.add_flag("--quick", options.quick, "Fewer cases and rounds");
  bench.add_flag("--list", options.list, "Only name the cases");
  bench.add_flag("--json", options.json, "One JSON document on standard output");
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  CLI::App* bench =
      app.add_subcommand("bench", "Measure the backends against what the machine can do");
  auto options = std::make_shared<BenchOptions>();
  add_run_flags(*bench, *options);
  add_shape_flags(*bench, *options);
  bench->footer(
      "Share: how much of the roof was reached, the larger of bytes / read bandwidth and\n"
      "operations / peak, all measured in the same rounds. Ratio: time over the first "
      "candidate's.\n"
      "Examples:\n"
      "  quire bench --quick\n"
      "  quire bench --suite decode --isa all --json > decode.json\n"
      "  quire bench --batch 'q512@4096,q1@2048*31' --block-size 16 --backend cpu:scalar,cpu");
  bench->callback([&action, options, bench] {
    options->custom = bench->count("--batch") > 0;
    action = [options] { return run_bench(*options); };
  });
}

}  // namespace quire::cli

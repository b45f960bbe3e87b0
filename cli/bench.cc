// SPDX-License-Identifier: Apache-2.0
// `quire bench`: how fast the backends are, against what the machine can do in the same minute.
#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/batch_grammar.h"
#include "benchmark/compare.h"
#include "benchmark/report_html.h"
#include "benchmark/report_json.h"
#include "benchmark/runner.h"
#include "cli/bench_table.h"
#include "cli/command.h"
#include "cli/progress.h"
#include "quire/error.h"

namespace quire::cli {
namespace {

using Json = nlohmann::ordered_json;
using benchmark::BenchCase;
using benchmark::CacheChoice;
using benchmark::Comparison;
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
  bool markdown = false;
  std::string html_path;
  std::string old_path;  // of a run to compare with
  double margin_percent = 10;
};

constexpr int kRounds = 12;
constexpr int kQuickRounds = 3;
constexpr int kQuickDeviceRounds = 8;  // they take milliseconds

std::vector<BenchCase> chosen_cases(const BenchOptions& options) {
  if (options.custom) return {benchmark::custom_case(options.shape)};
  return benchmark::select_cases(benchmark::bench_cases(), options.suite, options.filter,
                                 options.quick);
}

Report measure(const std::vector<BenchCase>& cases, const BenchOptions& options) {
  const std::vector<benchmark::Candidate> candidates =
      benchmark::make_candidates(options.candidates);
  benchmark::RunOptions run;
  const bool on_device = std::any_of(candidates.begin(), candidates.end(),
                                     [](const auto& c) { return c.meter != nullptr; });
  const int quick_rounds = on_device ? kQuickDeviceRounds : kQuickRounds;
  run.num_rounds = options.rounds > 0 ? options.rounds : options.quick ? quick_rounds : kRounds;
  Progress progress(static_cast<std::int64_t>(cases.size()));
  run.progress = [&](std::int64_t done, std::int64_t, std::string_view what) {
    progress.update(done, what);
  };
  return run_benchmarks(cases, candidates, run);
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  if (!file) throw Error(ErrorCode::kIo, "--html: cannot write the file " + path);
}

Json to_json(const std::vector<Comparison>& comparisons, double margin) {
  Json list = Json::array();
  for (const Comparison& c : comparisons) {
    list.push_back({{"case", c.name},
                    {"candidate", c.candidate},
                    {"threads", c.threads},
                    {"change", benchmark::change_name(c.change)},
                    {"old_share_of_ceiling", c.old_share},
                    {"new_share_of_ceiling", c.new_share},
                    {"reason", c.reason}});
  }
  return {{"margin", margin}, {"cases", list}};
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
  // Read first: a run takes minutes.
  std::vector<benchmark::Result> before;
  if (!options.old_path.empty()) before = benchmark::read_results(options.old_path);
  const Report report = measure(cases, options);
  if (!options.html_path.empty()) write_file(options.html_path, html_page(report));
  const double margin = options.margin_percent / 100;
  const std::vector<Comparison> comparisons = compare(before, report.results, margin);
  Json document = to_json(report);
  if (!options.old_path.empty()) document["comparison"] = to_json(comparisons, margin);
  if (options.json) {
    fmt::print("{}\n", document.dump(2, ' ', false, Json::error_handler_t::replace));
  } else if (options.markdown) {
    print_markdown(report);
  } else {
    print_report(report);
  }
  if (!options.old_path.empty() && !options.json) print_comparisons(comparisons, margin);
  const bool regressed = std::any_of(comparisons.begin(), comparisons.end(), [](const auto& c) {
    return benchmark::is_regression(c.change);
  });
  return regressed ? kFailure : kSuccess;
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

// One of a few words, refused by name.
template <class T>
CLI::Option* add_choice(CLI::App& app, const char* flag, T& target, const char* description,
                        const std::vector<std::pair<std::string, T>>& words) {
  std::vector<std::string> names;
  for (const auto& [name, value] : words) names.push_back(name);
  const auto choose = [&target, words](const std::string& chosen) {
    for (const auto& [name, value] : words) {
      if (name == chosen) target = value;
    }
  };
  return app.add_option_function<std::string>(flag, choose, description)
      ->check(CLI::IsMember(names))
      ->option_text("WHICH");
}

void add_shape_flags(CLI::App& bench, BenchOptions& options) {
  benchmark::CustomShape& shape = options.shape;
  constexpr int kLimit = 1 << 16;
  constexpr std::int64_t kTokenLimit = std::int64_t{1} << 31;
  const std::string group = "Shape of a batch of your own";
  CLI::Option* batch =
      bench.add_option("--batch", shape.batch, "qL@K*N,...: N sequences with q_len L and kv_len K")
          ->check(CLI::Validator(batch_error, ""))
          ->option_text("SPEC")
          ->excludes("--suite")
          ->excludes("--filter")
          ->group(group);
  const auto add = [&](CLI::Option* option) { option->needs(batch)->group(group); };
  const auto add_number = [&](const char* flag, int& target, const char* description) {
    add(bench.add_option(flag, target, description)
            ->check(CLI::Range(1, kLimit))
            ->option_text("N"));
  };
  const auto add_tokens = [&](const char* flag, std::int64_t& target, const char* description) {
    add(bench.add_option(flag, target, description)
            ->check(CLI::Range(std::int64_t{1}, kTokenLimit))
            ->option_text("TOKENS"));
  };
  add_number("--q-heads", shape.num_q_heads, "Query heads (32)");
  add_number("--kv-heads", shape.num_kv_heads, "Heads of K and V (8)");
  add_number("--head-dim", shape.head_dim, "Of Q and K (128)");
  add_number("--value-dim", shape.value_dim, "Of V (as the head dim)");
  add_number("--block-size", shape.block_size, "Tokens per block (32)");
  add(add_choice<DType>(bench, "--q-dtype", shape.q_dtype, "bf16, f16 or f32",
                        {{"bf16", DType::kBF16}, {"f16", DType::kF16}, {"f32", DType::kF32}}));
  add(add_choice<DType>(bench, "--kv-dtype", shape.kv_dtype, "bf16, f16, f32, f8e4m3, f8e5m2 or i8",
                        {{"bf16", DType::kBF16},
                         {"f16", DType::kF16},
                         {"f32", DType::kF32},
                         {"f8e4m3", DType::kF8E4M3},
                         {"f8e5m2", DType::kF8E5M2},
                         {"i8", DType::kI8}}));
  add(add_choice<ScaleGranularity>(bench, "--scales", shape.scales,
                                   "per-tensor, per-head or per-token-head, of 8-bit K and V",
                                   {{"per-tensor", ScaleGranularity::kPerTensor},
                                    {"per-head", ScaleGranularity::kPerHead},
                                    {"per-token-head", ScaleGranularity::kPerTokenHead}}));
  add(add_choice<CacheChoice>(
      bench, "--layout", shape.cache,
      "preferred, plain ([head, token, dim]) or caller ([token, head, dim])",
      {{"preferred", CacheChoice::kPreferred},
       {"plain", CacheChoice::kPlain},
       {"caller", CacheChoice::kCaller}}));
  add_tokens("--window", shape.window, "Keys that a query sees, itself included");
  add_tokens("--shared-prefix", shape.shared_tokens, "Tokens that sequences have in common");
  add(bench.add_flag("--hot", shape.hot, "The same memory every time"));
}

void add_run_flags(CLI::App& bench, BenchOptions& options) {
  bench.add_option("--suite", options.suite, "decode, prefill, mixed, append, copy, all; or gpu")
      ->check(CLI::IsMember({"decode", "prefill", "mixed", "append", "copy", "all", "gpu"}))
      ->option_text("NAME");
  bench.add_option("--filter", options.filter, "Only cases whose name matches, as in '*/b16'");
  bench
      .add_option("--backend", options.candidates.backends,
                  "Candidates, separated by commas: cpu, cpu:avx2, cuda")
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
  bench.add_option("--rounds", options.rounds, "12, with --quick 3, on devices 8")
      ->check(CLI::Range(1, 100000))
      ->option_text("N");
  bench.add_flag("--quick", options.quick, "Fewer cases and rounds");
  bench.add_flag("--list", options.list, "Only name the cases");
  bench.add_flag("--json", options.json, "One JSON document on standard output");
  bench.add_flag("--markdown", options.markdown, "The tables as Markdown")->excludes("--json");
  bench.add_option("--html", options.html_path, "Write a page with a roofline plot")
      ->option_text("FILE");
  CLI::Option* compare =
      bench.add_option("--compare", options.old_path, "Flag what became slower since that --json")
          ->option_text("OLD.json");
  bench
      .add_option("--margin", options.margin_percent, "Of noise, in percent of the old share (10)")
      ->check(CLI::Range(0.0, 100.0))
      ->option_text("PERCENT")
      ->needs(compare);
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
      "GPUs: calls are recorded and replayed, timed by the device, with 1/32 of the planning; the\n"
      "suite gpu holds the rows of docs/benchmarks.md.\n"
      "Examples:\n"
      "  quire bench --quick\n"
      "  quire bench --suite decode --isa all --json > decode.json\n"
      "  quire bench --suite decode --isa all --compare decode.json    # exit code 1: slower\n"
      "  quire bench --batch 'q512@4096,q1@2048*31' --block-size 16 --backend cpu:scalar,cpu\n"
      "  quire bench --backend cuda,torch:cuda --suite gpu --json > gpu.json");
  bench->callback([&action, options, bench] {
    options->custom = bench->count("--batch") > 0;
    action = [options] { return run_bench(*options); };
  });
}

}  // namespace quire::cli

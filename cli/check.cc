// SPDX-License-Identifier: Apache-2.0
// `quire check`: the conformance suite on the backends of this machine.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"
#include "cli/option_values.h"
#include "cli/progress.h"
#include "cli/wrapped_text.h"
#include "conformance/case_list.h"
#include "conformance/run.h"
#include "quire/registry.h"

namespace quire::cli {
namespace {

using Json = nlohmann::ordered_json;
using conformance::Case;
using conformance::CaseResult;
using conformance::CaseStatus;
using conformance::Suite;

struct CheckOptions {
  std::vector<std::string> backends;
  Suite suite = Suite::kStandard;
  std::string filter;
  int num_threads = 0;
  bool list = false;
  bool verbose = false;
  bool json = false;
};

// One backend at one level, and what every case came to.
struct Run {
  std::string backend;
  std::string isa;
  std::unique_ptr<AttentionBackend> instance;
  std::vector<CaseResult> results;
  conformance::RunSummary summary;
  double seconds = 0;
};

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

void add_runs(const BackendEntry& entry, const CheckOptions& options, std::vector<Run>& runs) {
  std::vector<std::string> levels = entry.isa_levels();
  const bool forced = !environment("QUIRE_CPU_ISA").empty();
  if (levels.empty() || forced) levels = {""};
  for (const std::string& level : levels) {
    std::unique_ptr<AttentionBackend> backend =
        make_backend(entry.name, {.num_threads = options.num_threads, .isa = level});
    const std::string isa = backend->info().isa;
    runs.push_back({.backend = entry.name,
                    .isa = isa,
                    .instance = std::move(backend),
                    .results = {},
                    .summary = {},
                    .seconds = 0});
  }
}

// The named ones, else QUIRE_BACKEND, else every one that this machine can run, at every level.
std::vector<Run> make_runs(const CheckOptions& options) {
  std::vector<std::string> names = options.backends;
  if (names.empty() && !environment("QUIRE_BACKEND").empty()) {
    names = {environment("QUIRE_BACKEND")};
  }
  std::vector<Run> runs;
  for (const BackendEntry& entry : backend_table()) {
    if (names.empty() && entry.probe().available) add_runs(entry, options, runs);
  }
  for (const std::string& name : names) {
    bool found = false;
    for (const BackendEntry& entry : backend_table()) {
      if (name != entry.name) continue;
      add_runs(entry, options, runs);
      found = true;
    }
    if (!found) static_cast<void>(make_backend(name));  // throws with the known names
  }
  return runs;
}

const char* status_name(CaseStatus status) {
  switch (status) {
    case CaseStatus::kPassed:
      return "passed";
    case CaseStatus::kFailed:
      return "failed";
    case CaseStatus::kSkipped:
      return "skipped";
  }
  return "";
}

void run_cases(const std::vector<Case>& cases, std::vector<Run>& runs) {
  using Clock = std::chrono::steady_clock;
  Progress progress(static_cast<std::int64_t>(cases.size()));
  for (std::size_t i = 0; i < cases.size(); ++i) {
    progress.update(static_cast<std::int64_t>(i), cases[i].name);
    const conformance::CaseRunner runner(cases[i]);
    for (Run& run : runs) {
      const Clock::time_point start = Clock::now();
      run.results.push_back(runner.run(*run.instance));
      run.seconds += std::chrono::duration<double>(Clock::now() - start).count();
      run.summary.add(run.results.back());
    }
  }
}

Json to_json(const Run& run, const std::vector<Case>& cases, Suite suite) {
  Json list = Json::array();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const CaseResult& result = run.results[i];
    list.push_back({{"name", cases[i].name},
                    {"status", status_name(result.status)},
                    {"reason", result.reason},
                    {"error", result.accuracy.max_error},
                    {"limit", result.accuracy.max_limit}});
  }
  return {{"backend", run.backend},
          {"isa", run.isa},
          {"suite", conformance::suite_name(suite)},
          {"passed", run.summary.num_passed},
          {"failed", run.summary.num_failed},
          {"skipped", run.summary.num_skipped},
          {"seconds", run.seconds},
          {"cases", list}};
}

std::string family(const std::string& name) {
  return name.substr(0, name.find('/'));
}

// A case may be refused for several reasons, and counts for each.
void count_reasons(std::string_view reasons, std::map<std::string, std::int64_t>& counts) {
  constexpr std::string_view kSeparator = "; ";
  while (!reasons.empty()) {
    const std::size_t end = std::min(reasons.find(kSeparator), reasons.size());
    ++counts[std::string(reasons.substr(0, end))];
    reasons.remove_prefix(std::min(end + kSeparator.size(), reasons.size()));
  }
}

void print_run(const Run& run, const std::vector<Case>& cases, bool verbose) {
  std::map<std::string, conformance::RunSummary> families;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    families[family(cases[i].name)].add(run.results[i]);
  }
  const std::string title = run.isa.empty() ? run.backend : run.backend + " (" + run.isa + ")";
  fmt::print("{:<24}{:>8}{:>8}{:>9}\n", title, "passed", "failed", "skipped");
  for (const auto& [name, summary] : families) {
    fmt::print("  {:<22}{:>8}{:>8}{:>9}\n", name, summary.num_passed, summary.num_failed,
               summary.num_skipped);
  }
  fmt::print("  {:<22}{:>8}{:>8}{:>9}   {:.1f} s\n", "all", run.summary.num_passed,
             run.summary.num_failed, run.summary.num_skipped, run.seconds);
  std::map<std::string, std::int64_t> skips;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const CaseResult& result = run.results[i];
    if (result.status == CaseStatus::kSkipped) count_reasons(result.reason, skips);
    if (result.status == CaseStatus::kFailed || verbose) {
      fmt::print("  {} {}{}{}\n", status_name(result.status), cases[i].name,
                 result.reason.empty() ? "" : ": ", result.reason);
    }
  }
  for (const auto& [reason, count] : skips) {
    print_wrapped(fmt::format("{} skipped: {}", count, reason), 2);
  }
}

int run_check(const CheckOptions& options) {
  const std::vector<Case> cases =
      conformance::select(conformance::all_cases(), options.suite, options.filter);
  if (cases.empty()) {
    fmt::print(stderr, "quire check: no case of suite {} matches '{}'\n",
               conformance::suite_name(options.suite), options.filter);
    return kUsage;
  }
  if (options.list) {
    Json names = Json::array();
    for (const Case& c : cases) names.push_back(c.name);
    if (options.json) fmt::print("{}\n", Json{{"cases", names}}.dump(2));
    for (const Case& c : cases) {
      if (!options.json) fmt::print("{}\n", c.name);
    }
    return kSuccess;
  }
  std::vector<Run> runs = make_runs(options);
  run_cases(cases, runs);
  bool failed = false;
  Json list = Json::array();
  for (const Run& run : runs) {
    failed = failed || run.summary.num_failed != 0;
    if (options.json) {
      list.push_back(to_json(run, cases, options.suite));
    } else {
      print_run(run, cases, options.verbose);
    }
  }
  if (options.json) {
    fmt::print("{}\n", Json{{"runs", list}}.dump(2, ' ', false, Json::error_handler_t::replace));
  }
  return failed ? kFailure : kSuccess;
}

}  // namespace

void add_check(CLI::App& app, Action& action) {
  CLI::App* check =
      app.add_subcommand("check", "Run the conformance suite on the backends of this machine");
  auto options = std::make_shared<CheckOptions>();
  check
      ->add_option("--backend", options->backends,
                   "Backends to check, separated by commas; default: all that can run here")
      ->delimiter(',');
  check
      ->add_option("--suite", options->suite,
                   "smoke (seconds), standard (about a minute a backend) or full")
      ->transform(one_of<Suite>(
          {{"smoke", Suite::kSmoke}, {"standard", Suite::kStandard}, {"full", Suite::kFull}}))
      ->option_text("smoke|standard|full");
  check->add_option("--filter", options->filter, "Only cases whose name matches, as in 'decode/*'");
  check->add_option("--threads", options->num_threads, "Threads of a CPU backend; 0: all")
      ->check(CLI::Range(0, 4096));
  check->add_flag("--list", options->list, "Only name the cases");
  check->add_flag("--verbose", options->verbose, "A line for every case");
  check->add_flag("--json", options->json, "One JSON document on standard output");
  check->footer(
      "Exit code 0: every case passed or was refused with a reason; 1: a case failed.\n"
      "Examples:\n"
      "  quire check\n"
      "  quire check --backend cpu,reference --suite full --json > check.json\n"
      "  quire check --filter 'decode/*,mixed/*' --verbose");
  check->callback([&action, options] { action = [options] { return run_check(*options); }; });
}

}  // namespace quire::cli

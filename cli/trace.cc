// SPDX-License-Identifier: Apache-2.0
// `quire trace`: makes a request trace, and shows what it is like.
#include <fmt/core.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "cli/command.h"
#include "cli/option_values.h"
#include "cli/output_file.h"
#include "cli/text.h"
#include "replay/trace_generator.h"
#include "replay/trace_reader.h"
#include "replay/trace_statistics.h"
#include "replay/trace_writer.h"

namespace quire::cli {
namespace {

using Json = nlohmann::ordered_json;
using replay::GeneratorOptions;
using replay::QuantileCurve;
using replay::Summary;
using replay::Trace;
using replay::TraceForm;
using replay::TraceStatistics;

constexpr double kMaxSeconds = static_cast<double>(replay::kMaxTimestampMs) / 1000;

struct TraceOptions {
  GeneratorOptions generator;
  // Distributions as the line has them; empty: the default.
  std::map<std::string, std::string> curves;
  TraceForm form = TraceForm::kMooncake;
  std::string output;
  std::string compare;
  bool stats = false;
  bool json = false;
};

// The distributions and their options.
struct NamedCurve {
  std::string flag;
  QuantileCurve* curve;
  double maximum;
};
std::vector<NamedCurve> curves_of(GeneratorOptions& options) {
  constexpr auto kMaxTokens = static_cast<double>(replay::kMaxTraceLength);
  return {{"--first-tokens", &options.first_tokens, kMaxTokens},
          {"--turn-tokens", &options.turn_tokens, kMaxTokens},
          {"--output-tokens", &options.output_tokens, kMaxTokens},
          {"--turn-gap", &options.turn_gap_s, kMaxSeconds},
          {"--rewind-kept", &options.rewind_kept, 1},
          {"--rewind-tokens", &options.rewind_tokens, kMaxTokens}};
}

Json to_json(const Summary& summary) {
  Json json{{"mean", summary.mean}};
  for (std::size_t i = 0; i < replay::kShownPercents.size(); ++i) {
    json[fmt::format("p{:.0f}", replay::kShownPercents[i])] = summary.quantiles[i];
  }
  return json;
}

Json to_json(const TraceStatistics& stats) {
  return {{"requests", stats.num_requests},
          {"duration_s", stats.duration_s},
          {"prompt_tokens", stats.prompt_tokens},
          {"output_tokens", stats.output_tokens},
          {"input_length", to_json(stats.input_length)},
          {"output_length", to_json(stats.output_length)},
          {"conversations", stats.num_conversations},
          {"mean_turns", stats.mean_turns},
          {"single_turn_share", stats.single_turn_share},
          {"turn_gap_s", to_json(stats.turn_gap_s)},
          {"block_refs", stats.num_block_refs},
          {"distinct_blocks", stats.num_distinct_blocks},
          {"full_blocks", stats.num_full_blocks},
          {"ideal_hit_blocks", stats.num_ideal_hits}};
}

// One line per figure, one column per trace.
class StatisticsTable {
 public:
  StatisticsTable(std::FILE* file, std::vector<std::string> names,
                  std::vector<TraceStatistics> columns)
      : file_(file), names_(std::move(names)), columns_(std::move(columns)) {}

  void print() const {
    fmt::print(file_, "{:<34}", "");
    for (const std::string& name : names_) fmt::print(file_, "{:>20}", name);
    fmt::print(file_, "\n");
    row("requests", 0, [](const auto& s) { return static_cast<double>(s.num_requests); });
    row("seconds", 0, [](const auto& s) { return s.duration_s; });
    row("prompt tokens", 0, [](const auto& s) { return static_cast<double>(s.prompt_tokens); });
    summary("input length", &TraceStatistics::input_length);
    summary("output length", &TraceStatistics::output_length);
    row("conversations", 0, [](const auto& s) { return static_cast<double>(s.num_conversations); });
    row("  mean turns", 2, [](const auto& s) { return s.mean_turns; });
    row("  with one turn, %", 1, [](const auto& s) { return 100 * s.single_turn_share; });
    summary("seconds between turns", &TraceStatistics::turn_gap_s);
    row("distinct blocks", 0,
        [](const auto& s) { return static_cast<double>(s.num_distinct_blocks); });
    row("full blocks", 0, [](const auto& s) { return static_cast<double>(s.num_full_blocks); });
    row("  hits of an endless cache", 0,
        [](const auto& s) { return static_cast<double>(s.num_ideal_hits); });
    row("  as %", 1, [](const auto& s) {
      return s.num_full_blocks == 0 ? 0.0
                                    : 100 * static_cast<double>(s.num_ideal_hits) /
                                          static_cast<double>(s.num_full_blocks);
    });
  }

 private:
  template <class F>
  void row(const std::string& name, int digits, F value) const {
    fmt::print(file_, "{:<34}", name);
    for (const TraceStatistics& stats : columns_) {
      const double number = value(stats);
      const std::string text =
          digits == 0 ? grouped(std::llround(number)) : fmt::format("{:.{}f}", number, digits);
      fmt::print(file_, "{:>20}", text);
    }
    fmt::print(file_, "\n");
  }
  void summary(const std::string& name, Summary TraceStatistics::*member) const {
    row(name + ": mean", 0, [&](const TraceStatistics& s) { return (s.*member).mean; });
    for (std::size_t i = 0; i < replay::kShownPercents.size(); ++i) {
      const double percent = replay::kShownPercents[i];
      row(percent == 0     ? "  smallest"
          : percent == 100 ? "  largest"
                           : fmt::format("  p{:.0f}", percent),
          0, [&](const TraceStatistics& s) { return (s.*member).quantiles[i]; });
    }
  }

  std::FILE* file_;
  std::vector<std::string> names_;
  std::vector<TraceStatistics> columns_;
};

void write(const Trace& trace, TraceForm form, std::ostream& stream) {
  stream << replay::trace_header(form);
  for (const replay::TraceRequest& request : trace) stream << replay::trace_line(request, form);
}

// The distributions of the line, and what its flags allow but not together.
void complete(TraceOptions& options) {
  GeneratorOptions& generator = options.generator;
  for (const auto& [name, curve, maximum] : curves_of(generator)) {
    const std::string& text = options.curves[name];
    if (text.empty()) continue;
    *curve = QuantileCurve::parse(name, text);
    require(curve->at(1) <= maximum, name, ": values must be at most ", maximum,
            ", the largest is ", curve->at(1));
  }
  require(generator.system_tokens < generator.max_input, "--system-tokens ",
          generator.system_tokens, ": must be less than --max-input ", generator.max_input);
  require(generator.resend_share + generator.rewind_share <= 1, "--resend-share ",
          generator.resend_share, " and --rewind-share ", generator.rewind_share,
          ": must be at most 1 together");
}

int run_trace(TraceOptions options) {
  complete(options);
  const std::int64_t block_tokens = options.generator.block_tokens;
  std::optional<TraceStatistics> other;
  if (!options.compare.empty()) {
    other =
        measure(replay::read_trace(options.compare, {.block_tokens = block_tokens}), block_tokens);
  }
  const Trace trace = replay::generate_trace(options.generator);
  const bool has_file = !options.output.empty() && options.output != "-";
  const bool only_figures = options.stats || other || options.json;
  require(!only_figures || options.output != "-",
          "--output -: --stats, --compare and --json have standard output for the figures");
  if (has_file) {
    OutputFile file(options.output);
    write(trace, options.form, file.stream());
    file.commit();
  }
  if (!only_figures && !has_file) {
    fmt::print("{}", replay::trace_header(options.form));
    for (const replay::TraceRequest& request : trace) {
      fmt::print("{}", replay::trace_line(request, options.form));
    }
    return kSuccess;
  }
  const TraceStatistics stats = measure(trace, block_tokens);
  if (options.json) {
    Json document{{"seed", options.generator.seed}, {"generated", to_json(stats)}};
    if (other) document["compared"] = to_json(*other);
    fmt::print("{}\n", document.dump(2));
  } else if (only_figures) {
    std::vector<std::string> names{"generated"};
    std::vector<TraceStatistics> columns{stats};
    if (other) {
      names.emplace_back("compared");
      columns.push_back(*other);
    }
    StatisticsTable(stdout, names, columns).print();
  }
  if (has_file) {
    fmt::print(stderr, "quire trace: {}, {} in {}\n", counted(stats.num_requests, "request"),
               counted(stats.prompt_tokens, "prompt token"), options.output);
  }
  return kSuccess;
}

void add_distributions(CLI::App& command, const std::shared_ptr<TraceOptions>& options) {
  const std::map<std::string, std::string> texts{
      {"--first-tokens", "Tokens of a first message"},
      {"--turn-tokens", "Tokens that a further turn adds beside the last answer"},
      {"--output-tokens", "Tokens of an answer"},
      {"--turn-gap", "Seconds from one turn to the next"},
      {"--rewind-kept", "Share of the conversation that a rewind keeps"},
      {"--rewind-tokens", "Tokens that follow what a rewind has kept"}};
  for (const auto& [name, curve, maximum] : curves_of(options->generator)) {
    command
        .add_option(name, options->curves[name],
                    texts.at(name) + ", by default\n" + help_text(curve->to_string()))
        ->option_text("NUMBER|QUANTILES")
        ->group("Distributions");
  }
}

void add_shape(CLI::App& command, GeneratorOptions& generator) {
  const auto add = [&](const char* name, auto& value, const CLI::Validator& check,
                       const char* text) {
    command.add_option(name, value, text)->transform(check)->capture_default_str();
  };
  const auto tokens_from = [](std::int64_t minimum) {
    return whole_number(minimum, replay::kMaxTraceLength);
  };
  add("--seed", generator.seed, seed_number(), "The same seed gives the same trace");
  add("--requests", generator.num_requests, whole_number(1, 100'000'000), "How many");
  add("--duration", generator.duration_s, real_number(0.001, kMaxSeconds), "Seconds");
  add("--tick", generator.tick_s, real_number(0, kMaxSeconds),
      "Seconds: timestamps are multiples of it");
  command.add_option("--arrivals", generator.arrivals, "How conversations begin; default poisson")
      ->transform(one_of<replay::Arrivals>({{"poisson", replay::Arrivals::kPoisson},
                                            {"even", replay::Arrivals::kEven},
                                            {"burst", replay::Arrivals::kBurst}}))
      ->option_text("poisson|even|burst");
  add("--block-tokens", generator.block_tokens, tokens_from(1), "Tokens of one hash id");
  add("--system-tokens", generator.system_tokens, tokens_from(0), "Of the shared system prompt");
  add("--system-prompts", generator.num_system_prompts, whole_number(1, 1'000'000),
      "Different ones");
  add("--max-input", generator.max_input, tokens_from(1), "The longest prompt");
  add("--mean-turns", generator.mean_turns, real_number(1, 1000), "Turns of a conversation");
  add("--resend-share", generator.resend_share, real_number(0, 1),
      "Turns that repeat the last one");
  add("--rewind-share", generator.rewind_share, real_number(0, 1),
      "Turns that keep only a beginning");
}

}  // namespace

void add_trace(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("trace", "Make a request trace from a seed");
  auto options = std::make_shared<TraceOptions>();
  add_shape(*command, options->generator);
  add_distributions(*command, options);
  command
      ->add_option("--form", options->form,
                   "JSON lines with ids or of lengths alone, or CSV; default mooncake")
      ->transform(one_of<TraceForm>({{"mooncake", TraceForm::kMooncake},
                                     {"lengths", TraceForm::kLengths},
                                     {"csv", TraceForm::kCsv}}))
      ->option_text("mooncake|lengths|csv");
  command->add_option("-o,--output", options->output, "The trace; default, and -: standard output")
      ->check(name_of("a file"))
      ->type_name("FILE");
  command->add_option("--compare", options->compare, "Show the figures of this trace beside it")
      ->check(name_of("a file"))
      ->type_name("FILE");
  command->add_flag("--stats", options->stats, "Show its figures instead of the trace");
  command->add_flag("--json", options->json, "The figures as one JSON document");
  command->footer(
      "The defaults resemble an hour of a real conversation service (docs/replay.md).\n"
      "QUANTILES are PERCENT:VALUE,..., from 0 to 100: 0:1,50:350,90:597,100:2000.\n"
      "Examples:\n"
      "  quire trace --seed 7 -o trace.jsonl\n"
      "  quire trace --requests 200 --duration 60 --output-tokens 0:1,50:20,100:80\n"
      "  quire trace --compare mooncake_conversation.jsonl");
  command->callback([&action, options] { action = [options] { return run_trace(*options); }; });
}

}  // namespace quire::cli

// SPDX-License-Identifier: Apache-2.0
// The command `quire`: one file per subcommand.
#include <fmt/core.h>

#include <cstdio>
#include <exception>

#include "cli/command.h"
#include "quire/error.h"
#include "quire/version.h"

int main(int argc, char** argv) {
  using namespace quire::cli;
  CLI::App app{"quire: paged attention for LLM servers, on every backend of this machine"};
  app.set_version_flag("--version", quire::version());
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  quire info                                 what this machine has and supports\n"
      "  quire check                                is every backend right here?\n"
      "  quire check --backend cpu --filter 'decode/*' --json\n"
      "  quire bench --quick                        how fast, against what the machine can do?\n"
      "  quire trace -o trace.jsonl                 a request trace\n"
      "  quire replay trace.jsonl --html r.html     through scheduler, cache and attention\n"
      "Environment: QUIRE_BACKEND and QUIRE_CPU_ISA name the backend and its level.");
  Action action;
  add_info(app, action);
  add_check(app, action);
  add_bench(app, action);
  add_trace(app, action);
  add_replay(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (!app.remaining().empty() && app.get_subcommands().empty()) {
      fmt::print(stderr, "quire: no subcommand is named '{}'; quire --help lists them\n",
                 app.remaining().front());
      return kUsage;
    }
    return app.exit(error) == 0 ? kSuccess : kUsage;
  }
  try {
    const int outcome = action();
    // What did not reach its reader was not done.
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      fmt::print(stderr, "quire: standard output: cannot be written\n");
      return outcome == kSuccess ? kFailure : outcome;
    }
    return outcome;
  } catch (const quire::Error& error) {
    fmt::print(stderr, "quire: {}: {}\n", quire::error_code_name(error.code()), error.what());
  } catch (const std::exception& error) {
    fmt::print(stderr, "quire: {}\n", error.what());
  }
  return kUsage;
}

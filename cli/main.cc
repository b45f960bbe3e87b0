// SPDX-License-Identifier: Apache-2.0
// The command `quire`: one file per subcommand.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <system_error>

#include "cli/command.h"
#include "quire/error.h"
#include "quire/version.h"

namespace {

// A stream that the caller has closed must not become the first file that is opened. What stands in
// its place fails as it would: input cannot be read, output cannot be written. Messages are lost.
void hold_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) != -1) continue;
    static_cast<void>(open("/dev/null", stream == STDOUT_FILENO ? O_RDONLY : O_WRONLY));
  }
}

// For standard error nothing more can be done.
void say(const std::string& message) {
  static_cast<void>(std::fputs(("quire: " + message + "\n").c_str(), stderr));
}

// What did not reach its reader was not done.
int run(const quire::cli::Action& action) {
  using quire::cli::kUsage;
  try {
    const int outcome = action();
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return outcome;
    say("standard output: cannot be written");
  } catch (const quire::Error& error) {
    const bool is_usage = error.code() == quire::ErrorCode::kInvalidArgument;
    const std::string name = quire::error_code_name(error.code());
    say(is_usage ? error.what() : name + ": " + error.what());
  } catch (const std::bad_alloc&) {
    say("out of memory");
  } catch (const std::system_error& error) {  // fmt::print throws it too
    say(std::ferror(stdout) == 0 ? error.what() : "standard output: cannot be written");
  } catch (const std::exception& error) {
    say(error.what());
  }
  return kUsage;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace quire::cli;
  hold_standard_streams();
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
    const bool is_help = app.exit(error) == 0;
    return is_help && std::cout.flush().good() ? kSuccess : kUsage;
  }
  return run(action);
}

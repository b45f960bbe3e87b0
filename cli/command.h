// SPDX-License-Identifier: Apache-2.0
// What the subcommands share: how they are added, and how they end.
//
// Every subcommand takes --json and then prints exactly one document on standard output; progress
// and messages go to standard error. Exit codes: 0 success, 1 something checked has failed, 2 bad
// usage or bad input.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace quire::cli {

inline constexpr int kSuccess = 0;
inline constexpr int kFailure = 1;
inline constexpr int kUsage = 2;

// What the chosen subcommand will do once the whole line has been parsed.
using Action = std::function<int()>;

void add_info(CLI::App& app, Action& action);
void add_check(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_replay(CLI::App& app, Action& action);
void add_trace(CLI::App& app, Action& action);

}  // namespace quire::cli

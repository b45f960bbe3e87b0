// SPDX-License-Identifier: Apache-2.0
// The report of `quire replay` for people and for machines.
#pragma once

#include <nlohmann/json.hpp>

#include "cli/replay_options.h"
#include "replay/cache_plan.h"
#include "replay/html_report.h"
#include "replay/replay.h"

namespace quire::cli {

void print_report(const ReplayCommand& options, const replay::CachePlan& plan,
                  const replay::ReplayReport& report);
nlohmann::ordered_json report_json(const ReplayCommand& options, const replay::CachePlan& plan,
                                   const replay::ReplayReport& report);

// What the page says of the options.
replay::HtmlContext html_context(const ReplayCommand& options, const replay::CachePlan& plan);

}  // namespace quire::cli

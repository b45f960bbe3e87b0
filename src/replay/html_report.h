// SPDX-License-Identifier: Apache-2.0
// The report of a replay as one page that needs nothing else: no network, no script, light and
// dark.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "replay/replay.h"

namespace quire::replay {

struct HtmlContext {
  std::string title;
  bool is_computed = false;  // seconds are measured, not those of the trace clock
  std::vector<std::pair<std::string, std::string>> settings{};  // shown as they are
};

std::string html_report(const ReplayReport& report, const HtmlContext& context);

}  // namespace quire::replay

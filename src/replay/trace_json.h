// SPDX-License-Identifier: Apache-2.0
// One line of a JSON trace.
#pragma once

#include <string>
#include <string_view>

#include "replay/trace.h"

namespace quire::replay {

// `where` stands before every message. Keys that are not known are passed over. A line without
// timestamp has 0.
void parse_trace_json(std::string_view line, const std::string& where, TraceRequest& request);

// The field in which a line is that was cut off, or "the line".
std::string last_json_field(std::string_view beginning);

}  // namespace quire::replay

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

// Throws unless minimum <= value <= maximum.
void require_in_range(const std::string& where, std::string_view field, std::int64_t value,
                      std::int64_t minimum, std::int64_t maximum);

}  // namespace quire::replay

// SPDX-License-Identifier: Apache-2.0
// Traces as text: the forms that TraceReader reads.
#pragma once

#include <cstdint>
#include <string>

#include "replay/trace.h"

namespace quire::replay {

enum class TraceForm : std::uint8_t {
  kMooncake,  // JSON lines with hash_ids
  kLengths,   // JSON lines without
  kCsv,       // timestamp,input_length,output_length
};

// What comes before the first request: a header, or nothing.
std::string trace_header(TraceForm form);
// One line with its end.
std::string trace_line(const TraceRequest& request, TraceForm form);

}  // namespace quire::replay

// SPDX-License-Identifier: Apache-2.0
#include "replay/trace_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace quire::replay {

std::string trace_header(TraceForm form) {
  return form == TraceForm::kCsv ? "timestamp,input_length,output_length\n" : "";
}

std::string trace_line(const TraceRequest& request, TraceForm form) {
  if (form == TraceForm::kCsv) {
    return fmt::format("{},{},{}\n", request.timestamp_ms, request.input_length,
                       request.output_length);
  }
  const std::string lengths =
      fmt::format("{{\"timestamp\": {}, \"input_length\": {}, \"output_length\": {}",
                  request.timestamp_ms, request.input_length, request.output_length);
  if (form == TraceForm::kLengths) return lengths + "}\n";
  return fmt::format("{}, \"hash_ids\": [{}]}}\n", lengths, fmt::join(request.hash_ids, ", "));
}

}  // namespace quire::replay

// SPDX-License-Identifier: Apache-2.0
#include "replay/trace_fields.h"

#include <limits>

#include "base/check.h"
#include "replay/trace.h"

namespace quire::replay {
namespace {

constexpr std::size_t kMaxShown = 40;  // characters

struct FieldRange {
  std::int64_t minimum;
  std::int64_t maximum;
};

FieldRange range_of(TraceField field) {
  switch (field) {
    case TraceField::kTimestamp:
      return {0, kMaxTimestampMs};
    case TraceField::kInput:
      return {1, kMaxTraceLength};
    case TraceField::kOutput:
      return {0, kMaxTraceLength};
    case TraceField::kIds:
      break;
  }
  return {0, std::numeric_limits<std::int64_t>::max()};
}

}  // namespace

const char* field_name(TraceField field) noexcept {
  switch (field) {
    case TraceField::kTimestamp:
      return "timestamp";
    case TraceField::kInput:
      return "input_length";
    case TraceField::kOutput:
      return "output_length";
    case TraceField::kIds:
      break;
  }
  return "hash_ids";
}

std::string field_values(TraceField field) {
  const auto [minimum, maximum] = range_of(field);
  return concat("a whole number between ", minimum, " and ", maximum);
}

std::string shown(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, kMaxShown)) result += c >= 0x20 && c < 0x7f ? c : '?';
  return text.size() > kMaxShown ? result + "..." : result;
}

void fail_field(const std::string& where, TraceField field, const std::string& found) {
  fail(ErrorCode::kInvalidArgument, where, field_name(field), ": must be ", field_values(field),
       ", is ", found);
}

void require_in_range(const std::string& where, TraceField field, std::int64_t value) {
  const auto [minimum, maximum] = range_of(field);
  if (value < minimum || value > maximum) fail_field(where, field, std::to_string(value));
}

}  // namespace quire::replay

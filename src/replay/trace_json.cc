// SPDX-License-Identifier: Apache-2.0
#include "replay/trace_json.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "replay/trace_fields.h"

namespace quire::replay {
namespace {

constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;
constexpr const char* kWholeLine = "the line";

// The events of one line. At depth 1 a key names a field, at depth 2 stand the ids.
class LineHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  LineHandler(std::string_view line, const std::string& where, TraceRequest& request)
      : line_(line), where_(where), request_(request) {}

  void require_all() const {
    for (const TraceField field : {TraceField::kInput, TraceField::kOutput}) {
      if (!is_seen(field)) fail_field(where_, field, "missing");
    }
    if (is_seen(TraceField::kIds) && request_.hash_ids.empty()) {
      fail(kBad, where_, "hash_ids: must be a list of at least one id, is empty");
    }
  }

  bool null() override { return refuse("null"); }
  bool boolean(bool value) override { return refuse(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return take(value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return take(static_cast<std::int64_t>(value));
    }
    return refuse(std::to_string(value));
  }
  bool number_float(number_float_t /*value*/, const string_t& text) override {
    return refuse(shown(text));
  }
  bool string(string_t& value) override { return refuse("'" + shown(value) + "'"); }
  bool binary(binary_t& /*value*/) override { return refuse("binary data"); }

  bool start_object(std::size_t /*size*/) override {
    if (depth_ > 0) refuse("an object");
    ++depth_;
    return true;
  }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t /*size*/) override {
    if (depth_ == 1 && field_ == TraceField::kIds) {
      in_ids_ = true;
    } else {
      refuse("an array");
    }
    ++depth_;
    return true;
  }
  bool end_array() override {
    if (depth_ == 2) in_ids_ = false;
    return leave();
  }
  bool key(string_t& name) override {
    if (depth_ != 1) return true;
    field_.reset();
    for (const TraceField field : kTraceFields) {
      if (name == field_name(field)) field_ = field;
    }
    in_value_ = true;
    if (!field_) return true;
    if (is_seen(*field_)) fail(kBad, where_, name, ": must be given once, is given twice");
    seen_ |= 1U << static_cast<unsigned>(*field_);
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*last_token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    constexpr std::size_t kMaxTail = 20;
    std::size_t begin = std::min(position == 0 ? 0 : position - 1, line_.size());
    const bool is_end = begin == line_.size();
    if (is_end) begin -= std::min(begin, kMaxTail);
    // The parser gives up within a word; people look for all of it.
    while (!is_end && begin > 0 &&
           std::isalnum(static_cast<unsigned char>(line_[begin - 1])) != 0 &&
           std::isalnum(static_cast<unsigned char>(line_[begin])) != 0) {
      --begin;
    }
    fail(kBad, where_, place(), ": not JSON at column ", is_end ? line_.size() + 1 : begin + 1,
         ": expected ", expected(), ", found ", is_end ? "the end of the line after '" : "'",
         shown(line_.substr(begin)), "'");
  }

  // What the line was about to say, by what came so far.
  std::string place() const {
    if (depth_ == 0) return kWholeLine;
    if (in_value_) return field_ ? field_name(*field_) : kWholeLine;
    // A key was next, or has begun.
    const std::size_t quote = line_.find_last_of("\",{");
    const std::string_view begun =
        quote == std::string_view::npos ? line_ : line_.substr(quote + 1);
    for (const TraceField field : kTraceFields) {
      const bool is_begun =
          !begun.empty() && std::string_view(field_name(field)).starts_with(begun);
      if (is_begun && !is_seen(field)) return field_name(field);
    }
    for (const TraceField field : {TraceField::kInput, TraceField::kOutput}) {
      if (!is_seen(field)) return field_name(field);
    }
    return kWholeLine;
  }

 private:
  bool is_seen(TraceField field) const { return (seen_ >> static_cast<unsigned>(field) & 1U) != 0; }
  // Whether a value at this place means something.
  bool is_wanted() const { return depth_ == 0 || (depth_ == 1 && field_) || in_ids_; }

  bool leave() {
    --depth_;
    is_closed_ = depth_ == 0;
    if (depth_ == 1) in_value_ = false;
    return true;
  }
  // A value that is no object and no array has been read.
  bool pass() {
    if (depth_ == 1) in_value_ = false;
    return true;
  }

  std::string expected() const {
    if (is_closed_) return "the end of the line";
    if (depth_ == 0) return "a JSON object";
    if (in_ids_) return "an id, ',' or ']'";
    if (!in_value_) return "a key in quotes, ',' or '}'";
    if (depth_ > 1 || !field_) return "a JSON value";
    return field_ == TraceField::kIds ? "a list of ids" : field_values(*field_);
  }

  bool refuse(const std::string& what) {
    if (!is_wanted()) return pass();
    if (depth_ == 0) fail(kBad, where_, kWholeLine, ": must be a JSON object, is ", what);
    if (in_ids_) {
      fail(kBad, where_, "hash_ids[", request_.hash_ids.size(), "]: must be ",
           field_values(TraceField::kIds), ", is ", what);
    }
    if (field_ == TraceField::kIds) fail(kBad, where_, "hash_ids: must be a list, is ", what);
    fail_field(where_, *field_, what);
  }
  bool take(std::int64_t value) {
    const bool is_id = in_ids_ && depth_ == 2 && value >= 0;
    if (is_id) {
      request_.hash_ids.push_back(value);
      return true;
    }
    if (depth_ != 1 || !field_ || field_ == TraceField::kIds) return refuse(std::to_string(value));
    (field_ == TraceField::kTimestamp ? request_.timestamp_ms
     : field_ == TraceField::kInput   ? request_.input_length
                                      : request_.output_length) = value;
    return pass();
  }

  std::string_view line_;
  const std::string& where_;
  TraceRequest& request_;
  int depth_ = 0;
  std::optional<TraceField> field_;  // of the last key, if it means something
  bool in_value_ = false;            // a key has been read, its value has not
  bool in_ids_ = false;
  bool is_closed_ = false;
  unsigned seen_ = 0;
};

}  // namespace

void parse_trace_json(std::string_view line, const std::string& where, TraceRequest& request) {
  request.timestamp_ms = request.input_length = request.output_length = 0;
  request.hash_ids.clear();
  LineHandler handler(line, where, request);
  nlohmann::json::sax_parse(line, &handler);
  handler.require_all();
}

std::string last_json_field(std::string_view beginning) {
  const std::string nowhere;
  TraceRequest ignored;
  LineHandler handler(beginning, nowhere, ignored);
  try {
    nlohmann::json::sax_parse(beginning, &handler);
  } catch (const Error&) {  // there is no end, at the latest
  }
  return handler.place();
}

}  // namespace quire::replay

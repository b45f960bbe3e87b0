// SPDX-License-Identifier: Apache-2.0
#include "replay/trace_json.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/check.h"

namespace quire::replay {
namespace {

constexpr std::size_t kMaxQuoted = 40;  // characters of the file in a message

std::string shown(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, kMaxQuoted)) result += c >= 0x20 && c < 0x7f ? c : '?';
  return text.size() > kMaxQuoted ? result + "..." : result;
}

// The events of one line. At depth 1 a key names a field, at depth 2 stand the ids.
class LineHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  LineHandler(const std::string& where, TraceRequest& request) : where_(where), request_(request) {}

  void require_all() const {
    for (const Field field : {Field::kInput, Field::kOutput}) {
      if (!is_seen(field)) quire::fail(kBad, where_, name_of(field), ": is missing");
    }
    if (is_seen(Field::kIds) && request_.hash_ids.empty()) {
      quire::fail(kBad, where_, "hash_ids: is empty");
    }
  }

  bool null() override { return refuse("null"); }
  bool boolean(bool value) override { return refuse(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return take(value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return take(static_cast<std::int64_t>(value));
    }
    return is_wanted() ? fail_value("is too large: " + std::to_string(value)) : true;
  }
  bool number_float(number_float_t /*value*/, const string_t& text) override {
    return is_wanted() ? fail_value("must be a whole number, is " + shown(text)) : true;
  }
  bool string(string_t& value) override { return refuse("'" + shown(value) + "'"); }
  bool binary(binary_t& /*value*/) override { return refuse("binary data"); }

  bool start_object(std::size_t /*size*/) override {
    if (depth_ > 0 && !refuse("an object")) return false;
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(std::size_t /*size*/) override {
    if (depth_ == 0) quire::fail(kBad, where_, "must be an object, is an array");
    if (depth_ == 1 && field_ == Field::kIds) {
      in_ids_ = true;
    } else {
      refuse("an array");
    }
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    if (depth_ == 1) in_ids_ = false;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ != 1) return true;
    field_ = field_of(name);
    if (field_ != Field::kOther) {
      if (is_seen(field_)) quire::fail(kBad, where_, name_of(field_), ": is given twice");
      seen_ |= 1U << static_cast<unsigned>(field_);
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string& last_token,
                   const nlohmann::detail::exception& /*error*/) override {
    const std::string field = field_ == Field::kOther ? "" : std::string(name_of(field_)) + ": ";
    quire::fail(kBad, where_, field, "not JSON at column ", position, ", near '", shown(last_token),
                "'");
  }

 private:
  enum class Field : unsigned { kTimestamp, kInput, kOutput, kIds, kOther };
  static constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;

  static Field field_of(std::string_view name) {
    for (const Field field : {Field::kTimestamp, Field::kInput, Field::kOutput, Field::kIds}) {
      if (name == name_of(field)) return field;
    }
    return Field::kOther;
  }
  static const char* name_of(Field field) {
    switch (field) {
      case Field::kTimestamp:
        return "timestamp";
      case Field::kInput:
        return "input_length";
      case Field::kOutput:
        return "output_length";
      case Field::kIds:
        return "hash_ids";
      case Field::kOther:
        break;
    }
    return "";
  }
  bool is_seen(Field field) const { return (seen_ >> static_cast<unsigned>(field) & 1U) != 0; }
  // Whether a value at this place means something.
  bool is_wanted() const {
    return depth_ == 0 || (depth_ == 1 && field_ != Field::kOther) || in_ids_;
  }

  [[noreturn]] bool fail_value(const std::string& message) const {
    if (depth_ == 0) quire::fail(kBad, where_, "must be an object");
    if (in_ids_) {
      quire::fail(kBad, where_, "hash_ids[", request_.hash_ids.size(), "]: ", message);
    }
    quire::fail(kBad, where_, name_of(field_), ": ", message);
  }
  bool refuse(const std::string& what) const {
    if (is_wanted())
      fail_value((in_ids_ || field_ != Field::kIds ? "must be a whole number, is "
                                                   : "must be a list, is ") +
                 what);
    return true;
  }
  bool take(std::int64_t value) {
    if (!is_wanted()) return true;
    if (in_ids_ && depth_ == 2) {
      if (value < 0) fail_value("must not be negative, is " + std::to_string(value));
      request_.hash_ids.push_back(value);
      return true;
    }
    if (depth_ != 1 || field_ == Field::kIds) return refuse(std::to_string(value));
    (field_ == Field::kTimestamp ? request_.timestamp_ms
     : field_ == Field::kInput   ? request_.input_length
                                 : request_.output_length) = value;
    return true;
  }

  const std::string& where_;
  TraceRequest& request_;
  int depth_ = 0;
  Field field_ = Field::kOther;
  unsigned seen_ = 0;
  bool in_ids_ = false;
};

}  // namespace

void parse_trace_json(std::string_view line, const std::string& where, TraceRequest& request) {
  request.timestamp_ms = request.input_length = request.output_length = 0;
  request.hash_ids.clear();
  LineHandler handler(where, request);
  nlohmann::json::sax_parse(line, &handler);
  handler.require_all();
}

void require_in_range(const std::string& where, std::string_view field, std::int64_t value,
                      std::int64_t minimum, std::int64_t maximum) {
  require(value >= minimum && value <= maximum, where, field, ": must be between ", minimum,
          " and ", maximum, ", is ", value);
}

}  // namespace quire::replay

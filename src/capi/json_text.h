// SPDX-License-Identifier: Apache-2.0
// Writes JSON, indented by two: the library links no JSON package.
//
//   JsonText json;
//   json.begin_object();
//   json.key("name");
//   json.string("cpu");
//   json.end_object();
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire::capi {

class JsonText {
 public:
  void begin_object() { open('{'); }
  void end_object() { close('}'); }
  void begin_array() { open('['); }
  void end_array() { close(']'); }
  // Before a value inside an object.
  void key(std::string_view name);

  // Bytes that are not UTF-8 become the replacement character.
  void string(std::string_view text);
  void boolean(bool value) { raw(value ? "true" : "false"); }
  void number(std::int64_t value) { raw(std::to_string(value)); }
  void strings(const std::vector<std::string>& list);

  const std::string& text() const noexcept { return text_; }

 private:
  void open(char bracket);
  void close(char bracket);
  void raw(std::string_view value);
  void begin_value();
  void quote(std::string_view text);

  std::string text_;
  std::vector<bool> has_values_;  // of the objects and arrays that are open
  bool after_key_ = false;
};

}  // namespace quire::capi

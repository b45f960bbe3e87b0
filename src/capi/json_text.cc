// SPDX-License-Identifier: Apache-2.0
#include "capi/json_text.h"

#include <algorithm>
#include <cstddef>

namespace quire::capi {
namespace {

// Bytes of the UTF-8 character at the front; 0: it is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xC2 && first < 0xE0   ? 2
                             : first >= 0xE0 && first < 0xF0 ? 3
                             : first >= 0xF0 && first < 0xF5 ? 4
                                                             : 0;
  if (length == 0 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) return 0;
  }
  const unsigned second = byte(1);  // too long a form, surrogates, or beyond the last character
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second >= 0xA0) ||
      (first == 0xF0 && second < 0x90) || (first == 0xF4 && second >= 0x90)) {
    return 0;
  }
  return length;
}

void append_escaped(char c, std::string& text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  if (c == '"' || c == '\\') {
    text += {'\\', c};
  } else if (c == '\n') {
    text += "\\n";
  } else if (c == '\t') {
    text += "\\t";
  } else if (const auto code = static_cast<unsigned char>(c); code < 0x20) {
    text += "\\u00";
    text += {kHex[code >> 4U], kHex[code & 0xFU]};
  } else {
    text += c;
  }
}

}  // namespace

void JsonText::key(std::string_view name) {
  begin_value();
  quote(name);
  text_ += ": ";
  after_key_ = true;
}

void JsonText::string(std::string_view text) {
  begin_value();
  quote(text);
}

void JsonText::strings(const std::vector<std::string>& list) {
  begin_array();
  for (const std::string& text : list) string(text);
  end_array();
}

void JsonText::open(char bracket) {
  begin_value();
  text_ += bracket;
  has_values_.push_back(false);
}

void JsonText::close(char bracket) {
  const bool had_values = has_values_.back();
  has_values_.pop_back();
  if (had_values) {
    text_ += '\n';
    text_.append(2 * has_values_.size(), ' ');
  }
  text_ += bracket;
}

void JsonText::raw(std::string_view value) {
  begin_value();
  text_ += value;
}

void JsonText::begin_value() {
  if (after_key_ || has_values_.empty()) {
    after_key_ = false;
    return;
  }
  if (has_values_.back()) text_ += ',';
  has_values_.back() = true;
  text_ += '\n';
  text_.append(2 * has_values_.size(), ' ');
}

void JsonText::quote(std::string_view text) {
  text_ += '"';
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) {
      text_ += "\xEF\xBF\xBD";
    } else if (length == 1) {
      append_escaped(text.front(), text_);
    } else {
      text_ += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  text_ += '"';
}

}  // namespace quire::capi

// SPDX-License-Identifier: Apache-2.0
#include "benchmark/batch_grammar.h"

#include <charconv>
#include <cstdint>
#include <limits>

#include "base/check.h"

namespace quire::benchmark {
namespace {

using conformance::SequenceShape;

constexpr std::int64_t kMaxLength = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxSequences = 1 << 20;

class GroupParser {
 public:
  explicit GroupParser(std::string_view group) : group_(group), rest_(group) {}

  void expect(char c) {
    if (rest_.empty() || rest_.front() != c) fail_with(concat("expected '", c, "'"));
    rest_.remove_prefix(1);
  }
  bool accept(char c) {
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  // A number of [1, limit].
  std::int64_t number(const char* what, std::int64_t limit) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error == std::errc::invalid_argument) fail_with(concat("expected ", what));
    if (error != std::errc{} || value < 1 || value > limit) {
      fail_with(concat(what, " is not in [1, ", limit, "]"));
    }
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }
  void expect_end() {
    if (!rest_.empty()) fail_with("nothing more may follow");
  }
  [[noreturn]] void fail_with(const std::string& what) const {
    fail(ErrorCode::kInvalidArgument, "batch '", group_, "': ", what, " at '", rest_,
         "'; the form is qL@K*N, as in q1@4096*16");
  }

 private:
  std::string_view group_;
  std::string_view rest_;
};

void parse_group(std::string_view text, std::vector<SequenceShape>& sequences) {
  GroupParser parser(text);
  SequenceShape shape;
  parser.expect('q');
  shape.q_len = parser.number("q_len", kMaxLength);
  parser.expect('@');
  shape.kv_len = parser.number("kv_len", kMaxLength);
  const std::int64_t count = parser.accept('*') ? parser.number("the count", kMaxSequences) : 1;
  parser.expect_end();
  if (shape.q_len > shape.kv_len) parser.fail_with("kv_len, new tokens included, is below q_len");
  sequences.insert(sequences.end(), static_cast<std::size_t>(count), shape);
}

}  // namespace

std::vector<SequenceShape> parse_batch(std::string_view text) {
  std::vector<SequenceShape> sequences;
  for (;;) {
    const std::size_t comma = text.find(',');
    parse_group(text.substr(0, comma), sequences);
    if (comma == std::string_view::npos) return sequences;
    text.remove_prefix(comma + 1);
  }
}

std::string batch_text(const std::vector<SequenceShape>& sequences) {
  std::string text;
  for (std::size_t i = 0; i < sequences.size();) {
    std::size_t end = i;
    while (end < sequences.size() && sequences[end].q_len == sequences[i].q_len &&
           sequences[end].kv_len == sequences[i].kv_len) {
      ++end;
    }
    text += concat(text.empty() ? "" : ",", "q", sequences[i].q_len, "@", sequences[i].kv_len);
    if (end - i > 1) text += concat("*", end - i);
    i = end;
  }
  return text;
}

}  // namespace quire::benchmark

// SPDX-License-Identifier: Apache-2.0
#include "replay/trace_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "quire/error.h"
#include "replay/trace_writer.h"

namespace quire::replay {
namespace {

// `text`, at most `step` bytes at a time.
ByteSource bytes_of(std::string text, std::size_t step = 7) {
  auto left = std::make_shared<std::string>(std::move(text));
  return [left, step](char* data, std::size_t size) {
    const std::size_t count = std::min({left->size(), size, step});
    std::memcpy(data, left->data(), count);
    left->erase(0, count);
    return count;
  };
}

Trace read(const std::string& text, const TraceReaderOptions& options = {}) {
  TraceReader reader("t", bytes_of(text), options);
  Trace trace;
  TraceRequest request;
  while (reader.next(request)) trace.push_back(request);
  return trace;
}

const TraceRequest kFirst{
    .timestamp_ms = 0, .input_length = 513, .output_length = 9, .hash_ids = {0, 4}};
const TraceRequest kSecond{
    .timestamp_ms = 3000, .input_length = 512, .output_length = 0, .hash_ids = {7}};

TEST(TraceReader, ReadsWhatTheWriterWrites) {
  for (const TraceForm form : {TraceForm::kMooncake, TraceForm::kLengths, TraceForm::kCsv}) {
    Trace want{kFirst, kSecond};
    const std::string text =
        trace_header(form) + trace_line(want[0], form) + trace_line(want[1], form);
    if (form != TraceForm::kMooncake) want[0].hash_ids = want[1].hash_ids = {};
    EXPECT_EQ(read(text), want) << text;
  }
}

TEST(TraceReader, TakesWhatMeansTheSame) {
  const Trace want{kFirst, kSecond};
  // Order of keys, keys it does not know, blanks, line ends, a byte order mark, no end at the end.
  EXPECT_EQ(read("\xEF\xBB\xBF \r\n"
                 "{\"hash_ids\":[0,4],\"x\":{\"hash_ids\":[[1]],\"y\":1.5},\"output_length\":9,"
                 "\"input_length\":513,\"name\":\"a\",\"z\":null,\"t\":[1,{}]}\r\n\n"
                 "{\"timestamp\":3000,\"input_length\":512,\"output_length\":0,\"hash_ids\":[7]}"),
            want);
  const Trace lengths = read("name, output_length ,input_length\na,9,513\nb,0,512\n");
  ASSERT_EQ(lengths.size(), 2U);
  EXPECT_EQ(lengths[0].input_length, 513);
  EXPECT_EQ(lengths[1].output_length, 0);
  EXPECT_EQ(lengths[1].timestamp_ms, 0);
  EXPECT_EQ(read("input_length,output_length\n1,1\n2,2\nbad\n", {.max_requests = 2}).size(), 2U);
  EXPECT_EQ(
      read("{\"input_length\":5,\"output_length\":1,\"hash_ids\":[1,2]}", {.block_tokens = 4})[0]
          .hash_ids.size(),
      2U);
}

struct BadInput {
  const char* text;
  const char* message;
};

// A good line, then what is wrong with the second.
constexpr const char* kGood =
    R"({"timestamp": 3000, "input_length": 5, "output_length": 2, "hash_ids": [1]})"
    "\n";

class BadJson : public ::testing::TestWithParam<BadInput> {};

TEST_P(BadJson, NamesFileLineAndField) {
  try {
    read(std::string(kGood) + GetParam().text);
    FAIL() << "accepted: " << GetParam().text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), ::testing::HasSubstr(std::string("t:2: ") + GetParam().message));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadJson,
    ::testing::Values(
        BadInput{
            R"({"timestamp": 3000, "input_length": 5, "outpu)",
            "output_length: not JSON at column 46: expected a key in quotes, ',' or '}', found "
            "the end of the line after 't_length\": 5, \"outpu'"},
        BadInput{R"({"timestamp": 3000, "input_length": 5, "output_length": 2, "hash_ids": [1)",
                 "hash_ids: not JSON at column 74: expected an id, ',' or ']', found the end of "
                 "the line"},
        BadInput{
            R"({"timestamp": 3000, "input_length": NaN, "output_length": 2})",
            "input_length: not JSON at column 37: expected a whole number between 1 and 16777216, "
            "found 'NaN, \"output_length\": 2}'"},
        BadInput{
            R"({"timestamp": Infinity})",
            "timestamp: not JSON at column 15: expected a whole number between 0 and 31622400000, "
            "found 'Infinity}'"},
        BadInput{R"({"timestamp": 3000} trailing)",
                 "the line: not JSON at column 21: expected the end of the line, found 'trailing'"},
        BadInput{"\x01\x02\xff", "the line: not JSON at column 1: expected a JSON object, found '"},
        BadInput{"[1, 2]", "the line: must be a JSON object, is an array"},
        BadInput{"17", "the line: must be a JSON object, is 17"},
        BadInput{"\"text\"", "the line: must be a JSON object, is 'text'"},
        BadInput{R"({"timestamp": 3000, "output_length": 2, "hash_ids": [1]})",
                 "input_length: must be a whole number between 1 and 16777216, is missing"},
        BadInput{R"({"timestamp": 3000, "input_length": 5, "hash_ids": [1]})",
                 "output_length: must be a whole number between 0 and 16777216, is missing"},
        BadInput{R"({"timestamp": 3000, "input_length": -5, "output_length": 2, "hash_ids": [1]})",
                 "input_length: must be a whole number between 1 and 16777216, is -5"},
        BadInput{R"({"timestamp": 3000, "input_length": 0, "output_length": 2, "hash_ids": [1]})",
                 "input_length: must be a whole number between 1 and 16777216, is 0"},
        BadInput{R"({"timestamp": 3000, "input_length": 5, "output_length": -1, "hash_ids": [1]})",
                 "output_length: must be a whole number between 0 and 16777216, is -1"},
        BadInput{R"({"timestamp": -1, "input_length": 5, "output_length": 2, "hash_ids": [1]})",
                 "timestamp: must be a whole number between 0 and 31622400000, is -1"},
        BadInput{
            R"({"timestamp": 3000, "input_length": 9223372036854775808, "output_length": 2})",
            "input_length: must be a whole number between 1 and 16777216, is 9223372036854775808"},
        BadInput{
            R"({"timestamp": 3000, "input_length": 9223372036854775807, "output_length": 2})",
            "input_length: must be a whole number between 1 and 16777216, is 9223372036854775807"},
        BadInput{
            R"({"timestamp": 3000, "input_length": 99999999999999999999999, "output_length": 2})",
            "input_length: must be a whole number between 1 and 16777216, is "
            "99999999999999999999999"},
        BadInput{
            R"({"timestamp": 3000, "input_length": 5, "output_length": 1e99, "hash_ids": [1]})",
            "output_length: must be a whole number between 0 and 16777216, is 1e99"},
        BadInput{R"({"timestamp": 3000.5, "input_length": 5, "output_length": 2, "hash_ids": [1]})",
                 "timestamp: must be a whole number between 0 and 31622400000, is 3000.5"},
        BadInput{R"({"timestamp": 3000, "input_length": "5", "output_length": 2, "hash_ids": [1]})",
                 "input_length: must be a whole number between 1 and 16777216, is '5'"},
        BadInput{R"({"timestamp": null, "input_length": 5, "output_length": 2, "hash_ids": [1]})",
                 "timestamp: must be a whole number between 0 and 31622400000, is null"},
        BadInput{R"({"timestamp": true, "input_length": 5, "output_length": 2, "hash_ids": [1]})",
                 "timestamp: must be a whole number between 0 and 31622400000, is true"},
        BadInput{R"({"timestamp": 3000, "input_length": [5], "output_length": 2, "hash_ids": [1]})",
                 "input_length: must be a whole number between 1 and 16777216, is an array"},
        BadInput{R"({"timestamp": 3000, "input_length": {}, "output_length": 2, "hash_ids": [1]})",
                 "input_length: must be a whole number between 1 and 16777216, is an object"},
        BadInput{R"({"timestamp": 2999, "input_length": 5, "output_length": 2, "hash_ids": [1]})",
                 "timestamp: must be at least 3000, that of the request before, is 2999"},
        BadInput{
            R"({"timestamp": 3000, "input_length": 5, "output_length": 2, "hash_ids": [1, 2]})",
            "hash_ids: must be 1 id, one for every 512 tokens of input_length 5, are 2"},
        BadInput{R"({"timestamp": 3000, "input_length": 513, "output_length": 2, "hash_ids": [1]})",
                 "hash_ids: must be 2 ids, one for every 512 tokens of input_length 513, are 1"},
        BadInput{R"({"timestamp": 3000, "input_length": 5, "output_length": 2, "hash_ids": []})",
                 "hash_ids: must be a list of at least one id, is empty"},
        BadInput{R"({"timestamp": 3000, "input_length": 5, "output_length": 2, "hash_ids": [-1]})",
                 "hash_ids[0]: must be a whole number between 0 and 9223372036854775807, is -1"},
        BadInput{R"({"timestamp": 3000, "input_length": 5, "output_length": 2, "hash_ids": [1.5]})",
                 "hash_ids[0]: must be a whole number between 0 and 9223372036854775807, is 1.5"},
        BadInput{
            R"({"timestamp": 3000, "input_length": 5, "output_length": 2, "hash_ids": [[1]]})",
            "hash_ids[0]: must be a whole number between 0 and 9223372036854775807, is an array"},
        BadInput{R"({"timestamp": 3000, "input_length": 5, "output_length": 2, "hash_ids": ["a"]})",
                 "hash_ids[0]: must be a whole number between 0 and 9223372036854775807, is 'a'"},
        BadInput{
            R"({"timestamp": 3000, "input_length": 5, "output_length": 2, "hash_ids": [18446744073709551615]})",
            "hash_ids[0]: must be a whole number between 0 and 9223372036854775807, is "
            "18446744073709551615"},
        BadInput{R"({"timestamp": 3000, "input_length": 5, "output_length": 2, "hash_ids": 1})",
                 "hash_ids: must be a list, is 1"},
        BadInput{R"({"timestamp": 3000, "input_length": 5, "output_length": 2})",
                 "hash_ids: must be a list, as in the first request, is missing"},
        BadInput{R"({"input_length": 5, "input_length": 5, "output_length": 2, "hash_ids": [1]})",
                 "input_length: must be given once, is given twice"}));

class BadCsv : public ::testing::TestWithParam<BadInput> {};

TEST_P(BadCsv, NamesFileLineAndField) {
  try {
    read(GetParam().text);
    FAIL() << "accepted: " << GetParam().text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), ::testing::HasSubstr(GetParam().message));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadCsv,
    ::testing::Values(
        BadInput{"", "t:1: the trace must hold at least one request, has none"},
        BadInput{" \n\r\n", "t:3: the trace must hold at least one request, has none"},
        BadInput{"input_length,output_length\n",
                 "t:2: the trace must hold at least one request, has none"},
        BadInput{
            "\x7f"
            "ELF\x02\x01",
            "t:1: input_length: is missing; expected a JSON object, or the names of the columns "
            "of a CSV file, found '?ELF"},
        BadInput{"input_length\n5\n", "t:1: output_length: is missing"},
        BadInput{"input_length,input_length,output_length\n",
                 "t:1: input_length: must name one column, names two"},
        BadInput{
            "input_length,output_length\n5\n",
            "t:2: output_length: must be a whole number between 0 and 16777216, is missing; the "
            "line has 1 column, the header 2"},
        BadInput{"input_length,output_length\n5,6,7\n",
                 "t:2: the line: must have 2 columns as the header has, has 3"},
        BadInput{"input_length,output_length\n5,six\n",
                 "t:2: output_length: must be a whole number between 0 and 16777216, is 'six'"},
        BadInput{"input_length,output_length\nnan,6\n",
                 "t:2: input_length: must be a whole number between 1 and 16777216, is 'nan'"},
        BadInput{"input_length,output_length\n5,\n",
                 "t:2: output_length: must be a whole number between 0 and 16777216, is empty"},
        BadInput{"input_length,output_length\n9223372036854775808,6\n",
                 "t:2: input_length: must be a whole number between 1 and 16777216, is "
                 "'9223372036854775808'"},
        BadInput{"timestamp,input_length,output_length\n5,1,1\n4,1,1\n",
                 "t:3: timestamp: must be at least 5, that of the request before, is 4"}));

// A line that never ends is refused at the limit, in the field that it has come to, however long
// the file is.
TEST(TraceReader, NeverHoldsMoreThanTheLongestLine) {
  struct Endless {
    const char* beginning;
    const char* rest;
    const char* message;
  };
  EXPECT_EQ(TraceReaderOptions().max_line_bytes, std::size_t{16} << 20);
  constexpr std::size_t kMaxLineBytes = 1 << 16;
  for (const Endless& file :
       {Endless{"{}", " ", "endless:1: the line"}, Endless{"{", " ", "endless:1: input_length"},
        Endless{R"({"input_length": 5, "hash_ids": [)", "1,", "endless:1: hash_ids"},
        Endless{R"({"timestamp": 5, "x": ")", "y", "endless:1: the line"},
        Endless{"input_length,output_length\n", "1", "endless:2: input_length"},
        Endless{"input_length,output_length\n7,", "1", "endless:2: output_length"},
        Endless{"", " ", "endless:1: the line"}}) {
    std::size_t num_given = 0;
    const ByteSource endless = [&](char* data, std::size_t size) {
      const std::string_view text = num_given == 0 && *file.beginning != 0
                                        ? std::string_view(file.beginning)
                                        : std::string_view(file.rest);
      std::size_t used = 0;
      for (; used + text.size() <= size; used += text.size()) {
        std::memcpy(data + used, text.data(), text.size());
        if (text == file.beginning) {
          used += text.size();
          break;
        }
      }
      num_given += used;
      return used;
    };
    TraceReader reader("endless", endless, {.max_line_bytes = kMaxLineBytes});
    TraceRequest request;
    try {
      reader.next(request);
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  ::testing::StartsWith(std::string(file.message) + ": a line must have at most " +
                                        std::to_string(kMaxLineBytes) +
                                        " bytes, this one has more and begins with '"));
    }
    EXPECT_LE(num_given, kMaxLineBytes + (std::size_t{128} << 10));
  }
}

TEST(TraceReader, NamesAFileThatIsNotThere) {
  try {
    read_trace("no/such/trace.jsonl");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "no/such/trace.jsonl: No such file or directory");
  }
}

}  // namespace
}  // namespace quire::replay

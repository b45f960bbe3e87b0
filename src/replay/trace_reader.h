// SPDX-License-Identifier: Apache-2.0
// Reads a trace line by line: JSON lines of the Mooncake form or of lengths alone, or CSV with a
// header. The first line says which.
//
// Whatever is wrong is an Error(kInvalidArgument) that names file, line and field, and says what is
// found there and what is expected. Memory is bounded by the longest line that is allowed, whatever
// the file holds. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "replay/trace.h"
#include "replay/trace_fields.h"

namespace quire::replay {

struct TraceReaderOptions {
  std::int64_t block_tokens = kTraceBlockTokens;  // of one hash id
  std::size_t max_line_bytes = std::size_t{16} << 20;
  std::int64_t max_requests = 0;  // stop after so many; 0: all
};

// Fills the buffer from its beginning and returns how many bytes; 0: the end.
using ByteSource = std::function<std::size_t(char* data, std::size_t size)>;

// Lines without their ends, of any length up to a limit: of a longer one, only the beginning.
class LineReader {
 public:
  LineReader(std::string name, ByteSource source, std::size_t max_line_bytes);

  // The next line that holds more than blanks, or is too long; or nothing. Valid until the next
  // call.
  std::optional<std::string_view> next();
  // "FILE:LINE: " of the line that next() gave, or was reading.
  std::string where() const;
  const std::string& name() const noexcept { return name_; }
  bool is_too_long() const noexcept { return is_too_long_; }  // the line that next() gave

 private:
  bool read_line();

  std::string name_;
  ByteSource source_;
  std::size_t max_line_bytes_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;  // of what is not yet taken of buffer_
  std::size_t end_ = 0;
  std::string line_;
  std::int64_t line_number_ = 0;
  bool is_too_long_ = false;
};

class TraceReader {
 public:
  TraceReader(std::string name, ByteSource source, const TraceReaderOptions& options = {});

  // False at the end. Throws too if the end comes before the first request.
  bool next(TraceRequest& request);

 private:
  enum class Form : std::uint8_t { kUnknown, kJson, kCsv };

  std::optional<std::string_view> next_line();
  [[noreturn]] void fail_too_long(std::string_view line) const;
  void read_header(std::string_view line);
  void parse_csv(std::string_view line, TraceRequest& request) const;
  void check(const TraceRequest& request);

  TraceReaderOptions options_;
  LineReader lines_;
  Form form_ = Form::kUnknown;
  std::vector<std::optional<TraceField>> columns_;  // of CSV; none: passed over
  std::vector<std::string> column_names_;
  std::int64_t num_requests_ = 0;
  std::int64_t last_timestamp_ms_ = 0;
  bool has_ids_ = false;  // the first request had
};

// Of a file; "-" is standard input.
ByteSource open_file(const std::string& path);
Trace read_trace(const std::string& path, const TraceReaderOptions& options = {});

}  // namespace quire::replay

// SPDX-License-Identifier: Apache-2.0
#include "replay/trace_reader.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "replay/trace_json.h"

namespace quire::replay {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{64} << 10;
constexpr std::size_t kMaxColumns = 256;
constexpr std::string_view kBlanks = " \t\r";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// Calls f(index, cell) for the cells between commas.
template <class F>
std::size_t for_each_cell(std::string_view line, F&& f) {
  std::size_t index = 0;
  while (true) {
    const std::size_t comma = line.find(',');
    f(index++, trimmed(line.substr(0, comma)));
    if (comma == std::string_view::npos) return index;
    line.remove_prefix(comma + 1);
  }
}

std::int64_t parse_cell(const std::string& where, std::string_view field, std::string_view cell) {
  constexpr std::size_t kMaxShown = 40;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  require(error != std::errc::result_out_of_range, where, field,
          ": is too large: ", cell.substr(0, kMaxShown));
  require(error == std::errc() && end == cell.data() + cell.size(), where, field,
          ": must be a whole number, is '", cell.substr(0, kMaxShown), "'");
  return value;
}

}  // namespace

LineReader::LineReader(std::string name, ByteSource source, std::size_t max_line_bytes)
    : name_(std::move(name)),
      source_(std::move(source)),
      max_line_bytes_(max_line_bytes),
      buffer_(kBufferBytes) {}

std::string LineReader::where() const {
  return concat(name_, ":", line_number_, ": ");
}

std::optional<std::string_view> LineReader::next() {
  while (read_line()) {
    std::string_view line = line_;
    if (line_number_ == 1 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
    line = trimmed(line);
    if (!line.empty()) return line;
  }
  return std::nullopt;
}

bool LineReader::read_line() {
  line_.clear();
  ++line_number_;
  while (true) {
    if (begin_ == end_) {
      begin_ = 0;
      end_ = source_(buffer_.data(), buffer_.size());
      if (end_ == 0) return !line_.empty();
    }
    const char* first = buffer_.data() + begin_;
    const void* newline = std::memchr(first, '\n', end_ - begin_);
    const std::size_t size =
        newline == nullptr ? end_ - begin_
                           : static_cast<std::size_t>(static_cast<const char*>(newline) - first);
    require(line_.size() + size <= max_line_bytes_, where(), "the line is longer than ",
            max_line_bytes_, " bytes");
    line_.append(first, size);
    begin_ += size;
    if (newline == nullptr) continue;
    ++begin_;
    return true;
  }
}

TraceReader::TraceReader(std::string name, ByteSource source, const TraceReaderOptions& options)
    : options_(options), lines_(std::move(name), std::move(source), options.max_line_bytes) {
  require(options.block_tokens >= 1 && options.block_tokens <= kMaxTraceLength,
          "tokens of one hash id must be between 1 and ", kMaxTraceLength, ", are ",
          options.block_tokens);
}

bool TraceReader::next(TraceRequest& request) {
  if (options_.max_requests > 0 && num_requests_ == options_.max_requests) return false;
  std::optional<std::string_view> line = lines_.next();
  if (line && form_ == Form::kUnknown) {
    form_ = line->front() == '{' || line->front() == '[' ? Form::kJson : Form::kCsv;
    if (form_ == Form::kCsv) {
      read_header(*line);
      line = lines_.next();
    }
  }
  if (!line) {
    require(num_requests_ > 0, lines_.name(), ": the trace holds no request");
    return false;
  }
  if (form_ == Form::kJson) {
    parse_trace_json(*line, lines_.where(), request);
  } else {
    parse_csv(*line, request);
  }
  check(request);
  return true;
}

void TraceReader::read_header(std::string_view line) {
  const std::string where = lines_.where();
  bool has_input = false;
  bool has_output = false;
  bool has_timestamp = false;
  const auto take_once = [&](bool& has, std::string_view cell) {
    require(!has, where, cell, ": there are two columns of this name");
    has = true;
  };
  for_each_cell(line, [&](std::size_t index, std::string_view cell) {
    require(index < kMaxColumns, where, "more than ", kMaxColumns, " columns");
    Column column = Column::kOther;
    if (cell == "timestamp") {
      take_once(has_timestamp, cell);
      column = Column::kTimestamp;
    } else if (cell == "input_length") {
      take_once(has_input, cell);
      column = Column::kInput;
    } else if (cell == "output_length") {
      take_once(has_output, cell);
      column = Column::kOutput;
    }
    columns_.push_back(column);
    column_names_.emplace_back(cell);
  });
  require(has_input && has_output, where, has_input ? "output_length" : "input_length",
          ": is missing; the file must be JSON lines, or CSV whose first line names its columns");
}

void TraceReader::parse_csv(std::string_view line, TraceRequest& request) const {
  const std::string where = lines_.where();
  request = {};
  const std::size_t num_cells = for_each_cell(line, [&](std::size_t index, std::string_view cell) {
    if (index >= columns_.size() || columns_[index] == Column::kOther) return;
    const std::int64_t value = parse_cell(where, column_names_[index], cell);
    (columns_[index] == Column::kTimestamp ? request.timestamp_ms
     : columns_[index] == Column::kInput   ? request.input_length
                                           : request.output_length) = value;
  });
  require(num_cells == columns_.size(), where, "has ", num_cells, " columns, the header ",
          columns_.size(),
          num_cells < columns_.size() ? concat("; ", column_names_[num_cells], " is missing") : "");
}

void TraceReader::check(const TraceRequest& request) {
  const std::string where = lines_.where();
  require_in_range(where, "timestamp", request.timestamp_ms, 0, kMaxTimestampMs);
  require_in_range(where, "input_length", request.input_length, 1, kMaxTraceLength);
  require_in_range(where, "output_length", request.output_length, 0, kMaxTraceLength);
  require(request.timestamp_ms >= last_timestamp_ms_, where, "timestamp: ", request.timestamp_ms,
          " comes after ", last_timestamp_ms_,
          "; requests must stand in the order of their arrival");
  const bool has_ids = !request.hash_ids.empty();
  if (num_requests_ == 0) has_ids_ = has_ids;
  require(has_ids == has_ids_, where, "hash_ids: ", has_ids_ ? "are missing" : "are given",
          ", while the first request has ", has_ids_ ? "some" : "none");
  const std::int64_t num_blocks =
      (request.input_length + options_.block_tokens - 1) / options_.block_tokens;
  require(!has_ids || std::ssize(request.hash_ids) == num_blocks, where,
          "hash_ids: ", request.hash_ids.size(), " of them, but input_length ",
          request.input_length, " has ", num_blocks, " blocks of ", options_.block_tokens,
          " tokens");
  last_timestamp_ms_ = request.timestamp_ms;
  ++num_requests_;
}

ByteSource open_file(const std::string& path) {
  std::shared_ptr<std::FILE> file(stdin, [](std::FILE*) {});
  if (path != "-") {
    std::FILE* opened = std::fopen(path.c_str(), "rb");
    require(opened != nullptr, path, ": ", std::generic_category().message(errno));
    file.reset(opened, [](std::FILE* f) { static_cast<void>(std::fclose(f)); });
  }
  return [file, path](char* data, std::size_t size) {
    const std::size_t num_read = std::fread(data, 1, size, file.get());
    require(num_read > 0 || std::ferror(file.get()) == 0, path,
            ": cannot be read: ", std::generic_category().message(errno));
    return num_read;
  };
}

Trace read_trace(const std::string& path, const TraceReaderOptions& options) {
  TraceReader reader(path == "-" ? "standard input" : path, open_file(path), options);
  Trace trace;
  TraceRequest request;
  while (reader.next(request)) trace.push_back(request);
  return trace;
}

}  // namespace quire::replay

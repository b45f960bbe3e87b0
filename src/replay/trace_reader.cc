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
#include "replay/trace_fields.h"
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

std::int64_t parse_cell(const std::string& where, TraceField field, std::string_view cell) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc() || end != cell.data() + cell.size()) {
    fail_field(where, field, cell.empty() ? "empty" : concat("'", shown(cell), "'"));
  }
  return value;
}

std::string counted_columns(std::size_t count) {
  return concat(count, count == 1 ? " column" : " columns");
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
    if (!line.empty() || is_too_long_) return line;
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
    is_too_long_ = line_.size() + size > max_line_bytes_;
    line_.append(first, std::min(size, max_line_bytes_ - line_.size()));
    if (is_too_long_) return true;
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
  std::optional<std::string_view> line = next_line();
  if (line && form_ == Form::kCsv && columns_.empty()) {
    read_header(*line);
    line = next_line();
  }
  if (!line) {
    require(num_requests_ > 0, lines_.where(),
            "the trace must hold at least one request, has none");
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

// The first line says what the form is. A line that goes on beyond the limit is refused in the
// field that it has come to.
std::optional<std::string_view> TraceReader::next_line() {
  const std::optional<std::string_view> line = lines_.next();
  if (line && form_ == Form::kUnknown) {
    form_ = line->starts_with('{') || line->starts_with('[') ? Form::kJson : Form::kCsv;
  }
  if (line && lines_.is_too_long()) fail_too_long(*line);
  return line;
}

void TraceReader::fail_too_long(std::string_view line) const {
  std::string field = "the line";
  if (form_ == Form::kJson) field = last_json_field(line);
  if (form_ == Form::kCsv && !column_names_.empty()) {
    const auto column = static_cast<std::size_t>(std::ranges::count(line, ','));
    if (column < column_names_.size()) field = column_names_[column];
  }
  fail(ErrorCode::kInvalidArgument, lines_.where(), field, ": a line must have at most ",
       options_.max_line_bytes, " bytes, this one has more and begins with '", shown(line), "'");
}

void TraceReader::read_header(std::string_view line) {
  const std::string where = lines_.where();
  for_each_cell(line, [&](std::size_t index, std::string_view cell) {
    require(index < kMaxColumns, where, "the line: must have at most ", kMaxColumns,
            " columns, has more");
    std::optional<TraceField> column;
    for (const TraceField field :
         {TraceField::kTimestamp, TraceField::kInput, TraceField::kOutput}) {
      if (cell == field_name(field)) column = field;
    }
    require(!column || std::ranges::find(columns_, column) == columns_.end(), where, cell,
            ": must name one column, names two");
    columns_.push_back(column);
    column_names_.emplace_back(cell);
  });
  for (const TraceField field : {TraceField::kInput, TraceField::kOutput}) {
    require(std::ranges::find(columns_, std::optional(field)) != columns_.end(), where,
            field_name(field),
            ": is missing; expected a JSON object, or the names of the columns "
            "of a CSV file, found '",
            shown(line), "'");
  }
}

void TraceReader::parse_csv(std::string_view line, TraceRequest& request) const {
  const std::string where = lines_.where();
  request = {};
  const std::size_t num_cells = for_each_cell(line, [&](std::size_t index, std::string_view cell) {
    if (index >= columns_.size() || !columns_[index]) return;
    const TraceField field = *columns_[index];
    (field == TraceField::kTimestamp ? request.timestamp_ms
     : field == TraceField::kInput   ? request.input_length
                                     : request.output_length) = parse_cell(where, field, cell);
  });
  const std::string counts =
      concat("; the line has ", counted_columns(num_cells), ", the header ", columns_.size());
  for (std::size_t i = num_cells; i < columns_.size(); ++i) {
    if (columns_[i]) fail_field(where, *columns_[i], "missing" + counts);
  }
  require(num_cells == columns_.size(), where, "the line: must have ",
          counted_columns(columns_.size()), " as the header has, has ", num_cells);
}

void TraceReader::check(const TraceRequest& request) {
  const std::string where = lines_.where();
  require_in_range(where, TraceField::kTimestamp, request.timestamp_ms);
  require_in_range(where, TraceField::kInput, request.input_length);
  require_in_range(where, TraceField::kOutput, request.output_length);
  require(request.timestamp_ms >= last_timestamp_ms_, where, "timestamp: must be at least ",
          last_timestamp_ms_, ", that of the request before, is ", request.timestamp_ms);
  const std::size_t num_ids = request.hash_ids.size();
  if (num_requests_ == 0) has_ids_ = num_ids > 0;
  require(has_ids_ || num_ids == 0, where,
          "hash_ids: must be missing, as in the first request, has ", num_ids);
  require(!has_ids_ || num_ids > 0, where,
          "hash_ids: must be a list, as in the first request, is missing");
  const std::int64_t num_blocks =
      (request.input_length + options_.block_tokens - 1) / options_.block_tokens;
  require(!has_ids_ || static_cast<std::int64_t>(num_ids) == num_blocks, where,
          "hash_ids: must be ", num_blocks, num_blocks == 1 ? " id" : " ids", ", one for every ",
          options_.block_tokens, " tokens of input_length ", request.input_length, ", are ",
          num_ids);
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

// SPDX-License-Identifier: Apache-2.0
// Traces of any bytes are read or refused with an Error that names the place; what is read can be
// written and read again to the same.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "quire/error.h"
#include "replay/trace_reader.h"
#include "replay/trace_writer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace quire::replay {
namespace {

ByteSource source_of(std::string_view text) {
  return [text](char* data, std::size_t size) mutable {
    const std::size_t count = std::min(text.size(), size);
    std::memcpy(data, text.data(), count);
    text.remove_prefix(count);
    return count;
  };
}

Trace read(std::string_view text) {
  TraceReader reader("t", source_of(text), {.block_tokens = 4, .max_line_bytes = 4096});
  Trace trace;
  TraceRequest request;
  while (reader.next(request)) trace.push_back(request);
  return trace;
}

void expect(bool holds) {
  if (!holds) std::abort();
}

void run(std::string_view text) {
  Trace trace;
  try {
    trace = read(text);
  } catch (const Error& error) {
    expect(error.code() == ErrorCode::kInvalidArgument);
    expect(std::string_view(error.what()).starts_with("t:"));
    return;
  }
  const bool has_ids = !trace.front().hash_ids.empty();
  for (const TraceForm form : {TraceForm::kMooncake, TraceForm::kCsv}) {
    if ((form == TraceForm::kMooncake) != has_ids) continue;
    std::string written = trace_header(form);
    for (const TraceRequest& request : trace) written += trace_line(request, form);
    // A line that was shorter than the limit may be longer in our words.
    try {
      expect(read(written) == trace);
    } catch (const Error& error) {
      expect(std::string_view(error.what()).ends_with("longer than 4096 bytes"));
    }
  }
}

}  // namespace
}  // namespace quire::replay

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  quire::replay::run({reinterpret_cast<const char*>(data), size});
  return 0;
}

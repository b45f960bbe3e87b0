// SPDX-License-Identifier: Apache-2.0
// The fields of a request in a trace file, and how a message speaks of one: file and line, the
// field, what it must be, what it is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire::replay {

enum class TraceField : std::uint8_t { kTimestamp, kInput, kOutput, kIds };
inline constexpr std::array kTraceFields = {TraceField::kTimestamp, TraceField::kInput,
                                            TraceField::kOutput, TraceField::kIds};

const char* field_name(TraceField field) noexcept;
// "a whole number between 1 and 16777216". An id, for kIds.
std::string field_values(TraceField field);

// Text of the file in a message: printable, and short.
std::string shown(std::string_view text);

// Throws Error(kInvalidArgument) "FILE:LINE: FIELD: must be ..., is FOUND".
[[noreturn]] void fail_field(const std::string& where, TraceField field, const std::string& found);
void require_in_range(const std::string& where, TraceField field, std::int64_t value);

}  // namespace quire::replay

// SPDX-License-Identifier: Apache-2.0
// For tests: where the published trace lies that some of them read. It is not part of the project.
#pragma once

#include <filesystem>
#include <string>

namespace quire::replay {

inline constexpr const char* kNoRealTrace =
    "../shared/data/mooncake_conversation.jsonl is not beside the source folder";

// Tests run in the source folder. Empty: it is not there.
inline std::string real_trace_path() {
  for (const char* path : {"../shared/data/mooncake_conversation.jsonl",
                           "../../shared/data/mooncake_conversation.jsonl"}) {
    if (std::filesystem::exists(path)) return path;
  }
  return {};
}

}  // namespace quire::replay

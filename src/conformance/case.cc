// SPDX-License-Identifier: Apache-2.0
#include "conformance/case.h"

namespace quire::conformance {

const char* suite_name(Suite suite) noexcept {
  switch (suite) {
    case Suite::kSmoke:
      return "smoke";
    case Suite::kStandard:
      return "standard";
    case Suite::kFull:
      return "full";
  }
  return "?";
}

// FNV-1a: the same everywhere, unlike std::hash.
std::uint64_t seed_of(std::string_view name) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return hash;
}

std::int64_t num_tokens(const Case& c) noexcept {
  std::int64_t sum = 0;
  for (const SequenceShape& sequence : c.sequences) sum += sequence.q_len;
  return sum;
}

}  // namespace quire::conformance

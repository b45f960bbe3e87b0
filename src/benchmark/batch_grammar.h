// SPDX-License-Identifier: Apache-2.0
// How a command line describes a batch:
//
//   batch    = group { "," group }
//   group    = "q" L "@" K [ "*" N ]      N sequences (1) with q_len L and kv_len K, new tokens
//   included
//
// "q512@4096*1,q1@2048*31" is a chunk of 512 tokens at 4096 and 31 decodes at 2048.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "conformance/case.h"

namespace quire::benchmark {

// Throws Error(kInvalidArgument) naming the group and what is wrong with it.
std::vector<conformance::SequenceShape> parse_batch(std::string_view text);

// The shortest text that parses to these sequences.
std::string batch_text(const std::vector<conformance::SequenceShape>& sequences);

}  // namespace quire::benchmark

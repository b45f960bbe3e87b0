// SPDX-License-Identifier: Apache-2.0
// Makes traces of the Mooncake form from a seed and a few statistics: conversations come at random,
// each begins with a shared system prompt and a first message, and every further turn repeats the
// conversation so far, the last answer included, and adds to it.
//
// The defaults are fitted to a published hour of a conversation service; docs/replay.md has the
// table that compares the two. The same options give the same trace.
#pragma once

#include <cstdint>

#include "replay/quantile_curve.h"
#include "replay/trace.h"

namespace quire::replay {

// When conversations begin.
enum class Arrivals : std::uint8_t {
  kPoisson,  // independent of each other
  kEven,     // at equal distances
  kBurst,    // all at once
};

struct GeneratorOptions {
  std::uint64_t seed = 1;
  std::int64_t num_requests = 12031;
  double duration_s = 3537;
  double tick_s = 3;  // timestamps are multiples of it; 0: of a millisecond
  Arrivals arrivals = Arrivals::kPoisson;
  std::int64_t block_tokens = kTraceBlockTokens;  // of one hash id

  std::int64_t system_tokens = 890;     // of the system prompt, which opens every request
  std::int64_t num_system_prompts = 1;  // a conversation keeps its own
  std::int64_t max_input = 126'195;     // a conversation ends before it would be longer

  // Tokens of the first message, without the system prompt.
  QuantileCurve first_tokens{{{0, 1},
                              {1, 4},
                              {5, 7},
                              {10, 15},
                              {25, 446},
                              {50, 4374},
                              {75, 12166},
                              {90, 23500},
                              {95, 35000},
                              {99, 84000},
                              {100, 125305}}};
  // Tokens that a further turn adds beside the last answer.
  QuantileCurve turn_tokens{{{0, 1},
                             {10, 2},
                             {25, 9},
                             {50, 26},
                             {75, 300},
                             {90, 3800},
                             {95, 6700},
                             {99, 16000},
                             {100, 91467}}};
  QuantileCurve output_tokens{{{0, 1},
                               {1, 3},
                               {5, 10},
                               {10, 24},
                               {25, 156},
                               {50, 350},
                               {75, 472},
                               {90, 597},
                               {95, 698},
                               {99, 1120},
                               {100, 2000}}};
  // Seconds from one turn to the next.
  QuantileCurve turn_gap_s{{{0, 1},
                            {1, 12},
                            {5, 30},
                            {10, 42},
                            {25, 66},
                            {50, 123},
                            {75, 264},
                            {90, 483},
                            {95, 618},
                            {99, 1482},
                            {100, 3030}}};

  double mean_turns = 1.85;     // of a conversation that is not cut off by the end
  double resend_share = 0.025;  // of further turns: the same prompt once more
  double rewind_share = 0.22;   // of further turns: only a beginning is kept, the rest is new
  // Of the conversation that a rewind keeps; at most 1.
  QuantileCurve rewind_kept{
      {{0, 0.015}, {10, 0.07}, {25, 0.115}, {50, 0.222}, {75, 0.469}, {90, 0.9}, {100, 0.993}}};
  // Tokens that follow what a rewind has kept.
  QuantileCurve rewind_tokens{{{0, 10},
                               {1, 316},
                               {5, 894},
                               {10, 1707},
                               {25, 5790},
                               {50, 9567},
                               {75, 14851},
                               {90, 19913},
                               {95, 26597},
                               {99, 43120},
                               {100, 94968}}};
};

// Throws Error(kInvalidArgument) naming the option.
Trace generate_trace(const GeneratorOptions& options);

}  // namespace quire::replay

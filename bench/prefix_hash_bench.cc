// SPDX-License-Identifier: Apache-2.0
// Naming the blocks of a prompt. The figure to compare is the time per token.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "quire/prompt.h"

namespace quire {
namespace {

void BM_prefix_hash(benchmark::State& state) {
  const int block_size = static_cast<int>(state.range(0));
  std::vector<Token> tokens(8192);
  std::iota(tokens.begin(), tokens.end(), 0);
  for (auto _ : state) {
    const Prompt prompt(tokens, block_size, {.salt = "tenant", .adapter = {}, .extra_keys = {}});
    Digest last = prompt.key(prompt.num_full_blocks() - 1);
    benchmark::DoNotOptimize(last);
  }
  const auto num_tokens =
      static_cast<double>(state.iterations()) * static_cast<double>(tokens.size());
  state.counters["seconds_per_token"] =
      benchmark::Counter(num_tokens, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_prefix_hash)->Arg(16)->Arg(64)->Arg(512);

}  // namespace
}  // namespace quire

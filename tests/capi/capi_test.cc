// SPDX-License-Identifier: Apache-2.0
// The C interface, tested from C: each case is a function of the C files beside this one.
#include <gtest/gtest.h>

#include "capi/client.h"

extern "C" void check_failed(const char* file, int line, const char* text) {
  ADD_FAILURE_AT(file, line) << text;
}

namespace {

TEST(CAttention, StepsOnTheCpu) {
  test_two_steps("cpu", 0);
}
TEST(CAttention, StepsOnTheReference) {
  test_two_steps("reference", 0);
}
TEST(CAttention, StoresInsideAttend) {
  test_two_steps("cpu", 1);
}
TEST(CAttention, SinksAndBias) {
  test_sinks_and_bias();
}
TEST(CAttention, RaggedKeys) {
  test_ragged();
}
TEST(CAttention, MergesPartials) {
  test_merge();
}
TEST(CAttention, ReadsTensorsOfTheCaller) {
  test_caller_tensors();
}
TEST(CAttention, RunsOnThreadsOfTheCaller) {
  test_executor();
}

TEST(CEngine, RunsRequestsWithRoom) {
  test_engine_loop(64, 0);
}
TEST(CEngine, RecomputesWhatItPreempts) {
  test_engine_loop(14, 0);
}
TEST(CEngine, SwapsWhatItPreempts) {
  test_engine_loop(14, 64);
}
TEST(CEngine, EndsRequestsForEveryReason) {
  test_scheduler_ends();
}
TEST(CEngine, ForksAndGuesses) {
  test_scheduler_speculation();
}

TEST(CBlocks, StepsByHand) {
  test_manual_steps();
}
TEST(CBlocks, Forks) {
  test_forks();
}
TEST(CBlocks, WindowsChunksAndEncoders) {
  test_groups();
}
TEST(CBlocks, Swaps) {
  test_swap();
}
TEST(CBlocks, Prompts) {
  test_prompts();
}
TEST(CBlocks, Events) {
  test_events();
}
TEST(CBlocks, Copies) {
  test_copies();
}
TEST(CBlocks, Memory) {
  test_memory();
}

TEST(CErrors, Null) {
  test_null_arguments();
}
TEST(CErrors, StructSizes) {
  test_struct_sizes();
}
TEST(CErrors, StructArrays) {
  test_struct_arrays();
}
TEST(CErrors, SpecFields) {
  test_spec_fields();
}
TEST(CErrors, BadValues) {
  test_bad_values();
}
TEST(CErrors, BadCaches) {
  test_bad_caches();
}
TEST(CErrors, ForeignHandles) {
  test_foreign_handles();
}
TEST(CErrors, DestructionInAnyOrder) {
  test_lifetimes();
}
TEST(CErrors, TextPerThread) {
  test_error_per_thread();
}
TEST(CThreads, ShareABackend) {
  test_shared_backend();
}
TEST(CThreads, SubmitAndCancel) {
  test_submit_from_threads();
}
TEST(CErrors, Constants) {
  test_constants();
}

TEST(CInfo, Backends) {
  test_info();
}
TEST(CInfo, Conformance) {
  test_check();
}

class CRandom : public testing::TestWithParam<int> {};

TEST_P(CRandom, EveryCallGivesAStatus) {
  test_random_arguments(static_cast<uint64_t>(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Seeds, CRandom, testing::Range(0, 8));

}  // namespace

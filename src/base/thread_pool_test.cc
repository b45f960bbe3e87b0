// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <numeric>

#include "base/sanitizers.h"
#include "quire/error.h"

namespace quire {
namespace {

TEST(ThreadPool, RunsEveryItemOnceOnAValidThread) {
  for (const int num_threads : {1, 2, 3, 8}) {
    ThreadPool pool(num_threads);
    EXPECT_EQ(pool.num_threads(), num_threads);
    for (const std::int64_t num_items : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(num_items));
      std::atomic<bool> valid{true};
      pool.run(num_items, [&](std::int64_t item, int thread) noexcept {
        if (thread < 0 || thread >= num_threads) valid = false;
        ++runs[static_cast<std::size_t>(item)];
      });
      EXPECT_TRUE(valid);
      for (const auto& count : runs) EXPECT_EQ(count, 1);
    }
  }
}

TEST(ThreadPool, EveryShareIsDoneOnce) {
  ThreadPool pool(6);
  for (int round = 0; round < 2000; ++round) {
    const int num_shares = round % 7;
    std::atomic<int> runs[6] = {};
    pool.run_shares(num_shares, [&](int thread) noexcept { ++runs[thread]; });
    for (int i = 0; i < 6; ++i) ASSERT_EQ(runs[i], i < num_shares ? 1 : 0) << round;
  }
}

// As many items as threads: what a thread wrote it finds again.
TEST(ThreadPool, ItemsBelongToThreads) {
  ThreadPool pool(4);
  std::atomic<int> others{0};
  for (int round = 0; round < 100; ++round) {
    pool.run(4, [&](std::int64_t item, int thread) noexcept {
      if (item != thread) ++others;
    });
  }
  EXPECT_EQ(others, 0);
}

TEST(ThreadPool, WhatItemsWroteIsVisibleAfterRun) {
  ThreadPool pool(4);
  std::vector<std::int64_t> values(257);
  for (std::int64_t round = 0; round < 200; ++round) {
    pool.run(257, [&](std::int64_t item, int) noexcept {
      values[static_cast<std::size_t>(item)] = item + round;
    });
    EXPECT_EQ(std::accumulate(values.begin(), values.end(), std::int64_t{0}),
              257 * 128 + 257 * round);
  }
}

TEST(ThreadPool, WakesAfterParking) {
  ThreadPool pool(3);
  std::atomic<int> count{0};
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    pool.run(16, [&](std::int64_t, int) noexcept { ++count; });
  }
  EXPECT_EQ(count, 48);
}

// Threads that spin, that are about to sleep, and that sleep, in any mixture.
TEST(ThreadPool, RunsAfterPausesOfAnyLength) {
  ThreadPool pool(5);
  std::uint32_t random = 1;
  for (int round = 0; round < 3000; ++round) {
    random = random * 1664525 + 1013904223;
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::nanoseconds(random >> 15);  // 0 to 131 us
    while (std::chrono::steady_clock::now() < until) spin_pause();
    const int most = 2 + round % 4;
    const int num_shares = round % 3 == 0 ? most : pool.threads_at_hand(most);
    ASSERT_TRUE(num_shares >= 1 && num_shares <= most) << num_shares;
    std::atomic<int> runs[5] = {};
    pool.run_shares(num_shares, [&](int thread) noexcept { ++runs[thread]; });
    for (int i = 0; i < 5; ++i) ASSERT_EQ(runs[i], i < num_shares ? 1 : 0) << round;
  }
}

// Everybody with a share is woken, or this would not end.
TEST(ThreadPool, ARunWakesEverybody) {
  constexpr int kThreads = 20;
  ThreadPool pool(kThreads);
  for (const int num_shares : {kThreads, 2, 7, kThreads}) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> num_there{0};
    pool.run_shares(num_shares, [&](int) noexcept {
      ++num_there;
      while (num_there < num_shares) std::this_thread::yield();
    });
    EXPECT_EQ(num_there, num_shares);
  }
}

// Even while others ask for fewer threads. Each share waits for all the others, or for too long.
TEST(ThreadPool, WhoAsksDoesNotCutARunShort) {
  const int num_threads = static_cast<int>(std::thread::hardware_concurrency());
  if (num_threads < 3) GTEST_SKIP() << "threads of a larger pool than CPUs do not spin";
  ThreadPool pool(num_threads);
  std::atomic<bool> over{false};
  std::thread other([&] {
    while (!over) pool.threads_at_hand(num_threads - 1);
  });
  std::atomic<bool> late{false};
  for (int round = 0; round < 300 && !late; ++round) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // some park
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    std::atomic<int> num_there{0};
    pool.run_shares(num_threads, [&](int) noexcept {
      ++num_there;
      while (num_there < num_threads && !late) {
        if (std::chrono::steady_clock::now() > end) late = true;
        std::this_thread::yield();
      }
    });
  }
  over = true;
  other.join();
  EXPECT_FALSE(late);
}

// Of all threads of the process.
double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Nobody is woken who has nothing to do, by those who were: that would never end.
TEST(ThreadPool, ThreadsComeToRest) {
  ThreadPool pool(8);
  for (int round = 0; round < 3; ++round) {
    pool.run_shares(8, [](int) noexcept {});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // they spin, then park
    const double begin = cpu_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    EXPECT_LT(cpu_seconds() - begin, 0.05) << "in 0.2 s without a run";
  }
}

// Runs that follow each other closely find threads awake in the end.
TEST(ThreadPool, ShortRunsGatherThreads) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one CPU: threads do not spin";
  ThreadPool pool(2);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  int num_threads = 1;
  while (num_threads < 2 && std::chrono::steady_clock::now() < end) {
    num_threads = pool.threads_at_hand(2);
    pool.run_shares(num_threads, [](int) noexcept {});
  }
  EXPECT_EQ(num_threads, 2);
}

// The caller sleeps, and is woken.
TEST(ThreadPool, WaitsForALongShare) {
  ThreadPool pool(2);
  for (int round = 0; round < 5; ++round) {
    std::atomic<bool> joined{false};
    std::atomic<bool> done{false};
    pool.run_shares(2, [&](int thread) noexcept {
      if (thread == 0) {
        while (!joined) std::this_thread::yield();
        return;
      }
      joined = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      done = true;
    });
    EXPECT_TRUE(done);
  }
}

TEST(ThreadPool, CallersTakeTurns) {
  ThreadPool pool(2);
  std::atomic<int> active[2] = {0, 0};
  std::atomic<int> total{0};
  std::atomic<bool> overlapped{false};
  const auto caller = [&](int id) {
    for (int round = 0; round < 50; ++round) {
      pool.run(8, [&, id](std::int64_t, int) noexcept {
        ++active[id];
        if (active[1 - id] != 0) overlapped = true;
        ++total;
        --active[id];
      });
    }
  };
  std::thread other([&] { caller(1); });
  caller(0);
  other.join();
  EXPECT_EQ(total, 800);
  EXPECT_FALSE(overlapped);
}

// The caller does not wait for threads that have nothing to do.
TEST(ThreadPool, ManyShortRuns) {
  ThreadPool pool(8);
  std::atomic<std::int64_t> sum{0};
  for (std::int64_t round = 0; round < 2000; ++round) {
    pool.run(2 + round % 9, [&](std::int64_t item, int) noexcept { sum += item; });
  }
  std::int64_t want = 0;
  for (std::int64_t round = 0; round < 2000; ++round) {
    want += (2 + round % 9) * (1 + round % 9) / 2;
  }
  EXPECT_EQ(sum, want);
}

int first_cpu() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 0;
  int cpu = 0;
  while (!CPU_ISSET(static_cast<std::size_t>(cpu), &allowed)) ++cpu;
  return cpu;
}

TEST(ThreadPool, PinsItsThreads) {
  const int cpu = first_cpu();
  const int cpus[] = {cpu};
  ThreadPool pool(4, cpus);
  std::atomic<int> elsewhere{0};
  for (int round = 0; round < 50; ++round) {
    pool.run(16, [&](std::int64_t, int thread) noexcept {
      if (thread != 0 && sched_getcpu() != cpu) ++elsewhere;
    });
  }
  EXPECT_EQ(elsewhere, 0);
  const int none[] = {CPU_SETSIZE + 7};
  EXPECT_THROW(ThreadPool(2, none), Error);
}

// The CPUs that the calling thread may use.
cpu_set_t cpus_of_this_thread() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  EXPECT_EQ(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
  return cpus;
}

// Where this thread may run again when a test is over.
struct RestoreCpus {
  cpu_set_t cpus = cpus_of_this_thread();
  RestoreCpus() = default;
  RestoreCpus(const RestoreCpus&) = delete;
  RestoreCpus& operator=(const RestoreCpus&) = delete;
  ~RestoreCpus() { EXPECT_EQ(sched_setaffinity(0, sizeof(cpus), &cpus), 0); }
};

void move_to(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(cpu), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
}

// Where each thread of a pool may run. Each waits for the others, so that none does another's
// share.
std::vector<cpu_set_t> cpus_of_threads(ThreadPool& pool) {
  std::vector<cpu_set_t> cpus(static_cast<std::size_t>(pool.num_threads()));
  std::atomic<int> num_here{0};
  pool.run_shares(pool.num_threads(), [&](int thread) noexcept {
    cpus[static_cast<std::size_t>(thread)] = cpus_of_this_thread();
    ++num_here;
    while (num_here < pool.num_threads()) std::this_thread::yield();
  });
  return cpus;
}

TEST(ThreadPool, AThreadForEveryCpuHasOneToItself) {
  const RestoreCpus restore;
  const cpu_set_t& all = restore.cpus;
  const int num_cpus = CPU_COUNT(&all);
  if (num_cpus < 2) GTEST_SKIP() << "one CPU: there is nothing to keep apart";
  ThreadPool pool(num_cpus);
  // Wherever the caller goes, they make room for it.
  for (int caller_cpu = 0; caller_cpu < CPU_SETSIZE; ++caller_cpu) {
    if (!CPU_ISSET(static_cast<std::size_t>(caller_cpu), &all)) continue;
    move_to(caller_cpu);
    cpu_set_t seen;
    CPU_ZERO(&seen);
    for (const cpu_set_t& of_thread : cpus_of_threads(pool)) {
      EXPECT_EQ(CPU_COUNT(&of_thread), 1);
      CPU_OR(&seen, &seen, &of_thread);
    }
    EXPECT_TRUE(CPU_EQUAL(&seen, &all)) << "caller on CPU " << caller_cpu;
  }
}

TEST(ThreadPool, OtherPoolsGoWhereTheSystemPutsThem) {
  const cpu_set_t all = cpus_of_this_thread();
  const int num_cpus = CPU_COUNT(&all);
  for (const int num_threads : {num_cpus - 1, num_cpus + 1}) {
    if (num_threads < 2) continue;
    ThreadPool pool(num_threads);
    for (const cpu_set_t& cpus : cpus_of_threads(pool)) EXPECT_TRUE(CPU_EQUAL(&cpus, &all));
  }
}

TEST(ThreadPool, AThreadForEveryCpuIsLeftAloneOnDemand) {
  const cpu_set_t all = cpus_of_this_thread();
  ThreadPool pool(std::max(2, CPU_COUNT(&all)), {}, false);
  for (const cpu_set_t& cpus : cpus_of_threads(pool)) EXPECT_TRUE(CPU_EQUAL(&cpus, &all));
}

// Nobody is moved back who was moved by others, wherever the caller goes.
TEST(ThreadPool, ThreadsThatOthersMovedStayThere) {
  const RestoreCpus restore;
  const cpu_set_t& all = restore.cpus;
  const int num_cpus = CPU_COUNT(&all);
  if (num_cpus < 2) GTEST_SKIP() << "one CPU: there is nowhere to move to";
  ThreadPool pool(num_cpus);
  std::atomic<int> num_here{0};
  pool.run_shares(num_cpus, [&](int) noexcept {
    EXPECT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
    ++num_here;
    while (num_here < num_cpus) std::this_thread::yield();
  });
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(static_cast<std::size_t>(cpu), &all)) continue;
    move_to(cpu);
    const std::vector<cpu_set_t> cpus = cpus_of_threads(pool);
    for (std::size_t i = 1; i < cpus.size(); ++i) EXPECT_TRUE(CPU_EQUAL(&cpus[i], &all));
  }
}

// A child of fork() has none of the threads: the caller does all shares, and stays where it may
// run.
TEST(ThreadPoolDeathTest, AChildOfForkKeepsItsCpus) {
  if (kHasThreadSanitizer) GTEST_SKIP() << "its runtime does not let a child of fork() go on";
  const cpu_set_t all = cpus_of_this_thread();
  const int num_cpus = CPU_COUNT(&all);
  if (num_cpus < 2) GTEST_SKIP() << "one CPU: nobody is pinned";
  ThreadPool pool(num_cpus);
  const pid_t child = fork();
  if (child == 0) {
    bool kept = true;
    for (int cpu = 0; cpu < CPU_SETSIZE && kept; ++cpu) {
      if (!CPU_ISSET(static_cast<std::size_t>(cpu), &all)) continue;
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(static_cast<std::size_t>(cpu), &one);
      sched_setaffinity(0, sizeof(one), &one);  // moves it there
      sched_setaffinity(0, sizeof(all), &all);
      pool.run_shares(num_cpus, [](int) noexcept {});
      cpu_set_t now;
      CPU_ZERO(&now);
      sched_getaffinity(0, sizeof(now), &now);
      kept = CPU_EQUAL(&now, &all);
    }
    _exit(kept ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Two threads on one CPU do not spin, so none is awake for the next run, however soon that comes.
TEST(ThreadPool, ThreadsThatShareACpuDoNotSpin) {
  const int cpu = first_cpu();
  const int cpus[] = {cpu, cpu};
  ThreadPool pool(2, cpus);
  while (pool.threads_awake(2) == 2) std::this_thread::yield();  // it has yet to park
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  int most = 0;
  while (std::chrono::steady_clock::now() < end) most = std::max(most, pool.threads_at_hand(2));
  EXPECT_EQ(most, 1);
}

// In a process of its own, where threads have no memory for their stacks, nor the pool for so many.
TEST(ThreadPoolDeathTest, AThreadThatCannotStartIsAnError) {
  if (kHasAddressSanitizer || kHasThreadSanitizer) {
    GTEST_SKIP() << "sanitizers reserve more memory than the limit of this test";
  }
  const auto start_many = [](int num_threads) {
    const rlimit limit{.rlim_cur = 1U << 30, .rlim_max = 1U << 30};
    setrlimit(RLIMIT_AS, &limit);
    try {
      ThreadPool pool(num_threads);
    } catch (const Error& error) {
      std::fprintf(stderr, "%s", error.what());
      std::_Exit(error.code() == ErrorCode::kOutOfMemory ? 7 : 1);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(start_many(4000), ::testing::ExitedWithCode(7),
              "thread .* of 4000 could not be started");
  EXPECT_EXIT(start_many(100000000), ::testing::ExitedWithCode(7),
              "thread 1 of 100000000 could not be started");
}

TEST(ThreadPool, NeedsAThread) {
  EXPECT_THROW(ThreadPool(0), Error);
  EXPECT_THROW(ThreadPool(-1), Error);
}

}  // namespace
}  // namespace quire

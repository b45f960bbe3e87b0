// SPDX-License-Identifier: Apache-2.0
#include "benchmark/memory_probe.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/cpu_features.h"
#include "base/host_memory.h"
#include "conformance/random.h"

namespace quire::benchmark {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kLineBytes = 64;
constexpr std::int64_t kStepBytes = 4 * kLineBytes;
constexpr std::int64_t kOrderedPieceBytes = 64 << 10;  // of reads in order; follow each other
constexpr std::int64_t kItemBytes = 4 << 20;           // handed to a thread at once

// One cache line, however many registers that takes.
using Line [[gnu::vector_size(64), gnu::may_alias]] = std::uint64_t;

struct PieceRange {
  const std::byte* base;      // [num_pieces, piece_bytes]
  const std::int32_t* order;  // [num_pieces]
  std::int64_t num_pieces;
  std::int64_t piece_bytes;
  std::int64_t begin, end;  // of order; may pass its end and go on at its begin

  const std::byte* piece(std::int64_t k) const noexcept {
    return base + order[k % num_pieces] * piece_bytes;
  }
};

// Reads every line, and asks for the one `ahead` bytes later in the order of reading.
template <bool kPrefetch>
[[gnu::always_inline]] inline void read_pieces(const PieceRange& range, std::int64_t ahead,
                                               Line& sum) noexcept {
  Line sum0{};
  Line sum1{};
  Line sum2{};
  Line sum3{};
  const std::int64_t pieces_ahead = ahead / range.piece_bytes;
  const std::int64_t rest = ahead % range.piece_bytes;
  for (std::int64_t k = range.begin; k < range.end; ++k) {
    const std::byte* now = range.piece(k);
    const std::byte* later = range.piece(k + pieces_ahead);
    const std::byte* last = range.piece(k + pieces_ahead + 1);
    for (std::int64_t at = 0; at < range.piece_bytes; at += kStepBytes) {
      if constexpr (kPrefetch) {
        const std::int64_t target = at + rest;
        const std::byte* line =
            target < range.piece_bytes ? later + target : last + (target - range.piece_bytes);
        __builtin_prefetch(line);
        __builtin_prefetch(line + kLineBytes);
        __builtin_prefetch(line + 2 * kLineBytes);
        __builtin_prefetch(line + 3 * kLineBytes);
      }
      const auto* lines = reinterpret_cast<const Line*>(now + at);
      sum0 ^= lines[0];
      sum1 ^= lines[1];
      sum2 ^= lines[2];
      sum3 ^= lines[3];
    }
  }
  sum = sum0 ^ sum1 ^ sum2 ^ sum3;
}

// Keeps the reads alive.
void consume(const Line& sum) noexcept {
  __asm__ volatile("" : : "m"(sum) : "memory");
}

void read_portable(const PieceRange& range, std::int64_t ahead) noexcept {
  Line sum{};
  ahead > 0 ? read_pieces<true>(range, ahead, sum) : read_pieces<false>(range, 0, sum);
  consume(sum);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void read_avx2(const PieceRange& range, std::int64_t ahead) noexcept {
  Line sum{};
  ahead > 0 ? read_pieces<true>(range, ahead, sum) : read_pieces<false>(range, 0, sum);
  consume(sum);
}

[[gnu::target("avx512f")]] void read_avx512(const PieceRange& range, std::int64_t ahead) noexcept {
  Line sum{};
  ahead > 0 ? read_pieces<true>(range, ahead, sum) : read_pieces<false>(range, 0, sum);
  consume(sum);
}
#endif

using Reader = void (*)(const PieceRange&, std::int64_t) noexcept;

Reader best_reader() {
#if defined(__x86_64__)
  const CpuFeatures features = detect_cpu_features();
  if (features.avx512) return read_avx512;
  if (features.avx2) return read_avx2;
#endif
  return read_portable;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

ProbeBuffer::ProbeBuffer(std::int64_t size_bytes)
    : data_(static_cast<std::byte*>(host_memory().allocate(size_bytes, PageHint::kHuge))),
      size_bytes_(size_bytes) {
  std::memset(data_, 1, static_cast<std::size_t>(size_bytes));
}

ProbeBuffer::~ProbeBuffer() {
  host_memory().free(data_);
}

ReadProbe::ReadProbe(ThreadPool& pool, const ProbeBuffer& buffer, std::int64_t piece_bytes,
                     std::int64_t run_bytes)
    : pool_(pool),
      buffer_(buffer),
      piece_bytes_(piece_bytes == 0 ? kOrderedPieceBytes
                                    : std::max(kStepBytes, (piece_bytes + kStepBytes - 1) /
                                                               kStepBytes * kStepBytes)),
      pieces_per_run_(
          std::max<std::int64_t>(1, std::min(run_bytes, buffer.size_bytes()) / piece_bytes_)) {
  order_.resize(static_cast<std::size_t>(buffer.size_bytes() / piece_bytes_));
  QUIRE_CHECK(!order_.empty());
  std::iota(order_.begin(), order_.end(), 0);
  if (piece_bytes != 0) {
    conformance::Random random(static_cast<std::uint64_t>(piece_bytes));
    for (std::int64_t n = std::ssize(order_); n > 1; --n) {
      std::swap(order_[static_cast<std::size_t>(n - 1)],
                order_[static_cast<std::size_t>(random.below(n))]);
    }
  }
  double best = 0;
  read_next(0);  // wakes the threads
  for (const std::int64_t ahead : {0, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10}) {
    const double rate = std::max(read_next(ahead), read_next(ahead));
    if (rate <= best) continue;
    best = rate;
    ahead_bytes_ = ahead;
  }
}

double ReadProbe::run() {
  return read_next(ahead_bytes_);
}

double ReadProbe::read_next(std::int64_t ahead_bytes) {
  const Reader reader = best_reader();
  const std::int64_t pieces_per_item = std::max<std::int64_t>(1, kItemBytes / piece_bytes_);
  const std::int64_t num_items = (pieces_per_run_ + pieces_per_item - 1) / pieces_per_item;
  const PieceRange all{.base = buffer_.data(),
                       .order = order_.data(),
                       .num_pieces = std::ssize(order_),
                       .piece_bytes = piece_bytes_,
                       .begin = next_,
                       .end = next_ + pieces_per_run_};
  const Clock::time_point start = Clock::now();
  pool_.run(num_items, [&](std::int64_t item, int) noexcept {
    PieceRange range = all;
    range.begin = all.begin + item * pieces_per_item;
    range.end = std::min(all.end, range.begin + pieces_per_item);
    reader(range, ahead_bytes);
  });
  const double seconds = seconds_since(start);
  next_ = (next_ + pieces_per_run_) % std::ssize(order_);
  return static_cast<double>(pieces_per_run_ * piece_bytes_) / seconds;
}

CopyProbe::CopyProbe(ThreadPool& pool, const ProbeBuffer& buffer, std::int64_t run_bytes)
    : pool_(pool),
      buffer_(buffer),
      run_bytes_(std::min(run_bytes, buffer.size_bytes() / 2) / kStepBytes * kStepBytes),
      item_bytes_(kItemBytes) {
  // Small pieces go through the caches, one large one per thread makes memcpy pass them by.
  double best = 0;
  copy_next(kItemBytes);
  const std::int64_t share = run_bytes_ / pool.num_threads();
  for (const std::int64_t item_bytes : {kItemBytes / 64, kItemBytes, share}) {
    const double rate = std::max(copy_next(item_bytes), copy_next(item_bytes));
    if (rate <= best) continue;
    best = rate;
    item_bytes_ = item_bytes;
  }
}

double CopyProbe::run() {
  return copy_next(item_bytes_);
}

double CopyProbe::copy_next(std::int64_t item_bytes) {
  const std::int64_t half = buffer_.size_bytes() / 2;
  if (next_ + run_bytes_ > half) next_ = 0;
  const std::byte* src = buffer_.data() + next_;
  std::byte* dst = buffer_.data() + half + next_;
  const std::int64_t num_items = (run_bytes_ + item_bytes - 1) / item_bytes;
  const Clock::time_point start = Clock::now();
  pool_.run(num_items, [&](std::int64_t item, int) noexcept {
    const std::int64_t begin = item * item_bytes;
    const std::int64_t size = std::min(item_bytes, run_bytes_ - begin);
    std::memcpy(dst + begin, src + begin, static_cast<std::size_t>(size));
  });
  const double seconds = seconds_since(start);
  next_ += run_bytes_;
  return static_cast<double>(run_bytes_) / seconds;
}

}  // namespace quire::benchmark

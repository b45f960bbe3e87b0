// SPDX-License-Identifier: Apache-2.0
#include "benchmark/ceilings.h"

#include "base/check.h"
#include "benchmark/statistics.h"

namespace quire::benchmark {
namespace {

// Enough for a median where a ceiling was measured for its own sake only.
constexpr int kRunsForMedian = 5;

}  // namespace

Ceilings::Ceilings(const ProbeBuffer& buffer, const std::vector<PeakKind>& peaks,
                   const Options& options)
    : buffer_(buffer), peaks_(peaks), options_(options), pool_(options.num_threads) {}

Ceilings::Reads& Ceilings::reads(std::int64_t piece_bytes) {
  Reads& reads = reads_[piece_bytes];
  if (reads.probe == nullptr) {
    reads.probe = std::make_unique<ReadProbe>(pool_, buffer_, piece_bytes, options_.run_bytes);
  }
  return reads;
}

double Ceilings::read(std::int64_t piece_bytes) {
  Reads& mine = reads(piece_bytes);
  mine.rates.push_back(mine.probe->run());
  return mine.rates.back();
}

double Ceilings::copy() {
  if (copy_probe_ == nullptr) {
    copy_probe_ = std::make_unique<CopyProbe>(pool_, buffer_, options_.run_bytes);
  }
  copy_rates_.push_back(copy_probe_->run());
  return copy_rates_.back();
}

double Ceilings::peak(PeakKind kind) {
  std::vector<double>& rates = peak_rates_[static_cast<std::size_t>(kind)];
  rates.push_back(measure_peak(kind, pool_, options_.peak_seconds));
  return rates.back();
}

double Ceilings::typical_read(std::int64_t piece_bytes) {
  while (reads(piece_bytes).rates.size() < kRunsForMedian) read(piece_bytes);
  return median(reads(piece_bytes).rates);
}

double Ceilings::typical_copy() {
  while (copy_rates_.size() < kRunsForMedian) copy();
  return median(copy_rates_);
}

double Ceilings::typical_peak(PeakKind kind) {
  const std::vector<double>& rates = peak_rates_[static_cast<std::size_t>(kind)];
  while (rates.size() < kRunsForMedian) peak(kind);
  return median(rates);
}

std::vector<std::int64_t> Ceilings::piece_sizes() const {
  std::vector<std::int64_t> sizes;
  for (const auto& [piece_bytes, reads] : reads_) {
    if (piece_bytes > 0) sizes.push_back(piece_bytes);
  }
  return sizes;
}

std::int64_t Ceilings::prefetch_bytes(std::int64_t piece_bytes) const {
  const auto found = reads_.find(piece_bytes);
  QUIRE_CHECK(found != reads_.end());
  return found->second.probe->prefetch_bytes();
}

}  // namespace quire::benchmark

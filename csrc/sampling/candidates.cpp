#include "sampling/candidates.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <numeric>

namespace headrace::sampling {
namespace {

// Weights fall into buckets by their leading bits (exponent and 6 bits of the fraction), which
// order non-negative floats; the largest weight is 1.
constexpr int kBucketShift = 17;
constexpr std::size_t kNumBuckets = (std::bit_cast<std::uint32_t>(1.0f) >> kBucketShift) + 1;
// Fewer candidates than this are sorted at once.
constexpr std::size_t kSmall = 256;

std::size_t bucket_of(float weight) {
  return std::bit_cast<std::uint32_t>(weight) >> kBucketShift;
}

// Logits of any sign fall into buckets by the leading bits of an integer of the same order.
constexpr int kCountShift = 18;
constexpr std::size_t kNumCountBuckets = std::size_t{1} << (32 - kCountShift);
constexpr float kLowest = std::numeric_limits<float>::lowest();

std::uint32_t ordered_bits(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

float float_of_ordered_bits(std::uint32_t bits) {
  return std::bit_cast<float>(bits >> 31 ? bits & 0x7FFFFFFFu : ~bits);
}

// Orders positions by value, the greatest first. Positions are in the order of indices.
struct ByRank {
  const float* values;
  bool operator()(std::int32_t a, std::int32_t b) const {
    return values[a] > values[b] || (values[a] == values[b] && a < b);
  }
};

}  // namespace

Candidates::Candidates(std::size_t capacity, const RowPasses& passes)
    : passes_(passes),
      // Not zeroed: memory that no row ever needs stays untouched.
      indices_(std::make_unique_for_overwrite<std::int32_t[]>(capacity)),
      logits_(std::make_unique_for_overwrite<float[]>(capacity)),
      weights_(std::make_unique_for_overwrite<float[]>(capacity)) {}

void Candidates::take_from(const RowView& row, float bound) {
  size_ = 0;
  for (std::size_t block = 0; block < row.block_maxima.size(); ++block) {
    if (!(row.block_maxima[block] >= bound)) continue;
    const std::size_t end = std::min(row.logits.size(), (block + 1) * kBlock);
    size_ += passes_.collect(row.logits.data(), block * kBlock, end, bound, &indices_[size_],
                             &logits_[size_]);
  }
}

void Candidates::take_top_k(const RowView& row, std::size_t k) {
  take_from(row, bound_of_top(row, k));
  if (size_ <= k) return;
  positions_.resize(size_);
  std::iota(positions_.begin(), positions_.end(), 0);
  const auto last = positions_.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(positions_.begin(), last, positions_.end(), ByRank{logits_.get()});
  drop_below(logits_.get(), *last);
}

// A finite bound that k or more tokens reach, when so many are finite, and not many more: the k-th
// largest of the block maxima, each being the logit of a token of its own.
float Candidates::bound_of_top(const RowView& row, std::size_t k) {
  if (k > row.block_maxima.size()) return bound_by_counting(row.logits, k);
  maxima_.assign(row.block_maxima.begin(), row.block_maxima.end());
  const auto last = maxima_.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(maxima_.begin(), last, maxima_.end(), std::greater<>());
  return std::max(*last, kLowest);
}

// The same for a k above the number of blocks: the lower end of the bucket with the k-th largest.
float Candidates::bound_by_counting(std::span<const float> logits, std::size_t k) {
  bucket_count_.assign(kNumCountBuckets, 0);
  for (const float logit : logits) ++bucket_count_[ordered_bits(logit) >> kCountShift];
  std::size_t bucket = kNumCountBuckets;
  for (std::size_t count = 0; bucket > 0 && count < k;) count += bucket_count_[--bucket];
  const float edge = float_of_ordered_bits(static_cast<std::uint32_t>(bucket) << kCountShift);
  return edge > kLowest ? edge : kLowest;  // an edge below minus infinity is a NaN
}

double Candidates::weigh(const WeightRule& rule) {
  passes_.weights(logits_.get(), size_, rule, weights_.get());
  return std::accumulate(weights_.get(), weights_.get() + size_, 0.0);
}

double Candidates::keep_mass(double mass) {
  drop_below(weights_.get(), last_position_of_mass(mass));
  return std::accumulate(weights_.get(), weights_.get() + size_, 0.0);
}

// Only the bucket in which the mass is reached needs an order of its tokens.
std::int32_t Candidates::last_position_of_mass(double mass) {
  double above = 0.0;
  positions_.clear();
  if (size_ <= kSmall) {
    positions_.resize(size_);
    std::iota(positions_.begin(), positions_.end(), 0);
  } else {
    bucket_mass_.assign(kNumBuckets, 0.0);
    for (std::size_t i = 0; i < size_; ++i) bucket_mass_[bucket_of(weights_[i])] += weights_[i];
    const std::size_t lowest = bucket_of(*std::min_element(weights_.get(), weights_.get() + size_));
    std::size_t bucket = kNumBuckets - 1;
    while (bucket > lowest && above + bucket_mass_[bucket] < mass) above += bucket_mass_[bucket--];
    for (std::size_t i = 0; i < size_; ++i) {
      if (bucket_of(weights_[i]) == bucket) positions_.push_back(static_cast<std::int32_t>(i));
    }
  }
  const ByRank by_rank{weights_.get()};
  if (!std::is_sorted(positions_.begin(), positions_.end(), by_rank)) {
    std::sort(positions_.begin(), positions_.end(), by_rank);
  }
  for (const std::int32_t position : positions_) {
    above += weights_[position];
    if (above >= mass) return position;
  }
  return positions_.back();
}

void Candidates::drop_below(float* values, std::int32_t last) {
  const float value = values[last];
  std::size_t kept = 0;
  for (std::size_t i = 0; i < size_; ++i) {
    const bool keeps =
        values[i] > value || (values[i] == value && i <= static_cast<std::size_t>(last));
    indices_[kept] = indices_[i];
    values[kept] = values[i];
    kept += keeps;
  }
  size_ = kept;
}

std::span<const std::int32_t> Candidates::ranked() {
  positions_.resize(size_);
  std::iota(positions_.begin(), positions_.end(), 0);
  std::sort(positions_.begin(), positions_.end(), ByRank{logits_.get()});
  return positions_;
}

}  // namespace headrace::sampling

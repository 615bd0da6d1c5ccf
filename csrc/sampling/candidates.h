// The few tokens of a row that may be chosen, found without sorting the row: top-k and top-p.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sampling/row_passes.h"

namespace headrace::sampling {

// A row of logits and the largest one of each of its blocks.
struct RowView {
  std::span<const float> logits;
  std::span<const float> block_maxima;
};

// Tokens in the order of their indices. A token ranks above another when its value is greater, or
// equal and its index lower; so every set below is unique.
class Candidates {
 public:
  Candidates(std::size_t capacity, const RowPasses& passes);

  std::size_t size() const { return size_; }
  std::span<const std::int32_t> indices() const { return {indices_.get(), size_}; }
  std::span<const float> logits() const { return {logits_.get(), size_}; }
  std::span<const float> weights() const { return {weights_.get(), size_}; }

  // Takes the k tokens of the row with the highest logits; fewer when fewer are above minus
  // infinity.
  void take_top_k(const RowView& row, std::size_t k);

  // Takes all tokens of the row with a logit of `bound` or more.
  void take_from(const RowView& row, float bound);

  // Computes the weights. Returns their sum.
  double weigh(const WeightRule& rule);

  // Keeps the fewest highest-weighted tokens that have `mass` or more together: at least one, and
  // all when rounding lets even all of them miss it. Returns their sum. Logits are gone after it.
  double keep_mass(double mass);

  // The positions of all tokens in order of rank by logit. Valid until the next call.
  std::span<const std::int32_t> ranked();

 private:
  float bound_of_top(const RowView& row, std::size_t k);
  float bound_by_counting(std::span<const float> logits, std::size_t k);
  std::int32_t last_position_of_mass(double mass);
  // Drops all tokens that rank, by these values, below the one at position `last`. Values of the
  // other kind are not moved along.
  void drop_below(float* values, std::int32_t last);

  const RowPasses& passes_;
  std::size_t size_ = 0;
  std::unique_ptr<std::int32_t[]> indices_;
  std::unique_ptr<float[]> logits_;
  std::unique_ptr<float[]> weights_;
  std::vector<float> maxima_;
  std::vector<std::int32_t> positions_;
  std::vector<double> bucket_mass_;
  std::vector<std::uint32_t> bucket_count_;
};

}  // namespace headrace::sampling

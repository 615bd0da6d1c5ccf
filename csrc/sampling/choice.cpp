#include "sampling/choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <span>

namespace headrace::sampling {
namespace {

constexpr float kLowestExponent = -126.0f;

// Walks weights until their sum passes `target`. What the walk leaves: the sum so far, and where it
// passed, or else the last token of any weight (rounding can leave the sum just short).
struct Walk {
  double target;
  double sum = 0.0;
  std::size_t last = 0;

  bool passes(std::span<const float> weights, std::size_t first_index) {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] == 0.0f) continue;
      last = first_index + i;
      sum += weights[i];
      if (sum > target) return true;
    }
    return false;
  }
};

// Draws from the whole row. Only the weights of the block that holds the answer are computed again.
std::size_t draw_from_row(const RowScan& row, const WeightRule& rule, double target,
                          const RowPasses& passes, const Workspace& workspace) {
  const std::span<const float> logits = row.view.logits;
  const float* sums = workspace.block_sums.get();
  std::size_t chosen_block = 0;
  double before = 0.0, sum = 0.0;
  for (std::size_t block = 0; block < num_blocks(logits.size()); ++block) {
    if (sums[block] == 0.0f) continue;
    chosen_block = block;
    before = sum;
    sum += sums[block];
    if (sum > target) break;
  }
  const std::size_t begin = chosen_block * kBlock;
  const std::size_t size = std::min(kBlock, logits.size() - begin);
  float weights[kBlock];
  passes.weights(logits.data() + begin, size, rule, weights);
  Walk walk{target, before};
  walk.passes({weights, size}, begin);
  return walk.last;
}

// Takes tokens that have the mass `top_p * total` together, and not many more, and weighs them.
void take_nucleus(const RowView& row, const WeightRule& rule, double top_p, double total,
                  Candidates& candidates) {
  // Tokens lighter than this cannot make up half of what top_p leaves out, even all together.
  const double lightest =
      std::log2(0.5 * (1.0 - top_p) * total / static_cast<double>(row.logits.size()));
  // Mostly a few heavy tokens are enough, so try those of 2^-6, then of 2^-10 and so on.
  for (double exponent = -6.0;; exponent -= 4.0) {
    const double logit = rule.max + std::max(exponent, lightest) / rule.scale;
    const double bound = std::max<double>(logit, std::numeric_limits<float>::lowest());
    candidates.take_from(row, static_cast<float>(bound));
    const double mass = candidates.weigh(rule);
    if (mass >= top_p * total || exponent <= lightest) return;
  }
}

}  // namespace

std::size_t choose_greedy(const RowScan& row) {
  const std::span<const float> maxima = row.view.block_maxima;
  const auto block = std::find(maxima.begin(), maxima.end(), row.max) - maxima.begin();
  const auto begin = row.view.logits.begin() + block * static_cast<std::ptrdiff_t>(kBlock);
  return static_cast<std::size_t>(std::find(begin, row.view.logits.end(), row.max) -
                                  row.view.logits.begin());
}

std::size_t choose_randomly(const RowScan& row, const RowParams& params, double uniform,
                            const RowPasses& passes, Workspace& workspace) {
  const std::size_t n = row.view.logits.size();
  const WeightRule rule{
      row.max, static_cast<float>(std::numbers::log2e / params.temperature),
      params.min_p > 0.0 ? std::max(static_cast<float>(std::log2(params.min_p)), kLowestExponent)
                         : kLowestExponent};
  Candidates& candidates = workspace.candidates;
  const bool has_top_k = params.top_k > 0 && static_cast<std::uint64_t>(params.top_k) < n;
  const bool has_top_p = params.top_p < 1.0;
  double total;
  if (has_top_k) {
    candidates.take_top_k(row.view, static_cast<std::size_t>(params.top_k));
    total = candidates.weigh(rule);
  } else {
    total = passes.block_sums(row.view.logits.data(), n, row.view.block_maxima.data(), rule,
                              workspace.block_sums.get());
    if (!has_top_p) return draw_from_row(row, rule, uniform * total, passes, workspace);
    take_nucleus(row.view, rule, params.top_p, total, candidates);
  }
  const double kept = has_top_p ? candidates.keep_mass(params.top_p * total) : total;
  Walk walk{uniform * kept};
  walk.passes(candidates.weights(), 0);
  return static_cast<std::size_t>(candidates.indices()[walk.last]);
}

}  // namespace headrace::sampling

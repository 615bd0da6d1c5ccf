#include "sampling/token_logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace headrace::sampling {

LogprobMeter::LogprobMeter(const RowScan& row, std::int64_t num_logprobs, const RowPasses& passes,
                           Workspace& workspace)
    : max_(row.max) {
  const std::size_t n = row.view.logits.size();
  const WeightRule rule{row.max, static_cast<float>(std::numbers::log2e), -126.0f};
  log_sum_ = std::log(passes.block_sums(row.view.logits.data(), n, row.view.block_maxima.data(),
                                        rule, workspace.block_sums.get()));
  const std::size_t count =
      num_logprobs < 0 ? n : std::min(n, static_cast<std::size_t>(num_logprobs));
  record_.ids.reserve(1 + count);
  record_.logprobs.reserve(1 + count);
  record_.ids.push_back(-1);
  record_.logprobs.push_back(0.0);
  if (count == 0) return;
  Candidates& candidates = workspace.candidates;
  candidates.take_top_k(row.view, count);
  for (const std::int32_t position : candidates.ranked()) {
    record_.ids.push_back(candidates.indices()[position]);
    record_.logprobs.push_back(logprob(candidates.logits()[position]));
  }
  // Tokens of minus infinity rank last and among themselves by id.
  for (std::size_t i = 0; record_.ids.size() < 1 + count; ++i) {
    if (row.view.logits[i] != -std::numeric_limits<float>::infinity()) continue;
    record_.ids.push_back(static_cast<TokenId>(i));
    record_.logprobs.push_back(-std::numeric_limits<double>::infinity());
  }
}

TokenLogprobs LogprobMeter::finish(std::span<const float> logits, TokenId chosen,
                                   std::span<const TokenId> asked_for,
                                   const RowPasses& passes) && {
  const float logit = logits[static_cast<std::size_t>(chosen)];
  record_.ids[0] = chosen;
  record_.logprobs[0] = logprob(logit);
  record_.rank = 1;
  if (logit != max_) {
    record_.rank += static_cast<std::int64_t>(
        passes.count_greater(logits.data(), logits.size(), logit));
  }
  for (const TokenId id : asked_for) {
    record_.ids.push_back(id);
    record_.logprobs.push_back(logprob(logits[static_cast<std::size_t>(id)]));
  }
  return std::move(record_);
}

}  // namespace headrace::sampling

// Log-probabilities of a row's tokens under the model's own distribution: a plain log-softmax of
// the logits as the model gave them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sampling/row_passes.h"
#include "sampling/row_state.h"
#include "sampling/workspace.h"

namespace headrace::sampling {

struct TokenLogprobs {
  // The chosen token, then the most likely ones, best first, then those asked for.
  std::vector<TokenId> ids;
  std::vector<double> logprobs;
  std::int64_t rank = 0;  // of the chosen token: 1 + how many have a greater logit
};

// Measures a row in two halves, since the choice between them may need the row changed.
class LogprobMeter {
 public:
  // Finds the normaliser and the `num_logprobs` most likely tokens (-1: all). The max is finite.
  LogprobMeter(const RowScan& row, std::int64_t num_logprobs, const RowPasses& passes,
               Workspace& workspace);

  // Completes the record for the chosen token and those asked for, on the same logits as before.
  TokenLogprobs finish(std::span<const float> logits, TokenId chosen,
                       std::span<const TokenId> asked_for, const RowPasses& passes) &&;

 private:
  double logprob(float logit) const { return (static_cast<double>(logit) - max_) - log_sum_; }

  float max_;
  double log_sum_;
  TokenLogprobs record_;
};

}  // namespace headrace::sampling

// Samples the rows of one step. Each row's result depends on that row and its request alone: not on
// the other rows, the number of threads or the instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "sampling/row_passes.h"
#include "sampling/row_state.h"
#include "sampling/token_logprobs.h"
#include "sampling/workspace.h"

namespace headrace::sampling {

struct RowResult {
  TokenId token_id = -1;
  const char* error = nullptr;  // set when the row has no token
  std::optional<TokenLogprobs> logprobs;
};

// One call at a time.
class RowSampler {
 public:
  // num_threads 0: all cores this process may use. `portable` forgoes newer instruction sets.
  RowSampler(std::size_t vocab_size, int num_threads, bool portable);
  RowSampler(const RowSampler&) = delete;
  RowSampler& operator=(const RowSampler&) = delete;

  std::size_t vocab_size() const { return vocab_size_; }

  // Chooses a token for each row of logits [rows.size(), vocab_size], which it changes. `masks` is
  // empty or has for each row nullptr or the tokens that are allowed, bit i of word w for 32 w + i.
  std::vector<RowResult> sample(float* logits, std::span<const RowState* const> rows,
                                std::span<const std::uint32_t* const> masks = {});

  // The log-probabilities of given tokens, one per row of logits [targets.size(), vocab_size],
  // with the most likely ones and those asked for.
  std::vector<RowResult> score(const float* logits, std::span<const TokenId> targets,
                               std::int64_t num_logprobs, std::span<const TokenId> asked_for);

 private:
  std::vector<RowResult> for_rows(
      std::size_t num_rows, const std::function<RowResult(std::size_t, Workspace&)>& work);
  RowResult sample_row(std::span<float> logits, const RowState& state, const std::uint32_t* mask,
                       Workspace& workspace) const;
  RowResult score_row(std::span<const float> logits, TokenId target, std::int64_t num_logprobs,
                      std::span<const TokenId> asked_for, Workspace& workspace) const;
  RowResult choose(const RowScan& row, const RowState& state, Workspace& workspace) const;

  std::size_t vocab_size_;
  const RowPasses& passes_;
  std::vector<Workspace> workspaces_;  // one for each thread
};

}  // namespace headrace::sampling

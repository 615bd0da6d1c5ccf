// What one request asks of sampling, and the tokens it has: edits its row of logits before a token
// is chosen. Chooses nothing itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace headrace::sampling {

using TokenId = std::int32_t;

// Checked by whoever builds it, but for what would break memory: see RowState.
struct RowParams {
  std::size_t vocab_size = 0;
  std::uint64_t seed = 0;
  double temperature = 1.0;  // 0 is greedy
  std::int64_t top_k = 0;    // 0 is off
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double frequency_penalty = 0.0;
  double presence_penalty = 0.0;
  std::int64_t min_tokens = 0;
  std::vector<TokenId> stop_ids;
  std::vector<std::pair<TokenId, float>> logit_bias;
  std::optional<std::vector<TokenId>> allowed_ids;
  std::vector<std::vector<TokenId>> bad_words;
  std::optional<std::int64_t> num_logprobs;  // -1 is the whole vocabulary
  std::vector<TokenId> logprob_ids;          // reported behind the most likely ones
};

// The old values of edited logits, in the order of the edits.
using Edits = std::vector<std::pair<TokenId, float>>;

class RowState {
 public:
  // Ids of `prompt_ids` and `stop_ids` outside the vocabulary have no logit and are left out.
  // Throws std::invalid_argument for other ids outside it, and for empty bad words.
  RowState(RowParams params, std::span<const TokenId> prompt_ids,
           std::span<const TokenId> output_ids);

  // Adds a generated token. Throws std::invalid_argument when it is outside the vocabulary.
  void append(TokenId token_id);

  // The next token will be this one, whatever the logits say and the parameters forbid. Throws
  // std::invalid_argument when it is outside the vocabulary.
  void force_next(TokenId token_id);

  const RowParams& params() const { return params_; }
  const std::vector<TokenId>& output_ids() const { return output_ids_; }
  std::optional<TokenId> forced() const { return forced_; }
  bool is_greedy() const { return params_.temperature == 0.0 || params_.top_k == 1; }

  // Applies bad words, min_tokens, logit_bias and penalties, in this order, to logits
  // [vocab_size]. (The order of masks does not matter: minus infinity stays so.)
  void edit(float* logits, Edits& edits) const;

 private:
  struct SeenToken {
    TokenId id;
    std::int32_t output_count;  // 0: only in the prompt
  };

  bool has_penalties() const;
  void see(TokenId token_id, std::int32_t output_count);
  bool completes(const std::vector<TokenId>& bad_word) const;
  float penalised(float logit, std::int32_t output_count) const;

  RowParams params_;
  std::vector<TokenId> output_ids_;
  std::optional<TokenId> forced_;  // until a token is appended
  std::vector<SeenToken> seen_;
  std::unordered_map<TokenId, std::size_t> seen_index_;
};

}  // namespace headrace::sampling

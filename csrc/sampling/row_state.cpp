#include "sampling/row_state.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace headrace::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool in_vocabulary(TokenId id, std::size_t vocab_size) {
  return id >= 0 && static_cast<std::size_t>(id) < vocab_size;
}

void require_in_vocabulary(const char* field, TokenId id, std::size_t vocab_size) {
  if (!in_vocabulary(id, vocab_size)) {
    throw std::invalid_argument(std::string(field) + " holds token id " + std::to_string(id) +
                                ", outside the vocabulary of " + std::to_string(vocab_size));
  }
}

void set(float* logits, TokenId id, float value, Edits& edits) {
  edits.emplace_back(id, logits[id]);
  logits[id] = value;
}

}  // namespace

RowState::RowState(RowParams params, std::span<const TokenId> prompt_ids,
                   std::span<const TokenId> output_ids)
    : params_(std::move(params)) {
  const std::size_t vocab_size = params_.vocab_size;
  std::erase_if(params_.stop_ids, [&](TokenId id) { return !in_vocabulary(id, vocab_size); });
  for (const auto& [id, bias] : params_.logit_bias) {
    require_in_vocabulary("logit_bias", id, vocab_size);
  }
  for (const auto& word : params_.bad_words) {
    if (word.empty()) throw std::invalid_argument("bad_words holds an empty sequence");
    for (const TokenId id : word) require_in_vocabulary("bad_words", id, vocab_size);
  }
  if (params_.allowed_ids) {
    auto& ids = *params_.allowed_ids;
    for (const TokenId id : ids) require_in_vocabulary("allowed_token_ids", id, vocab_size);
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  }
  for (const TokenId id : params_.logprob_ids) {
    require_in_vocabulary("logprob_token_ids", id, vocab_size);
  }
  if (params_.repetition_penalty != 1.0) {
    for (const TokenId id : prompt_ids) {
      if (in_vocabulary(id, vocab_size)) see(id, 0);
    }
  }
  for (const TokenId id : output_ids) append(id);
}

void RowState::append(TokenId token_id) {
  require_in_vocabulary("the generated text", token_id, params_.vocab_size);
  output_ids_.push_back(token_id);
  forced_.reset();
  if (has_penalties()) see(token_id, 1);
}

void RowState::force_next(TokenId token_id) {
  require_in_vocabulary("the forced token", token_id, params_.vocab_size);
  forced_ = token_id;
}

void RowState::edit(float* logits, Edits& edits) const {
  for (const auto& word : params_.bad_words) {
    if (completes(word)) set(logits, word.back(), -kInfinity, edits);
  }
  if (static_cast<std::int64_t>(output_ids_.size()) < params_.min_tokens) {
    for (const TokenId id : params_.stop_ids) set(logits, id, -kInfinity, edits);
  }
  for (const auto& [id, bias] : params_.logit_bias) set(logits, id, logits[id] + bias, edits);
  for (const auto& [id, output_count] : seen_) {
    set(logits, id, penalised(logits[id], output_count), edits);
  }
}

bool RowState::has_penalties() const {
  return params_.repetition_penalty != 1.0 || params_.frequency_penalty != 0.0 ||
         params_.presence_penalty != 0.0;
}

void RowState::see(TokenId token_id, std::int32_t output_count) {
  const auto [place, is_new] = seen_index_.try_emplace(token_id, seen_.size());
  if (is_new) {
    seen_.push_back({token_id, output_count});
  } else {
    seen_[place->second].output_count += output_count;
  }
}

// Whether the generated tokens end with all of the word but its last token.
bool RowState::completes(const std::vector<TokenId>& bad_word) const {
  const std::size_t prefix = bad_word.size() - 1;
  return prefix <= output_ids_.size() &&
         std::equal(bad_word.begin(), bad_word.end() - 1,
                    output_ids_.end() - static_cast<std::ptrdiff_t>(prefix));
}

// Repetition after Keskar et al. (CTRL, 2019): divides positive logits, multiplies others.
float RowState::penalised(float logit, std::int32_t output_count) const {
  if (logit == -kInfinity) return logit;
  double value = logit;
  const double repetition = params_.repetition_penalty;
  value = value > 0.0 ? value / repetition : value * repetition;
  if (output_count > 0) {
    value -= params_.frequency_penalty * output_count;
    value -= params_.presence_penalty;
  }
  // Extreme penalties must not make infinities of numbers. (A NaN passes, to be reported.)
  constexpr double limit = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(value, -limit, limit));
}

}  // namespace headrace::sampling

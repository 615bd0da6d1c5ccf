#include "sampling/row_sampler.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <exception>
#include <iterator>
#include <mutex>

#include "sampling/choice.h"
#include "sampling/philox.h"
#include "thread_pool.h"

namespace headrace::sampling {
namespace {

// Fewer logits than this are done sooner than other threads wake up.
constexpr std::size_t kMinLogitsToShare = std::size_t{1} << 18;
constexpr int kMaxThreads = 16;

constexpr const char* kNotNumbers = "the model gave logits that are not numbers (NaN or infinity)";
constexpr const char* kNothingAllowed =
    "no token may be generated: allowed_token_ids, bad_words, min_tokens and structured_outputs "
    "rule out all of them";
constexpr const char* kAllImpossible = "the model gave every token a probability of zero";

const char* fault_of(float max, const char* when_all_are_masked) {
  if (std::isnan(max) || max == INFINITY) return kNotNumbers;
  return max == -INFINITY ? when_all_are_masked : nullptr;
}

bool is_allowed(const std::uint32_t* mask, TokenId id) {
  return mask == nullptr || (mask[id / 32] >> (id % 32) & 1) != 0;
}

// The ids whose bits are set, in order.
void collect_allowed(const std::uint32_t* mask, std::size_t vocab_size, std::vector<TokenId>& ids) {
  for (std::size_t first = 0; first < vocab_size; first += 32) {
    std::uint32_t bits = mask[first / 32];
    if (vocab_size - first < 32) bits &= (std::uint32_t{1} << (vocab_size - first)) - 1;
    for (; bits != 0; bits &= bits - 1) {
      ids.push_back(static_cast<TokenId>(first) + std::countr_zero(bits));
    }
  }
}

RowResult failed(const char* error) {
  RowResult result;
  result.error = error;
  return result;
}

}  // namespace

RowSampler::RowSampler(std::size_t vocab_size, int num_threads, bool portable)
    : vocab_size_(vocab_size), passes_(portable ? portable_passes() : best_passes()) {
  const int count = std::clamp(num_threads > 0 ? num_threads : available_cores(), 1, kMaxThreads);
  workspaces_.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) workspaces_.emplace_back(vocab_size, passes_);
}

std::vector<RowResult> RowSampler::sample(float* logits, std::span<const RowState* const> rows,
                                          std::span<const std::uint32_t* const> masks) {
  return for_rows(rows.size(), [&](std::size_t row, Workspace& workspace) {
    const std::uint32_t* mask = masks.empty() ? nullptr : masks[row];
    return sample_row({logits + row * vocab_size_, vocab_size_}, *rows[row], mask, workspace);
  });
}

std::vector<RowResult> RowSampler::score(const float* logits, std::span<const TokenId> targets,
                                         std::int64_t num_logprobs,
                                         std::span<const TokenId> asked_for) {
  return for_rows(targets.size(), [&](std::size_t row, Workspace& workspace) {
    return score_row({logits + row * vocab_size_, vocab_size_}, targets[row], num_logprobs,
                     asked_for, workspace);
  });
}

std::vector<RowResult> RowSampler::for_rows(
    std::size_t num_rows, const std::function<RowResult(std::size_t, Workspace&)>& work) {
  std::vector<RowResult> results(num_rows);
  std::atomic<std::size_t> next{0};
  std::mutex failure_mutex;
  std::exception_ptr failure;  // out of memory is all there can be
  auto drain = [&](int thread) {
    try {
      for (std::size_t row; (row = next.fetch_add(1)) < num_rows;) {
        results[row] = work(row, workspaces_[static_cast<std::size_t>(thread)]);
      }
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      failure = std::current_exception();
    }
  };
  const std::size_t num_threads =
      num_rows * vocab_size_ < kMinLogitsToShare ? 1 : std::min(num_rows, workspaces_.size());
  parallel(static_cast<int>(num_threads), static_cast<int>(num_threads), drain);
  if (failure) std::rethrow_exception(failure);
  return results;
}

RowResult RowSampler::sample_row(std::span<float> logits, const RowState& state,
                                 const std::uint32_t* mask, Workspace& workspace) const {
  RowScan row{};
  std::optional<LogprobMeter> meter;
  if (state.params().num_logprobs) {
    row = scan(logits, passes_, workspace);
    if (const char* fault = fault_of(row.max, kAllImpossible)) return failed(fault);
    meter.emplace(row, *state.params().num_logprobs, passes_, workspace);
  }
  Edits& edits = workspace.edits;
  edits.clear();
  state.edit(logits.data(), edits);

  RowResult result;
  const auto forced = state.forced();
  if (forced && is_allowed(mask, *forced)) {
    result.token_id = *forced;
  } else if (const auto& listed = state.params().allowed_ids; listed || mask != nullptr) {
    // The allowed tokens are a shorter row of their own.
    std::vector<TokenId>& allowed = workspace.allowed_ids;
    allowed.clear();
    if (listed) {
      std::copy_if(listed->begin(), listed->end(), std::back_inserter(allowed),
                   [&](TokenId id) { return is_allowed(mask, id); });
    } else {
      collect_allowed(mask, vocab_size_, allowed);
    }
    workspace.allowed_logits.clear();
    for (const TokenId id : allowed) workspace.allowed_logits.push_back(logits[id]);
    row = scan(workspace.allowed_logits, passes_, workspace);
    result = choose(row, state, workspace);
    if (!result.error) result.token_id = allowed[static_cast<std::size_t>(result.token_id)];
  } else {
    if (!meter || !edits.empty()) row = scan(logits, passes_, workspace);
    result = choose(row, state, workspace);
  }
  if (meter && !result.error) {
    for (auto edit = edits.rbegin(); edit != edits.rend(); ++edit) {
      logits[edit->first] = edit->second;
    }
    result.logprobs = std::move(*meter).finish(logits, result.token_id,
                                               state.params().logprob_ids, passes_);
  }
  return result;
}

RowResult RowSampler::choose(const RowScan& row, const RowState& state,
                             Workspace& workspace) const {
  if (const char* fault = fault_of(row.max, kNothingAllowed)) return failed(fault);
  std::size_t index;
  if (state.is_greedy()) {
    index = choose_greedy(row);
  } else {
    const double draw = uniform(state.params().seed, state.output_ids().size());
    index = choose_randomly(row, state.params(), draw, passes_, workspace);
  }
  RowResult result;
  result.token_id = static_cast<TokenId>(index);
  return result;
}

RowResult RowSampler::score_row(std::span<const float> logits, TokenId target,
                                std::int64_t num_logprobs, std::span<const TokenId> asked_for,
                                Workspace& workspace) const {
  const RowScan row = scan(logits, passes_, workspace);
  if (const char* fault = fault_of(row.max, kAllImpossible)) return failed(fault);
  RowResult result;
  result.token_id = target;
  result.logprobs = LogprobMeter(row, num_logprobs, passes_, workspace)
                        .finish(logits, target, asked_for, passes_);
  return result;
}

}  // namespace headrace::sampling

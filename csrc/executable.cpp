#include "executable.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "fences.h"
#include "frame.h"

namespace headrace {
namespace {

[[noreturn]] void fail(const std::string& text) { throw std::invalid_argument(text); }

void check_width(const char* what, int width, int expected) {
  if (width != expected) {
    fail(std::string("compile: ") + what + " have " + std::to_string(width) + " columns, not " +
         std::to_string(expected));
  }
}

bool has_one_token_each(const Step& step) {
  for (int s = 0; s < step.num_seqs; ++s) {
    if (step.query_start_loc[s + 1] - step.query_start_loc[s] > 1) return false;
  }
  return true;
}

}  // namespace

Executable::Executable(std::shared_ptr<Home> home, std::shared_ptr<Program> forward,
                       const Slot& hidden, std::shared_ptr<Program> logits,
                       const Slot& logits_input, const Slot& result, int hidden_size,
                       int vocab_size, int max_num_tokens)
    : home_(std::move(home)),
      forward_program_(std::move(forward)),
      logits_program_(std::move(logits)),
      logits_input_(logits_input.id),
      hidden_size_(hidden_size),
      vocab_size_(vocab_size),
      max_num_tokens_(max_num_tokens),
      forward_frame_{home_->kernels(), home_->num_threads()},
      logits_frame_{home_->kernels(), home_->num_threads()} {
  if (max_num_tokens < 1) fail("compile: max_num_tokens is " + std::to_string(max_num_tokens));
  check_width("hidden states", hidden.width, hidden_size);
  check_width("logits", result.width, vocab_size);
  forward_program_->finish(hidden);
  logits_program_->finish(result);
  if (logits_program_->limits().needs_step) {
    fail("compile: logits reads the step's tokens, but its rows are not the step's");
  }
}

void Executable::check(const Step& step) const {
  const StepLimits& limits = forward_program_->limits();
  if (step.num_tokens > max_num_tokens_) {
    fail("forward: " + std::to_string(step.num_tokens) + " tokens, at most " +
         std::to_string(max_num_tokens_));
  }
  for (int t = 0; t < step.num_tokens; ++t) {
    const int id = step.input_ids[t];
    if (limits.table_rows != INT32_MAX && (id < 0 || id >= limits.table_rows)) {
      fail("embedding: token id " + std::to_string(id) + " is not in [0, " +
           std::to_string(limits.table_rows) + ")");
    }
  }
  if (step.num_given > 0 && step.given_width != limits.table_width) {
    fail("embedding: given rows have " + std::to_string(step.given_width) + " columns, not " +
         std::to_string(limits.table_width));
  }
  for (int i = 0; i < step.num_given; ++i) {
    if (step.given_rows[i] < 0 || step.given_rows[i] >= step.num_tokens) {
      fail("embedding: a row is given for token " + std::to_string(step.given_rows[i]) + " of " +
           std::to_string(step.num_tokens));
    }
  }
  if (limits.block_size == 0) return;
  const std::int64_t num_slots = static_cast<std::int64_t>(limits.num_blocks) * limits.block_size;
  for (int t = 0; t < step.num_tokens; ++t) {
    if (step.slot_mapping[t] < 0 || step.slot_mapping[t] >= num_slots) {
      fail("forward: slot " + std::to_string(step.slot_mapping[t]) + " of token " +
           std::to_string(t) + " is outside the cache");
    }
  }
  if (step.query_start_loc[0] != 0 || step.query_start_loc[step.num_seqs] != step.num_tokens) {
    fail("forward: query_start_loc does not cover the tokens");
  }
  for (int s = 0; s < step.num_seqs; ++s) {
    const int num_new = step.query_start_loc[s + 1] - step.query_start_loc[s];
    const int length = step.seq_lens[s];
    const int num_blocks = length / limits.block_size + (length % limits.block_size != 0);
    if (num_new < 0 || length < num_new || num_blocks > step.max_blocks) {
      fail("forward: sequence " + std::to_string(s) + " of length " + std::to_string(length) +
           " does not fit its tokens or its blocks");
    }
    const std::int32_t* blocks =
        step.block_table + static_cast<std::ptrdiff_t>(s) * step.max_blocks;
    for (int b = 0; b < num_blocks; ++b) {
      // A sequence that waits this step has no say in what is read.
      if (num_new > 0 && (blocks[b] < 0 || blocks[b] >= limits.num_blocks)) {
        fail("forward: block " + std::to_string(blocks[b]) + " of sequence " + std::to_string(s) +
             " is outside the cache");
      }
    }
  }
}

void Executable::forward(const Step& step) {
  const std::lock_guard lock(running_);
  num_hidden_rows_ = -1;
  check(step);
  forward_program_->place(forward_frame_, step.num_tokens, nullptr);
  forward_frame_.step = &step;
  forward_frame_.attention_plans.clear();
  forward_frame_.one_token_each = has_one_token_each(step);
  if (step.num_tokens > 0) forward_program_->run(forward_frame_);
  forward_frame_.step = nullptr;
  num_hidden_rows_ = step.num_tokens;
}

Logits Executable::logits(const std::int32_t* rows, int num_rows) {
  const std::lock_guard lock(running_);
  if (num_hidden_rows_ < 0) fail("logits: no forward has run");
  for (int r = 0; r < num_rows; ++r) {
    if (rows[r] < 0 || rows[r] >= num_hidden_rows_) {
      fail("logits: row " + std::to_string(rows[r]) + " is not in [0, " +
           std::to_string(num_hidden_rows_) + ")");
    }
  }
  const std::size_t bytes =
      static_cast<std::size_t>(num_rows) * static_cast<std::size_t>(vocab_size_) * sizeof(float);
  if (!result_ || result_->size() < bytes) result_ = std::make_shared<Region>(bytes);
  allow_only(result_->data(), bytes, result_->size());
  const Rows result{static_cast<float*>(result_->data()), vocab_size_};
  logits_program_->place(logits_frame_, num_rows, &result);
  const Rows hidden = forward_program_->output_rows(forward_frame_);
  const Rows chosen = logits_frame_.slots[static_cast<std::size_t>(logits_input_)];
  for (int r = 0; r < num_rows; ++r) {
    std::memcpy(chosen.data + r * chosen.stride, hidden.data + rows[r] * hidden.stride,
                static_cast<std::size_t>(hidden_size_) * sizeof(float));
  }
  if (num_rows > 0) logits_program_->run(logits_frame_);
  return {result_, num_rows, vocab_size_};
}

}  // namespace headrace

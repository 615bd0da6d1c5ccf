#include "step_batch.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>

namespace headrace {
namespace {

[[noreturn]] void fail(const std::string& text) { throw std::invalid_argument(text); }

std::size_t area(int rows, int columns) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
}

int at_least_one(const char* what, int value) {
  if (value < 1) fail(std::string("a batch's ") + what + " is " + std::to_string(value));
  return value;
}

}  // namespace

StepBatch::StepBatch(int max_num_seqs, int max_model_len, int block_size, int max_num_tokens)
    : max_num_seqs_(at_least_one("max_num_seqs", max_num_seqs)),
      max_model_len_(at_least_one("max_model_len", max_model_len)),
      block_size_(at_least_one("block_size", block_size)),
      max_blocks_((max_model_len - 1) / block_size + 1),
      max_num_tokens_(at_least_one("max_num_tokens", max_num_tokens)),
      rows_(static_cast<std::size_t>(max_num_seqs)),
      token_ids_(area(max_num_seqs, max_model_len)),
      block_ids_(area(max_num_seqs, max_blocks_)),
      input_ids(static_cast<std::size_t>(max_num_tokens)),
      positions(static_cast<std::size_t>(max_num_tokens)),
      slot_mapping(static_cast<std::size_t>(max_num_tokens)),
      query_start_loc(static_cast<std::size_t>(max_num_seqs) + 1),
      seq_lens(static_cast<std::size_t>(max_num_seqs)),
      block_table(area(max_num_seqs, max_blocks_)),
      logits_rows(static_cast<std::size_t>(max_num_seqs)) {}

const StepBatch::Row& StepBatch::checked(int row) const {
  if (row < 0 || row >= max_num_seqs_) {
    fail("row " + std::to_string(row) + " is not in [0, " + std::to_string(max_num_seqs_) + ")");
  }
  return rows_[static_cast<std::size_t>(row)];
}

void StepBatch::check_blocks(int num_held, Ids block_ids) const {
  if (block_ids.size() > static_cast<std::size_t>(max_blocks_ - num_held)) {
    fail("a request has " + std::to_string(block_ids.size()) + " blocks beside " +
         std::to_string(num_held) + ", at most " + std::to_string(max_blocks_) + " in all");
  }
}

void StepBatch::set(int row, Ids token_ids, Ids block_ids, int num_computed) {
  checked(row);
  check_blocks(0, block_ids);
  if (token_ids.size() > static_cast<std::size_t>(max_model_len_) || num_computed < 0) {
    fail("a request has " + std::to_string(token_ids.size()) + " tokens, " +
         std::to_string(num_computed) + " of them computed, at most " +
         std::to_string(max_model_len_));
  }
  std::copy(token_ids.begin(), token_ids.end(), &token_ids_[area(row, max_model_len_)]);
  std::copy(block_ids.begin(), block_ids.end(), &block_ids_[area(row, max_blocks_)]);
  rows_[static_cast<std::size_t>(row)] = {static_cast<std::int32_t>(token_ids.size()), num_computed,
                                          static_cast<std::int32_t>(block_ids.size()), 0};
}

void StepBatch::extend(int row, Ids block_ids, int num_computed, Ids draft) {
  const int num_held = checked(row).num_blocks;
  check_blocks(num_held, block_ids);
  if (num_computed < 0) fail("num_computed is " + std::to_string(num_computed));
  Row& known = rows_[static_cast<std::size_t>(row)];
  if (!draft.empty()) {
    if (std::int64_t{known.num_tokens} + std::ssize(draft) > max_model_len_) {
      fail("a draft of " + std::to_string(draft.size()) + " tokens behind " +
           std::to_string(known.num_tokens) + ", at most " + std::to_string(max_model_len_));
    }
    std::copy(draft.begin(), draft.end(),
              &token_ids_[area(row, max_model_len_)] + known.num_tokens);
  }
  known.num_drafted = static_cast<std::int32_t>(draft.size());
  std::copy(block_ids.begin(), block_ids.end(), &block_ids_[area(row, max_blocks_)] + num_held);
  known.num_blocks += static_cast<std::int32_t>(block_ids.size());
  known.num_computed = num_computed;
}

void StepBatch::append(int row, std::int32_t token_id) {
  const int count = checked(row).num_tokens;
  if (count < max_model_len_) {
    token_ids_[area(row, max_model_len_) + static_cast<std::size_t>(count)] = token_id;
  }
  ++rows_[static_cast<std::size_t>(row)].num_tokens;
}

std::vector<std::int32_t> StepBatch::gather(Ids rows, Ids counts) {
  if (rows.size() != counts.size() || rows.size() > static_cast<std::size_t>(max_num_seqs_)) {
    fail("a step of " + std::to_string(rows.size()) + " requests and " +
         std::to_string(counts.size()) + " counts");
  }
  std::int64_t total = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& known = checked(rows[i]);
    const std::int64_t end = std::int64_t{known.num_computed} + counts[i];
    if (counts[i] < 1 || end > std::min(known.num_tokens + known.num_drafted, max_model_len_) ||
        end > std::int64_t{known.num_blocks} * block_size_) {
      fail("tokens " + std::to_string(known.num_computed) + " to " + std::to_string(end) +
           " of a request with " + std::to_string(known.num_tokens) + " tokens and " +
           std::to_string(known.num_drafted) + " drafted in " + std::to_string(known.num_blocks) +
           " blocks");
    }
    total += counts[i];
  }
  if (total > max_num_tokens_) {
    fail("a step of " + std::to_string(total) + " tokens, at most " +
         std::to_string(max_num_tokens_));
  }
  std::vector<std::int32_t> samples;
  samples.reserve(rows.size());
  std::size_t t = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& known = rows_[static_cast<std::size_t>(rows[i])];
    const std::int32_t* tokens = &token_ids_[area(rows[i], max_model_len_)];
    const std::int32_t* blocks = &block_ids_[area(rows[i], max_blocks_)];
    const std::int32_t end = known.num_computed + counts[i];
    query_start_loc[i] = static_cast<std::int32_t>(t);
    seq_lens[i] = end;
    std::int32_t* table = &block_table[i * static_cast<std::size_t>(max_blocks_)];
    std::copy_n(blocks, (end - 1) / block_size_ + 1, table);
    for (std::int32_t position = known.num_computed; position < end; ++position, ++t) {
      input_ids[t] = tokens[position];
      positions[t] = position;
      slot_mapping[t] = blocks[position / block_size_] * block_size_ + position % block_size_;
    }
    if (end == known.num_tokens + known.num_drafted) {
      logits_rows[samples.size()] = static_cast<std::int32_t>(t) - 1;
      samples.push_back(static_cast<std::int32_t>(i));
    }
  }
  query_start_loc[rows.size()] = static_cast<std::int32_t>(t);
  return samples;
}

Ids StepBatch::tokens(int row, int first, int end) const {
  const int count = std::min(checked(row).num_tokens, max_model_len_);
  if (first < 0 || first > end || end > count) {
    fail("tokens " + std::to_string(first) + " to " + std::to_string(end) + " of " +
         std::to_string(count));
  }
  return {&token_ids_[area(row, max_model_len_)] + first, static_cast<std::size_t>(end - first)};
}

int StepBatch::num_tokens(int row) const { return checked(row).num_tokens; }

}  // namespace headrace

// The tokens and KV blocks of the requests a worker knows, by row, and the arrays of one step over
// some of them. Computes nothing with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <vector>

namespace headrace {

using Ids = std::span<const std::int32_t>;

// Zeroed 32-bit numbers. Pages that nobody writes to take no memory, so none of them are big ones.
class IntArray {
 public:
  explicit IntArray(std::size_t size)
      : data_(static_cast<std::int32_t*>(std::calloc(size, sizeof(std::int32_t)))), size_(size) {
    if (!data_) throw std::bad_alloc();
  }

  std::int32_t* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  std::int32_t& operator[](std::size_t i) const { return data_.get()[i]; }

 private:
  struct Free {
    void operator()(std::int32_t* p) const { std::free(p); }
  };

  std::unique_ptr<std::int32_t[], Free> data_;
  std::size_t size_;
};

// Every call throws std::invalid_argument, changing nothing, on numbers that would reach foreign
// memory.
class StepBatch {
 public:
  StepBatch(int max_num_seqs, int max_model_len, int block_size, int max_num_tokens);

  // A row becomes a new request's.
  void set(int row, Ids token_ids, Ids block_ids, int num_computed);

  // What changed for the request in a row: blocks added at the end, and how far it is computed. The
  // draft stands behind its tokens until the next call: the step computes with it, as if it were
  // known to come.
  void extend(int row, Ids block_ids, int num_computed, Ids draft);

  // Notes a token sampled for the request in a row. A request's last possible token is never
  // computed with: it is counted and needs no place.
  void append(int row, std::int32_t token_id);

  // Fills the arrays below for `counts[i]` tokens of the request in `rows[i]`. Returns which of
  // them come to their next token, as positions in `rows`: those whose tokens, draft included, are
  // computed to their end.
  std::vector<std::int32_t> gather(Ids rows, Ids counts);

  // Tokens [first, end) of the request in a row.
  Ids tokens(int row, int first, int end) const;
  int num_tokens(int row) const;

  int max_num_seqs() const { return max_num_seqs_; }
  int max_blocks() const { return max_blocks_; }
  int max_num_tokens() const { return max_num_tokens_; }

 private:
  struct Row {
    std::int32_t num_tokens = 0;
    std::int32_t num_computed = 0;
    std::int32_t num_blocks = 0;
    std::int32_t num_drafted = 0;
  };

  const Row& checked(int row) const;
  void check_blocks(int num_held, Ids block_ids) const;

  int max_num_seqs_;
  int max_model_len_;
  int block_size_;
  int max_blocks_;
  int max_num_tokens_;
  std::vector<Row> rows_;
  IntArray token_ids_;  // [max_num_seqs, max_model_len]
  IntArray block_ids_;  // [max_num_seqs, max_blocks]

 public:
  // The step's arrays, see StepInputs in headrace/ops/ops.py; they stay where they are.
  const IntArray input_ids, positions, slot_mapping;  // [max_num_tokens]
  const IntArray query_start_loc;                     // [max_num_seqs + 1]
  const IntArray seq_lens;                            // [max_num_seqs]
  const IntArray block_table;                         // [max_num_seqs, max_blocks]
  const IntArray logits_rows;                         // [max_num_seqs], one per request returned
};

}  // namespace headrace

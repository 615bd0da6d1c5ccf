// A recorded computation: slots (the arrays between operations), instructions, and a plan of where
// slots live. Recording checks shapes; running does not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "home.h"

namespace headrace {

// One step's numbers; see StepInputs in headrace/ops/ops.py.
struct Step {
  int num_tokens = 0;
  int num_seqs = 0;
  int max_blocks = 0;  // columns of block_table
  const std::int32_t* input_ids = nullptr;
  const std::int32_t* positions = nullptr;
  const std::int32_t* slot_mapping = nullptr;
  const std::int32_t* query_start_loc = nullptr;
  const std::int32_t* seq_lens = nullptr;
  const std::int32_t* block_table = nullptr;
  // Tokens that come as embeddings: given_rows[i] of the step is row i of `given`.
  int num_given = 0;
  int given_width = 0;
  const std::int32_t* given_rows = nullptr;
  const float* given = nullptr;
};

class Program;

// An array of a program: one row per token (or per row of logits), `width` columns.
struct Slot {
  const Program* program = nullptr;
  int id = -1;
  int width = 0;
};

struct Rows {
  float* data = nullptr;
  std::ptrdiff_t stride = 0;
};

struct AttentionPlan;

// What instructions see while the program runs.
struct Frame {
  const Kernels& kernels;
  int num_threads;
  int num_rows = 0;
  const Step* step = nullptr;  // null in the logits program
  bool one_token_each = false;  // whether no sequence has several tokens in the step
  std::vector<Rows> slots = {};
  std::vector<Region> workspace = {};  // grown by those who need it, shared by all in turn
  std::vector<std::shared_ptr<AttentionPlan>> attention_plans = {};  // of this step

  // Scratch number `index` of at least this many bytes, shared by the threads.
  void* work(std::size_t index, std::size_t bytes);
  // Split the rows evenly among threads; `row_cost` is about the operations of one row.
  template <typename Body>
  void for_rows(std::size_t row_cost, Body&& body) const;
};

class Instruction {
 public:
  virtual ~Instruction() = default;
  virtual void run(Frame& frame) const = 0;

  std::vector<int> inputs;
  int output = -1;
};

// What a step must keep to, gathered from the instructions, so that it is checked once.
struct StepLimits {
  bool needs_step = false;
  int table_rows = INT32_MAX;
  int table_width = 0;  // of the embeddings; 0: none are looked up
  int num_blocks = INT32_MAX;
  int block_size = 0;  // 0: no cache in use
};

class Program {
 public:
  explicit Program(std::shared_ptr<Home> home) : home_(std::move(home)) {}
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Recording. Each throws std::invalid_argument, naming the operation, on shapes that do not fit.
  Slot input(int width);
  Slot embedding(std::shared_ptr<Table> table, float scale);
  Slot rms_norm(const Slot& x, std::vector<float> weight, float eps);
  Slot linear(const Slot& x, std::shared_ptr<Linear> weight, std::vector<float> bias);
  Slot gated_linear(const Slot& x, std::shared_ptr<Linear> weight, const std::string& activation);
  Slot add(const Slot& x, const Slot& y);
  Slot rope(std::vector<float> inv_freq, float scale);
  Slot rope_and_cache(const Slot& qkv, const Slot& rope, std::shared_ptr<KvCache> cache,
                      int num_heads, int num_kv_heads, int head_dim, std::vector<float> q_norm,
                      std::vector<float> k_norm, float eps);
  Slot attention(const Slot& q, std::shared_ptr<KvCache> cache, int num_heads, int num_kv_heads,
                 int head_dim, float scale, int window);

  // Ends recording: joins what is faster done together, and plans where slots live.
  void finish(const Slot& output);

  const StepLimits& limits() const { return limits_; }
  Rows output_rows(const Frame& frame) const {
    return frame.slots[static_cast<std::size_t>(output_)];
  }

  // Give every slot its place for this many rows. The output goes to `external`, if given.
  void place(Frame& frame, int num_rows, const Rows* external);
  void run(Frame& frame) const;

 private:
  Slot append(std::unique_ptr<Instruction> instruction, std::vector<Slot> inputs, int width);
  void use_cache(const KvCache& cache);
  std::vector<int> count_uses() const;
  std::map<int, std::size_t> makers() const;
  void merge_sums();
  void join_norms();
  void join_rotations();
  void plan();

  struct SlotPlace {
    int width;
    std::ptrdiff_t stride = 0;
    std::ptrdiff_t offset = 0;  // in floats per row of capacity
  };

  std::shared_ptr<Home> home_;
  std::vector<SlotPlace> slots_;
  std::vector<std::unique_ptr<Instruction>> code_;
  StepLimits limits_;
  int output_ = -1;
  bool finished_ = false;
  std::ptrdiff_t floats_per_row_ = 0;
  Region arena_;
  int capacity_ = 0;
};

}  // namespace headrace

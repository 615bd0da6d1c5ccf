// A model ready to run: the program of hidden states, the program of logits, and their memory.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "program.h"

namespace headrace {

// Logits [rows, width], kept alive by whoever holds them.
struct Logits {
  std::shared_ptr<Region> memory;
  int rows = 0;
  int width = 0;
};

class Executable {
 public:
  // Throws std::invalid_argument when a result does not have the width it should.
  Executable(std::shared_ptr<Home> home, std::shared_ptr<Program> forward, const Slot& hidden,
             std::shared_ptr<Program> logits, const Slot& logits_input, const Slot& result,
             int hidden_size, int vocab_size, int max_num_tokens);

  // Both throw std::invalid_argument on numbers that do not fit the model or its caches; the
  // caches are untouched then.
  void forward(const Step& step);
  Logits logits(const std::int32_t* rows, int num_rows);

 private:
  void check(const Step& step) const;

  std::shared_ptr<Home> home_;
  std::shared_ptr<Program> forward_program_;
  std::shared_ptr<Program> logits_program_;
  int logits_input_;
  int hidden_size_;
  int vocab_size_;
  int max_num_tokens_;
  int num_hidden_rows_ = -1;  // -1: forward has not run
  Frame forward_frame_;
  Frame logits_frame_;
  std::shared_ptr<Region> result_;
  std::mutex running_;
};

}  // namespace headrace

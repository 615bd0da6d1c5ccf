// The passes over a whole row of logits: maxima, sums of weights, counts. No sampling policy.
//
// A row is cut into blocks of kBlock; what a pass learns about each block lets later work skip
// blocks. Results do not depend on the instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace::sampling {

inline constexpr std::size_t kBlock = 256;

inline std::size_t num_blocks(std::size_t n) { return (n + kBlock - 1) / kBlock; }

// How logits become weights, the largest of which is 1: 2^z with z = (logit - max) * scale, and 0
// where z < lowest. Differences come first, so that no finite logit overflows.
struct WeightRule {
  float max;
  float scale;   // log2(e) / temperature
  float lowest;  // at least -126, the exponent of the smallest normal float
};

// One set of passes, for one instruction set.
struct RowPasses {
  // Largest logit of each block, and of all as the result; a NaN anywhere makes the result NaN.
  float (*block_max)(const float* x, std::size_t n, float* maxima);
  // Sum of the weights in each block, and of all as the result.
  double (*block_sums)(const float* x, std::size_t n, const float* maxima, const WeightRule& rule,
                       float* sums);
  // The weight of each logit.
  void (*weights)(const float* x, std::size_t n, const WeightRule& rule, float* out);
  // How many logits are strictly greater than `value`.
  std::size_t (*count_greater)(const float* x, std::size_t n, float value);
  // Writes index and value of each logit in [begin, end) that is >= bound, in order; returns their
  // number. May write up to the length of the range.
  std::size_t (*collect)(const float* x, std::size_t begin, std::size_t end, float bound,
                         std::int32_t* indices, float* values);
};

const RowPasses& portable_passes();

// The fastest this machine can run.
const RowPasses& best_passes();

}  // namespace headrace::sampling

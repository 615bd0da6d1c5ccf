// Products of bfloat16 weights in integers: what they read, and what the kernels of an instruction
// set offer. Holds no inline code; see kernels.h.
//
// The instruction of VNNI that multiplies pairs of 16-bit integers does twice the work of a float
// one. So weights become integers of 14 bits at load, with an exponent for each 32 of them: those
// down to a thirty-second of the largest there stay exact, and smaller ones are off by at most an
// eight-thousandth of it. Activations become integers of 14 bits with a scale for each 32. Sums
// within a block are exact (32 * 8191 * 8191 fits 32 bits); blocks are added in float32, in the
// order of k. Of the reference models this moves log-probabilities by 0.001 on average; activations
// in bfloat16, as tiles take them, by 0.008.
//
// Beside a value ten thousand times as large in its block a small one counts as nothing, and so do
// weights of blocks that are all below 2^-114.
#pragma once

#include "kernels.h"

namespace headrace {

constexpr int kInt16Largest = 8191;

// 32 neighbours of a row of activations: integers times a scale.
struct Int16Block {
  std::int16_t codes[kBlockDepth];
  float scale;
};

// panel = [blocks][16] exponents as bytes, filled up to whole lines, then [blocks][16][16][2]
// weights: sixteen pairs of neighbours in k of sixteen outputs. A weight is its integer times
// 2^(exponent - 127).
constexpr std::ptrdiff_t int16_weights_at(int depth) {
  constexpr std::ptrdiff_t kLine = 64;
  return (depth / kBlockDepth * kPanelWidth + kLine - 1) / kLine * kLine;
}
constexpr int kInt16BlockBytes = kBlockDepth * kPanelWidth * 2;

struct Int16Args {
  const Int16Block* x;
  std::ptrdiff_t x_stride;
  LinearArgs linear;  // all but its own x
};

struct Int16Kernels {
  void (*linear)(const Int16Args&, int row_begin, int row_end, int panel_begin, int panel_end,
                 void* scratch);
  std::size_t (*scratch)(int num_rows);
  // Rows of whole blocks. One with a NaN or an infinity has a scale that is one, and so makes its
  // results NaN.
  void (*quantize)(const float* x, std::ptrdiff_t x_stride, int width, Int16Block* out,
                   std::ptrdiff_t out_stride, int num_rows);
  // Write one output, `row` of `depth` weights, to lane `lane` of a panel.
  void (*pack)(const float* row, int depth, int lane, std::uint8_t* panel);
};

}  // namespace headrace

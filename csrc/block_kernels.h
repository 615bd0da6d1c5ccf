// Products of weights stored in blocks with activations in integers: what they read, and what the
// kernels of an instruction set offer. Holds no inline code; see kernels.h.
//
// Such weights are integers already, with a scale for each block. Activations become integers of
// 16 bits with a scale for each 32 of them, or of 8 bits, 250 times coarser, which show in the
// answers. Sums within a block are exact; blocks are added in float32, in the order of k.
#pragma once

#include "kernels.h"

namespace headrace {

// 32 neighbours of a row: scale * (256 * high + low) of two bytes each, or scale * high of one.
struct InputBlock {
  std::int8_t high[kBlockDepth];
  std::int8_t low[kBlockDepth];
  float scale;
  float sum;              // of all, scaled
  std::int32_t codes[2];  // sums of the first and the second half, not scaled
};

struct BlockArgs {
  const InputBlock* x;
  std::ptrdiff_t x_stride;
  LinearArgs linear;  // all but its own x
};

// For activations of one size.
struct BlockKernels {
  bool (*multiplies)(Format);  // weights stored so
  void (*linear)(const BlockArgs&, int row_begin, int row_end, int panel_begin, int panel_end,
                 void* scratch);
  std::size_t (*scratch)(int num_rows);
  // A block with a NaN or an infinity has a scale that is one.
  void (*quantize)(const float* x, std::ptrdiff_t x_stride, int width, InputBlock* out,
                   std::ptrdiff_t out_stride, int num_rows);
};

}  // namespace headrace

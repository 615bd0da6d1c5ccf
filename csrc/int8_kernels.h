// Products of int8 weights: what they read, and what the kernels of an instruction set offer. Holds
// no inline code; see kernels.h.
//
// Weights are made at load: a row w of them is round(w / scale) with scale = max |w| / 127, and so
// is a row of activations, as it comes. Their products are summed in int32, which is exact, so
// every instruction set gives the same bits.
#pragma once

#include "kernels.h"

namespace headrace {

// Depth steps are filled up with zero weights to whole blocks: a row of an AMX tile.
constexpr int kInt8Block = 64;
// Longer sums of products of 127 and 127 would not fit 32 bits.
constexpr int kInt8MaxDepth = 0x7fffffff / (127 * 127);

// panel = [16] float32 scales, [16] int32 corrections, [depth / 4][16][4] weights. Four neighbours
// in k side by side is what dot-product instructions and AMX tiles read. A correction is
// -128 * (sum of the output's weights): what to add where the kernels took x + 128 for x.
constexpr int kInt8CorrectionsAt = kPanelWidth * 4;
constexpr int kInt8WeightsAt = 2 * kPanelWidth * 4;

struct Int8Args {
  const std::uint8_t* x;  // quantised rows, padded to whole blocks
  std::ptrdiff_t x_stride;
  const float* x_scales;
  LinearArgs linear;  // all but its own x
};

struct Int8Kernels {
  std::uint8_t x_flip;  // 0x80 where activations are unsigned, 128 added; else 0
  // Rows of int8 (each byte xor `flip`, padding included) and their scales. A row with a NaN or an
  // infinity has a scale that is one, and so makes its results NaN.
  void (*quantize)(const float* x, std::ptrdiff_t x_stride, int width, std::uint8_t flip,
                   std::uint8_t* out, std::ptrdiff_t out_stride, float* scales, int num_rows);
  void (*linear)(const Int8Args&, int row_begin, int row_end, int panel_begin, int panel_end);
};

}  // namespace headrace

// Products in integers: what they read, and what the kernels of an instruction set offer. Holds no
// inline code; see kernels.h.
//
// Int8 weights, made at load: a row of weights w is round(w / scale) with scale = max |w| / 127,
// and so is a row of activations, as it comes. Their products are summed in int32, which is exact,
// so every instruction set gives the same bits.
//
// Weights stored in blocks are integers already, with a scale for each block. Activations become
// integers of 16 bits with a scale for each 32 of them, or of 8 bits, 250 times coarser, which show
// in the answers. Sums within a block are exact; blocks are added in float32, in the order of k.
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
  int bytes;  // of an activation
  LinearArgs linear;  // all but its own x
};

struct Int8Kernels {
  const char* name;
  std::uint8_t x_flip;  // 0x80 where activations are unsigned, 128 added; else 0
  // Rows of int8 (each byte xor `flip`, padding included) and their scales. A row with a NaN or an
  // infinity has a scale that is one, and so makes its results NaN.
  void (*quantize_rows)(const float* x, std::ptrdiff_t x_stride, int width, std::uint8_t flip,
                        std::uint8_t* out, std::ptrdiff_t out_stride, float* scales, int num_rows);
  void (*linear)(const Int8Args&, int row_begin, int row_end, int panel_begin, int panel_end);

  // Whether weights stored so are multiplied as integers; null with the next three where none are.
  bool (*multiplies_blocks)(Format);
  void (*block_linear)(const BlockArgs&, int row_begin, int row_end, int panel_begin,
                       int panel_end, void* scratch);
  std::size_t (*block_scratch)(int num_rows);
  // A block with a NaN or an infinity has a scale that is one.
  void (*quantize_blocks)(const float* x, std::ptrdiff_t x_stride, int width, int bytes,
                          InputBlock* out, std::ptrdiff_t out_stride, int num_rows);
};

extern const Int8Kernels kInt8Portable;
extern const Int8Kernels kInt8Avx2;
extern const Int8Kernels kInt8AvxVnni;
extern const Int8Kernels kInt8Avx512Vnni;
extern const Int8Kernels kInt8Amx;
extern const Int8Kernels kInt8Avx512VnniEmulated;
extern const Int8Kernels kInt8AmxEmulated;

// The best for a processor that runs these kernels.
const Int8Kernels& int8_kernels_beside(const Kernels& kernels);

// Those for weights in blocks; null where floats are faster.
const Int8Kernels* block_kernels_beside(const Kernels& kernels);

}  // namespace headrace

// Products of 16-bit integers in pairs; see int16_kernels.h. One register tile for any number of
// rows, reading panels where they lie: of many rows, a stretch of some panels stays in the first
// cache while all rows pass by.
#pragma once

#include "int16_kernels.h"
#include "simd/dot.h"
#include "simd/linear.h"
#include "simd/quantize.h"

namespace headrace {
namespace {

constexpr int kPairs = kBlockDepth / 2;
constexpr int kInt16Rows = 6;      // of the largest tile
constexpr int kInt16Stretch = 12;  // blocks gone through at a time by many rows
constexpr int kInt16Beside = 4;    // panels finished together, at most

// Panels of a tile: sums of a block, running sums, weights and an activation fit the registers.
constexpr int int16_beside(int rows) { return rows <= 3 ? 4 : 2; }

struct Int16Operands {
  const Int16Block* x;
  std::ptrdiff_t x_stride;
  int first_block;
  int num_blocks;
  std::ptrdiff_t weights_at;
  float* c;
  std::ptrdiff_t c_stride;
  bool accumulate;  // go on from what is in c
};

// c[m][p * 16 ..] (+)= x[m] @ some blocks of panel p, for M rows from `row` on and P panels.
template <int M, int P>
void int16_tile(const Int16Operands& t, const PanelRef* panels, int row, float* c) {
  vf acc[M][P][kVecs];
  load_sums(c, t.c_stride, t.accumulate, acc);
  const std::uint8_t* exponents[P];
  const std::uint8_t* weights[P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    exponents[p] = panels[p].data + t.first_block * kPanelWidth;
    weights[p] = panels[p].data + t.weights_at +
                 static_cast<std::ptrdiff_t>(t.first_block) * kInt16BlockBytes;
  }
  const Int16Block* x = t.x + row * t.x_stride + t.first_block;
  const std::ptrdiff_t x_stride = t.x_stride;
  for (int block = 0; block < t.num_blocks; ++block, ++x) {
    vi sums[M][P][kVecs] = {};
#pragma GCC unroll 16
    for (int i = 0; i < kPairs; ++i) {
      vi w[P][kVecs];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) {
          w[p][v] = load_as<vi>(weights[p] + 4 * (i * kPanelWidth + v * kLanes));
        }
      }
#pragma GCC unroll 6
      for (int m = 0; m < M; ++m) {
        const vi pair = set1i(load_as<std::int32_t>(x[m * x_stride].codes + 2 * i));
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
#pragma GCC unroll 2
          for (int v = 0; v < kVecs; ++v) sums[m][p][v] = dot2(sums[m][p][v], pair, w[p][v]);
        }
      }
    }
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      vf scale[kVecs];
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) {
        const vu exponent = reinterpret_cast<vu>(load_u8(exponents[p] + v * kLanes));
        scale[v] = as_float(exponent << 23);
      }
#pragma GCC unroll 6
      for (int m = 0; m < M; ++m) {
        if (p == 0) prefetch_to_read(x + (m + M) * x_stride);  // for the next tile
        const vf x_scale = set1(x[m * x_stride].scale);
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) {
          // In this order extreme scales only overflow where results do.
          acc[m][p][v] = fma(x_scale * to_float(sums[m][p][v]), scale[v], acc[m][p][v]);
        }
      }
      exponents[p] += kPanelWidth;
      // Few rows wait for memory, and the machine's own foresight ends with each page.
      if constexpr (M == 1) {
        for (int line = 0; line < kInt16BlockBytes; line += 64) {
          __builtin_prefetch(weights[p] + 2 * kInt16BlockBytes + line);
        }
      }
      weights[p] += kInt16BlockBytes;
    }
  }
  store_sums(acc, c, t.c_stride);
}

template <int M>
void int16_rows(const Int16Operands& t, const PanelRef* panels, int num_panels, int rows, int row) {
  if (rows == M) {
    constexpr int kBeside = int16_beside(M);
    float* c = t.c + row * t.c_stride;
    int p = 0;
    for (; p + kBeside <= num_panels; p += kBeside) {
      int16_tile<M, kBeside>(t, panels + p, row, c + p * kPanelWidth);
    }
    if constexpr (kBeside > 1) {
      for (; p < num_panels; ++p) int16_tile<M, 1>(t, panels + p, row, c + p * kPanelWidth);
    }
  } else if constexpr (M > 1) {
    int16_rows<M - 1>(t, panels, num_panels, rows, row);
  }
}

inline void int16_linear(const Int16Args& a, int row_begin, int row_end, int panel_begin,
                         int panel_end, void* scratch) {
  const int num_rows = row_end - row_begin;
  const int num_tiles = (num_rows + kInt16Rows - 1) / kInt16Rows;
  // Of one tile of rows nothing is used again: it goes through panels in one go.
  const int num_blocks = a.linear.depth / kBlockDepth;
  // Even stretches: a last one of two blocks would be all loads and stores of sums.
  const int stretches = num_tiles == 1 ? 1 : (num_blocks + kInt16Stretch - 1) / kInt16Stretch;
  // Two panels of many rows, so that a stretch of them stays in the first cache.
  const int beside = num_tiles == 1 ? kInt16Beside : int16_beside(kInt16Rows);
  Int16Operands t{};
  t.x = a.x + row_begin * a.x_stride;
  t.x_stride = a.x_stride;
  t.weights_at = int16_weights_at(a.linear.depth);
  t.c = static_cast<float*>(scratch);
  t.c_stride = kInt16Beside * kPanelWidth;
  for (int begin = panel_begin; begin < panel_end; begin += beside) {
    const int count = std::min(beside, panel_end - begin);
    const PanelRef* panels = a.linear.panels + begin;
    const ResultLines results{a.linear, row_begin, panels, count};
    for (int i = 0; i < stretches; ++i) {
      t.first_block = part_begin(num_blocks, i, stretches);
      t.num_blocks = part_begin(num_blocks, i + 1, stretches) - t.first_block;
      t.accumulate = i > 0;
      for (int tile = 0; tile < num_tiles; ++tile) {
        const int row = part_begin(num_rows, tile, num_tiles);
        const int rows = part_begin(num_rows, tile + 1, num_tiles) - row;
        if (i == 0) results.ask_for(row, row + rows);
        int16_rows<kInt16Rows>(t, panels, count, rows, row);
        // At once: the next tile computes while results go to memory.
        if (i == stretches - 1) {
          finish(a.linear, row_begin + row, rows, panels, count, t.c + row * t.c_stride,
                 t.c_stride);
        }
      }
    }
  }
}

inline std::size_t int16_scratch(int num_rows) {
  return sizeof(float) * static_cast<std::size_t>(num_rows * kInt16Beside * kPanelWidth);
}

// Integers nearest to 32 values times `inverse`, ties to even: below 2^15.
inline void round_block(const vf (&values)[kBlockVecs], float inverse, std::int16_t* codes) {
#pragma GCC unroll 4
  for (int i = 0; i < kBlockVecs; ++i) {
    const vi code = rounded_integer(fma(values[i], set1(inverse), set1(kRoundToInteger)));
    typedef std::int16_t Codes __attribute__((vector_size(2 * kLanes)));
    const Codes narrow = __builtin_convertvector(code, Codes);
    std::memcpy(codes + i * kLanes, &narrow, sizeof narrow);
  }
}

inline void quantize_int16(const float* x, std::ptrdiff_t x_stride, int width, Int16Block* out,
                           std::ptrdiff_t out_stride, int num_rows) {
  for (int r = 0; r < num_rows; ++r, x += x_stride, out += out_stride) {
    for (int b = 0; b < width / kBlockDepth; ++b) {
      vf values[kBlockVecs];
      load_block(x + b * kBlockDepth, values);
      const float largest = largest_magnitude(values);
      const float inverse = inverse_scale(largest, kInt16Largest);
      out[b].scale = largest / kInt16Largest;
      if (inverse != 0.0f) {
        round_block(values, inverse, out[b].codes);
      } else {
        std::memset(out[b].codes, 0, sizeof out[b].codes);
      }
    }
  }
}

inline void pack_int16(const float* row, int depth, int lane, std::uint8_t* panel) {
  constexpr int kShift = 12;  // the largest integer is below 2 * 2^12
  std::uint8_t* weights = panel + int16_weights_at(depth) + 4 * lane;
  for (int b = 0; b < depth / kBlockDepth; ++b, weights += kInt16BlockBytes) {
    vf values[kBlockVecs];
    load_block(row + b * kBlockDepth, values);
    const float largest = largest_magnitude(values);
    const int exponent = load_as<std::int32_t>(&largest) >> 23;
    // An infinity or a NaN makes all of the block's products NaN: zero times an infinite scale.
    // What is too small for an exponent is zero.
    std::uint8_t& stored = panel[b * kPanelWidth + lane];
    if (exponent == 255) stored = 255;
    if (exponent == 255 || exponent <= kShift) continue;
    stored = static_cast<std::uint8_t>(exponent - kShift);
    std::int16_t codes[kBlockDepth];
    const std::uint32_t bits = static_cast<std::uint32_t>(254 + kShift - exponent) << 23;
    round_block(values, load_as<float>(&bits), codes);
    for (int i = 0; i < kPairs; ++i) std::memcpy(weights + 4 * i * kPanelWidth, codes + 2 * i, 4);
  }
}

constexpr Int16Kernels kInt16Kernels = {int16_linear, int16_scratch, quantize_int16, pack_int16};

}  // namespace
}  // namespace headrace

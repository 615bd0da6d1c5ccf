// The register tile every matrix product ends in: c[rows][panels * 16] (+)= x @ b, where every
// output adds its terms in the order of k, one fma each, whatever the tile's shape.
#pragma once

#include "simd/vec.h"

namespace headrace {
namespace {

// Accumulators that fit beside the operands, and the rows of a full tile of one panel.
constexpr int kAccumulators = kLanes == 16 ? 24 : 12;
constexpr int kRowBlock = kLanes == 16 ? 12 : kAccumulators / kVecs;

// Panels side by side in a tile of this many rows: enough independent sums to hide fma latency.
constexpr int panels_beside(int rows) {
  const int fit = kAccumulators / (rows * kVecs);
  return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

struct TileOperands {
  const float* x;
  std::ptrdiff_t x_stride;
  const float* b;  // panel p begins at b + p * panel_stride; its row k at + k * b_stride
  std::ptrdiff_t panel_stride;
  std::ptrdiff_t b_stride;
  int depth;
  float* c;
  std::ptrdiff_t c_stride;
  bool accumulate;  // go on from what is in c
};

template <int M, int P>
void run_tile(const TileOperands& t, int row, int panel) {
  vf acc[M][P][kVecs];
  float* c = t.c + row * t.c_stride + panel * kPanelWidth;
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        acc[m][p][v] =
            t.accumulate ? load(c + m * t.c_stride + p * kPanelWidth + v * kLanes) : vf{};
      }
    }
  }
  const float* x = t.x + row * t.x_stride;
  const float* b = t.b + panel * t.panel_stride;
  const std::ptrdiff_t x_stride = t.x_stride, b_stride = t.b_stride, beside = t.panel_stride;
  for (int k = 0; k < t.depth; ++k) {
    vf w[P][kVecs];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) w[p][v] = load(b + p * beside + v * kLanes);
    }
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
      const vf xm = set1(x[m * x_stride]);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) acc[m][p][v] = fma(xm, w[p][v], acc[m][p][v]);
      }
    }
    x += 1;
    b += b_stride;
  }
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        store(c + m * t.c_stride + p * kPanelWidth + v * kLanes, acc[m][p][v]);
      }
    }
  }
}

template <int M>
void run_row_block(const TileOperands& t, int rows, int row, int num_panels) {
  if (rows == M) {
    constexpr int kBeside = panels_beside(M);
    int panel = 0;
    for (; panel + kBeside <= num_panels; panel += kBeside) run_tile<M, kBeside>(t, row, panel);
    if constexpr (kBeside > 1) {
      for (; panel < num_panels; ++panel) run_tile<M, 1>(t, row, panel);
    }
  } else if constexpr (M > 1) {
    run_row_block<M - 1>(t, rows, row, num_panels);
  }
}

inline void run_tiles(const TileOperands& t, int num_rows, int num_panels) {
  const int blocks = (num_rows + kRowBlock - 1) / kRowBlock;
  for (int i = 0; i < blocks; ++i) {
    // Even blocks: a last block of one row would be all latency.
    const int row = num_rows * i / blocks;
    run_row_block<kRowBlock>(t, num_rows * (i + 1) / blocks - row, row, num_panels);
  }
}

}  // namespace
}  // namespace headrace

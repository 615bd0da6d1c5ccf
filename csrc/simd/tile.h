// The register tile every matrix product ends in: c[rows][panels * 16] (+)= x @ b, where every
// output adds its terms in the order of k, one fma each, whatever the tile's shape.
#pragma once

#include "simd/vec.h"

namespace headrace {
namespace {

// Accumulators that fit beside the operands, and the rows of a full tile of one panel.
constexpr int kAccumulators = kManyRegisters ? 24 : 12;
constexpr int kRowBlock = kLanes == 16 ? 12 : kAccumulators / kVecs;

// Panels side by side in a tile of this many rows: enough independent sums to hide fma latency.
constexpr int panels_beside(int rows) {
  const int fit = kAccumulators / (rows * kVecs);
  return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

// The right side, b, in panels of sixteen columns: panel p begins at b + p * panel_stride, its row
// k at + k * row_stride. `Element` says what is stored there and how lanes of it are read.
template <typename Element>
struct EvenPanels {
  const typename Element::Stored* b;
  std::ptrdiff_t panel_stride;
  std::ptrdiff_t row_stride;

  void skip(int panels) { b += panels * panel_stride; }
  void next_row() { b += row_stride; }
  vf get(int p, int v) const { return Element::load(b + p * panel_stride + v * kLanes); }
};

struct Float32 {
  using Stored = float;
  static vf load(const float* p) { return load_as<vf>(p); }
};

struct TileOperands {
  const float* x;
  std::ptrdiff_t x_stride;
  int depth;
  float* c;
  std::ptrdiff_t c_stride;
  bool accumulate;  // go on from what is in c
};

// Sums of a tile, from c[m * stride + p * 16 ..] or zero, and back. Always inlined, since in a call
// they would pass through memory.
template <int M, int P>
[[gnu::always_inline]] inline void load_sums(const float* c, std::ptrdiff_t stride, bool accumulate,
                                             vf (&sums)[M][P][kVecs]) {
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        sums[m][p][v] = accumulate ? load(c + m * stride + p * kPanelWidth + v * kLanes) : vf{};
      }
    }
  }
}

template <int M, int P>
[[gnu::always_inline]] inline void store_sums(const vf (&sums)[M][P][kVecs], float* c,
                                              std::ptrdiff_t stride) {
  // Addresses once more: those of `load_sums`, kept, would push others out to memory.
  asm("" : "+r"(stride));
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        store(c + m * stride + p * kPanelWidth + v * kLanes, sums[m][p][v]);
      }
    }
  }
}

template <int M, int P, typename Panels>
void run_tile(const TileOperands& t, Panels b, int row, int panel) {
  vf acc[M][P][kVecs];
  float* c = t.c + row * t.c_stride + panel * kPanelWidth;
  load_sums(c, t.c_stride, t.accumulate, acc);
  const float* x = t.x + row * t.x_stride;
  const std::ptrdiff_t x_stride = t.x_stride;
  b.skip(panel);
  for (int k = 0; k < t.depth; ++k) {
    vf w[P][kVecs];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) w[p][v] = b.get(p, v);
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
    b.next_row();
  }
  store_sums(acc, c, t.c_stride);
}

template <int M, typename Panels>
void run_row_block(const TileOperands& t, const Panels& b, int rows, int row, int num_panels) {
  if (rows == M) {
    constexpr int kBeside = panels_beside(M);
    int panel = 0;
    for (; panel + kBeside <= num_panels; panel += kBeside) run_tile<M, kBeside>(t, b, row, panel);
    if constexpr (kBeside > 1) {
      for (; panel < num_panels; ++panel) run_tile<M, 1>(t, b, row, panel);
    }
  } else if constexpr (M > 1) {
    run_row_block<M - 1>(t, b, rows, row, num_panels);
  }
}

// `before(row, past)` is called before each block of rows.
template <typename Panels, typename Before>
void run_tiles(const TileOperands& t, const Panels& b, int num_rows, int num_panels,
               Before&& before) {
  const int blocks = (num_rows + kRowBlock - 1) / kRowBlock;
  for (int i = 0; i < blocks; ++i) {
    // Even blocks: a last block of one row would be all latency.
    const int row = num_rows * i / blocks, past = num_rows * (i + 1) / blocks;
    before(row, past);
    run_row_block<kRowBlock>(t, b, past - row, row, num_panels);
  }
}

template <typename Panels>
void run_tiles(const TileOperands& t, const Panels& b, int num_rows, int num_panels) {
  run_tiles(t, b, num_rows, num_panels, [](int, int) {});
}

}  // namespace
}  // namespace headrace

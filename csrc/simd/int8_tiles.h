// Int8 products on AMX tiles. Emulated in plain C++ where HEADRACE_AMX is 2.
#pragma once

#include "simd/int8.h"
#include "simd/tile_registers.h"

namespace headrace {
namespace {

// Fewer rows would leave tiles nearly empty, and the dot-product instruction is as fast as memory.
constexpr int kInt8TileRows = 5;

#if HEADRACE_AMX == 1

// Unsigned rows of x, signed weights.
template <int C, int A, int B>
inline void multiply_int8_tiles() {
  asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"n"(C), "n"(A), "n"(B));
}

#else

template <int C, int A, int B>
inline void multiply_int8_tiles() {
  for (int m = 0; m < tiles.config.rows[C]; ++m) {
    for (int n = 0; n < tiles.config.row_bytes[C] / 4; ++n) {
      auto sum = load_as<std::uint32_t>(tiles.data[C][m] + 4 * n);
      for (int k = 0; k < 4 * tiles.config.rows[B]; ++k) {
        const auto weight = static_cast<std::int8_t>(tiles.data[B][k / 4][4 * n + k % 4]);
        sum += static_cast<std::uint32_t>(tiles.data[A][m][k] * weight);
      }
      std::memcpy(tiles.data[C][m] + 4 * n, &sum, sizeof sum);
    }
  }
}

#endif

// c[rows][2 * 16] = x @ b for one or two row tiles and one or two panels, over all of the depth.
template <bool TwoRows, bool TwoPanels>
void multiply_int8(const std::uint8_t* x, std::ptrdiff_t x_stride, int first_rows,
                   const PanelRef* panels, std::int32_t* c) {
  constexpr int kTile = kTileRows * kTileBytes, kCRow = 2 * kPanelWidth;
  const std::uint8_t* second_x = x + first_rows * x_stride;
  std::int32_t* second_c = c + first_rows * kCRow;
  const std::uint8_t* b = panels[0].data + kInt8WeightsAt;
  const std::ptrdiff_t second = TwoPanels ? panels[1].data - panels[0].data : 0;
  zero_tile<0>();
  if constexpr (TwoPanels) zero_tile<1>();
  if constexpr (TwoRows) zero_tile<2>();
  if constexpr (TwoRows && TwoPanels) zero_tile<3>();
  for (std::ptrdiff_t k = 0; k < x_stride; k += kInt8Block, b += kTile) {
    load_tile<4>(x + k, x_stride);
    load_tile<6>(b, kTileBytes);
    multiply_int8_tiles<0, 4, 6>();
    if constexpr (TwoPanels) {
      load_tile<7>(b + second, kTileBytes);
      multiply_int8_tiles<1, 4, 7>();
    }
    if constexpr (TwoRows) {
      load_tile<5>(second_x + k, x_stride);
      multiply_int8_tiles<2, 5, 6>();
      if constexpr (TwoPanels) multiply_int8_tiles<3, 5, 7>();
    }
  }
  store_tile<0>(c, 4 * kCRow);
  if constexpr (TwoPanels) store_tile<1>(c + kPanelWidth, 4 * kCRow);
  if constexpr (TwoRows) store_tile<2>(second_c, 4 * kCRow);
  if constexpr (TwoRows && TwoPanels) store_tile<3>(second_c + kPanelWidth, 4 * kCRow);
}

inline void int8_linear_tiles(const Int8Args& a, int row_begin, int row_end, int panel_begin,
                              int panel_end) {
  if (row_end - row_begin < kInt8TileRows) {
    return int8_linear(a, row_begin, row_end, panel_begin, panel_end);
  }
  alignas(64) std::int32_t sums[2 * kTileRows * 2 * kPanelWidth];
  const RowBlocks rows(row_end - row_begin);
  configure(rows);
  for (int begin = panel_begin; begin < panel_end; begin += 2) {
    const int count = panel_end - begin < 2 ? 1 : 2;
    const PanelRef* panels = a.linear.panels + begin;
    for (int i = 0; i < rows.count; ++i) {
      const int row = row_begin + rows.begin(i);
      const std::uint8_t* x = a.x + row * a.x_stride;
      if (rows.second && count == 2) {
        multiply_int8<true, true>(x, a.x_stride, rows.first, panels, sums);
      } else if (rows.second) {
        multiply_int8<true, false>(x, a.x_stride, rows.first, panels, sums);
      } else if (count == 2) {
        multiply_int8<false, true>(x, a.x_stride, rows.first, panels, sums);
      } else {
        multiply_int8<false, false>(x, a.x_stride, rows.first, panels, sums);
      }
      finish_int8(a, row, rows.size, panels, count, sums);
    }
  }
  release_tiles();
}

constexpr Int8Kernels kInt8TileKernels = {kInt8Flip, quantize_int8, int8_linear_tiles};

}  // namespace
}  // namespace headrace

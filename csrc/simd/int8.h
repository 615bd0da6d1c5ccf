// Products of quantised rows with int8 panels, and the quantising of rows; see int8_kernels.h.
#pragma once

#include "int8_kernels.h"
#include "simd/dot.h"
#include "simd/linear.h"
#include "simd/quantize.h"

namespace headrace {
namespace {

// Rows and panels of the largest register tile: sums, the weights and one activation fit.
constexpr int kInt8Beside = kLanes == 16 ? 2 : 1;
constexpr int kInt8Rows = kLanes == 16 ? 12 : kLanes == 8 ? (HEADRACE_INT8_UNSIGNED ? 6 : 4) : 2;

constexpr int kInt8Ahead = 1024;  // bytes of a panel asked for ahead of their use

// sums[m * 32 + p * 16 ..] = x[m] . panel p over all of the depth, in U runs of every U-th step.
template <int M, int P, int U>
void int8_tile(const Int8Args& a, int row, const PanelRef* panels, std::int32_t* sums) {
  vi acc[U][M][P][kVecs] = {};
  const std::uint8_t* x = a.x + row * a.x_stride;
  const std::uint8_t* w[P];
  for (int p = 0; p < P; ++p) w[p] = panels[p].data + kInt8WeightsAt;
  const std::uint8_t* const end = x + a.x_stride;
  for (; x != end; x += 4 * U) {
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) {
      vi weights[P][kVecs];
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          weights[p][v] = load_as<vi>(w[p] + (u * kPanelWidth + v * kLanes) * 4);
        }
      }
#pragma GCC unroll 12
      for (int m = 0; m < M; ++m) {
        const vi xm = set1i(load_as<std::int32_t>(x + m * a.x_stride + 4 * u));
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
          for (int v = 0; v < kVecs; ++v) {
            acc[u][m][p][v] = dot4(acc[u][m][p][v], xm, weights[p][v]);
          }
        }
      }
    }
    for (int p = 0; p < P; ++p) {
      // Few rows wait for memory, and the machine's own foresight ends with each page.
      if constexpr (M <= 4) {
        for (int u = 0; u < U; ++u) __builtin_prefetch(w[p] + kInt8Ahead + u * kPanelWidth * 4);
      }
      w[p] += U * kPanelWidth * 4;
    }
  }
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        vu total = reinterpret_cast<vu>(acc[0][m][p][v]);
#pragma GCC unroll 4
        for (int u = 1; u < U; ++u) total += reinterpret_cast<vu>(acc[u][m][p][v]);
        std::memcpy(sums + (2 * m + p) * kPanelWidth + v * kLanes, &total, sizeof total);
      }
    }
  }
}

// Few rows are all latency but for several runs; one panel at a time is one stream of memory.
template <int M>
void int8_row_block(const Int8Args& a, int row, int rows, const PanelRef* panels, int num_panels,
                    std::int32_t* sums) {
  if (rows == M) {
    constexpr int kBeside = M == 1 ? 1 : kInt8Beside;
    constexpr int kRuns = M == 1 ? 4 : M == 2 && kLanes > 4 ? 2 : 1;
    if (num_panels == kBeside) {
      int8_tile<M, kBeside, kRuns>(a, row, panels, sums);
    } else {
      for (int p = 0; p < num_panels; ++p) {
        int8_tile<M, 1, kRuns>(a, row, panels + p, sums + p * kPanelWidth);
      }
    }
  } else if constexpr (M > 1) {
    int8_row_block<M - 1>(a, row, rows, panels, num_panels, sums);
  }
}

// Scale the sums of one or two panels, [rows][2 * 16], and finish them.
inline void finish_int8(const Int8Args& a, int row, int num_rows, const PanelRef* panels,
                        int num_panels, const std::int32_t* sums) {
  const int step = a.linear.activation == Activation::None ? 1 : 2;
  for (int m = 0; m < num_rows; ++m, sums += 2 * kPanelWidth) {
    alignas(64) float values[2 * kPanelWidth];
    for (int p = 0; p < num_panels; ++p) {
      for (int lane = 0; lane < kPanelWidth; lane += kLanes) {
        const std::uint8_t* header = panels[p].data + 4 * lane;
        vu sum = load_as<vu>(sums + p * kPanelWidth + lane);
        if constexpr (HEADRACE_INT8_UNSIGNED) sum += load_as<vu>(header + kInt8CorrectionsAt);
        const vf scale = set1(a.x_scales[row + m]) * load_as<vf>(header);
        store(values + p * kPanelWidth + lane, to_float(reinterpret_cast<vi>(sum)) * scale);
      }
    }
    for (int p = 0; p < num_panels; p += step) {
      finish_panel(a.linear, row + m, panels[p], values + p * kPanelWidth);
    }
  }
}

inline void int8_linear(const Int8Args& a, int row_begin, int row_end, int panel_begin,
                        int panel_end) {
  alignas(64) std::int32_t sums[kInt8Rows * 2 * kPanelWidth];
  const int num_rows = row_end - row_begin;
  const int blocks = (num_rows + kInt8Rows - 1) / kInt8Rows;
  for (int begin = panel_begin; begin < panel_end; begin += 2) {
    const int count = panel_end - begin < 2 ? 1 : 2;
    const PanelRef* panels = a.linear.panels + begin;
    for (int i = 0; i < blocks; ++i) {
      const int row = row_begin + num_rows * i / blocks;
      const int rows = row_begin + num_rows * (i + 1) / blocks - row;
      ResultLines{a.linear, row, panels, count}.ask_for(0, rows);
      int8_row_block<kInt8Rows>(a, row, rows, panels, count, sums);
      finish_int8(a, row, rows, panels, count, sums);
    }
  }
}

inline void quantize_int8(const float* x, std::ptrdiff_t x_stride, int width, std::uint8_t flip,
                          std::uint8_t* out, std::ptrdiff_t out_stride, float* scales,
                          int num_rows) {
  for (int r = 0; r < num_rows; ++r, x += x_stride, out += out_stride) {
    const float largest = largest_magnitude(x, width);
    scales[r] = largest / 127.0f;
    const vf inverse = set1(inverse_scale(largest, 127.0f));
    for (int k = 0; k < out_stride; k += kLanes) {
      const int left = width - k;
      const vf value = left >= kLanes ? load(x + k) : left > 0 ? load_part(x + k, left) : vf{};
      // The low byte alone is enough.
      const vu bits = (as_bits(value * inverse + kRoundToInteger) ^ flip) & 0xff;
      const vb bytes = __builtin_convertvector(bits, vb);
      std::memcpy(out + k, &bytes, sizeof bytes);
    }
  }
}

constexpr std::uint8_t kInt8Flip = HEADRACE_INT8_UNSIGNED ? 0x80 : 0;
constexpr Int8Kernels kInt8Kernels = {kInt8Flip, quantize_int8, int8_linear};

}  // namespace
}  // namespace headrace

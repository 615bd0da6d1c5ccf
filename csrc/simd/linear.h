// Matrix products over packed panels. Few rows: weights are unpacked in registers, so that each
// is read once. More rows: a stretch of a panel is unpacked to cache and used for all rows.
#pragma once

#include <algorithm>
#include <limits>
#include <utility>

#include "simd/lines_ahead.h"
#include "simd/math.h"
#include "simd/panels.h"
#include "simd/tile.h"

namespace headrace {
namespace {

// Where part `i` begins of `count` things in even parts.
inline int part_begin(int count, int i, int parts) {
  return static_cast<int>(static_cast<std::int64_t>(count) * i / parts);
}

constexpr int kFewRows = 5;                  // at most, unpacked in registers
constexpr int kMaxBeside = 4;                // panels handled together
constexpr int kUnitStride = kMaxBeside * kPanelWidth;
constexpr int kStretch = 256;                // k unpacked at a time, whole blocks

// Panels side by side for few rows: enough sums in flight, few enough registers.
constexpr int fused_beside(Format f, int rows) {
  const int budget = (kManyRegisters ? 2 : 1) * (has_blocks(f) ? 4 : 8);
  const int fit = budget / (rows * kVecs);
  return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

// Rows of one pass over weights unpacked in registers: as many as leave registers for it.
constexpr int fused_rows(Format f) { return has_blocks(f) ? 3 : kFewRows; }

// Rows up to which such passes, a few rows each, beat unpacking to memory once for larger tiles.
// Floats cost little to unpack, and those of 32 bits nothing.
constexpr int rows_in_passes(Format f) {
  return has_blocks(f) ? fused_rows(f) : f == Format::F32 ? std::numeric_limits<int>::max() : 32;
}

// Add to each sum its terms of the first `count` k of unit `u`.
template <Format F, int M, int P>
inline void add_unit(PanelReader<F> (&readers)[P], const float* x, std::ptrdiff_t x_stride, int u,
                     int count, vf (&acc)[M][P][kVecs]) {
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) readers[p].open(u);
#pragma GCC unroll 4
  for (int i = 0; i < count; ++i) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      // Broadcast again for each panel: kept in registers, they would push sums out to memory.
      if constexpr (M > 1) asm("" : "+r"(x));
      vf w[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) w[v] = readers[p].weight(i, v);
#pragma GCC unroll 6
      for (int m = 0; m < M; ++m) {
        const vf xm = set1(x[m * x_stride + i]);
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) acc[m][p][v] = fma(xm, w[v], acc[m][p][v]);
      }
    }
  }
}

// c[m][p * 16 ..] = x[m] @ panel p, for M rows and P panels of one format.
template <Format F, int M, int P>
void fused_product(const std::uint8_t* const* panels, const float* x, std::ptrdiff_t x_stride,
                   int depth, float* c) {
  PanelReader<F> readers[P];
  vf acc[M][P][kVecs] = {};
  for (int p = 0; p < P; ++p) readers[p].panel = panels[p];
  // The machine foresees a stream, but each panel is a new one, over before that helps much.
  constexpr bool kPrefetch = M == 1 && has_blocks(F);
  const std::ptrdiff_t ahead =
      P * PanelReader<F>::kGroupBytes *
      static_cast<std::ptrdiff_t>(depth / kBlockDepth / PanelReader<F>::kLayout.group_blocks);
  constexpr int kSpan = PanelReader<F>::kSpan, kUnit = PanelReader<F>::kUnit;
  const int num_spans = depth / kSpan;
  for (int span = 0; span < num_spans; ++span) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      go_to_span(readers[p], span);
      if (kPrefetch && span % PanelReader<F>::kSpans == 0) readers[p].prefetch(ahead);
    }
    for_units<F>([&](int u) {
      add_unit(readers, x, x_stride, u, kUnit, acc);
      x += kUnit;
    });
  }
  if constexpr (!has_blocks(F)) {
    if (depth % kSpan) {
      for (int p = 0; p < P; ++p) go_to_span(readers[p], num_spans);
    }
    for (int k = num_spans * kSpan; k < depth; k += kUnit, x += kUnit) {
      add_unit(readers, x, x_stride, k % kSpan / kUnit, std::min(depth - k, kUnit), acc);
    }
  }
  store_sums(acc, c, kUnitStride);
}

// c[m][p * 16 ..] = x[m] @ panel p for 1, 2, .. rows of x, whose elements are X.
template <typename X, int Rows>
struct FusedProducts {
  using Product = void (*)(const std::uint8_t* const* panels, const X* x, std::ptrdiff_t x_stride,
                           int depth, float* c);
  int beside[Rows];
  Product several[Rows];  // for that many panels
  Product single[Rows];
};

struct FormatKernels {
  void (*unpack)(const std::uint8_t*, int, int, float*);
  int rows_in_passes;
  FusedProducts<float, kFewRows> fused;
};

template <Format F, std::size_t... Rows>
constexpr FormatKernels kernels_of(std::index_sequence<Rows...>) {
  return {unpack_panel<F>,
          rows_in_passes(F),
          {{fused_beside(F, Rows + 1)...},
           {fused_product<F, Rows + 1, fused_beside(F, Rows + 1)>...},
           {fused_product<F, Rows + 1, 1>...}}};
}

template <Format F>
constexpr FormatKernels kernels_of() {
  return kernels_of<F>(std::make_index_sequence<fused_rows(F)>());
}

constexpr FormatKernels kFormatKernels[kNumFormats] = {
    kernels_of<Format::F32>(),  kernels_of<Format::F16>(),  kernels_of<Format::BF16>(),
    kernels_of<Format::Q8_0>(), kernels_of<Format::Q4_0>(), kernels_of<Format::Q4_1>(),
    kernels_of<Format::Q5_0>(), kernels_of<Format::Q5_1>(), kernels_of<Format::Q4_K>(),
    kernels_of<Format::Q5_K>(), kernels_of<Format::Q6_K>(),
};

inline const FormatKernels& format_kernels(Format f) {
  return kFormatKernels[static_cast<int>(f)];
}

// Sixteen finished outputs of one row: bias, then the other branch or the residual.
inline void finish_panel(const LinearArgs& a, int row, const PanelRef& panel, const float* sums) {
  float* y = a.y + row * a.y_stride + panel.column;
  const float* bias = a.bias ? a.bias + panel.column : nullptr;
  const float* residual =
      a.residual ? a.residual + row * a.residual_stride + panel.column : nullptr;
  for (int lane = 0; lane < panel.width; lane += kLanes) {
    const int n = panel.width - lane < kLanes ? panel.width - lane : kLanes;
    vf value = load(sums + lane);
    if (a.activation != Activation::None) {
      value = activate(a.activation, value) * load(sums + kPanelWidth + lane);
    }
    if (n == kLanes) {
      if (bias) value += load(bias + lane);
      if (residual) value += load(residual + lane);
      store(y + lane, value);
    } else {
      if (bias) value += load_part(bias + lane, n);
      if (residual) value += load_part(residual + lane, n);
      store_part(y + lane, value, n);
    }
  }
}

inline void finish(const LinearArgs& a, int row_begin, int num_rows, const PanelRef* panels,
                   int num_panels, const float* sums, std::ptrdiff_t stride) {
  const int step = a.activation == Activation::None ? 1 : 2;
  for (int m = 0; m < num_rows; ++m) {
    for (int p = 0; p < num_panels; p += step) {
      finish_panel(a, row_begin + m, panels[p], sums + m * stride + p * kPanelWidth);
    }
  }
}

// As few rows as there are fused products for; `products(format)` are those, x is the first row.
template <typename X, typename Products>
void linear_few_rows(const LinearArgs& a, const X* x, std::ptrdiff_t x_stride, int row_begin,
                     int num_rows, int panel_begin, int panel_end, float* sums,
                     Products&& products) {
  for (int begin = panel_begin; begin < panel_end; begin += kMaxBeside) {
    const int count = panel_end - begin < kMaxBeside ? panel_end - begin : kMaxBeside;
    const PanelRef* panels = a.panels + begin;
    for (int p = 0; p < count;) {
      const auto& kernels = products(panels[p].format);
      const int beside = kernels.beside[num_rows - 1];
      const std::uint8_t* data[kMaxBeside];
      int same = 0;
      while (same < beside && p + same < count && panels[p + same].format == panels[p].format) {
        data[same] = panels[p + same].data;
        ++same;
      }
      float* c = sums + p * kPanelWidth;
      if (same == beside) {
        kernels.several[num_rows - 1](data, x, x_stride, a.depth, c);
        p += beside;
      } else {
        kernels.single[num_rows - 1](data, x, x_stride, a.depth, c);
        p += 1;
      }
    }
    finish(a, row_begin, num_rows, panels, count, sums, kUnitStride);
  }
}

inline void linear_unpacked(const LinearArgs& a, int row_begin, int num_rows, int panel_begin,
                            int panel_end, float* scratch) {
  constexpr int kBeside = 2;
  float* weights = scratch;
  float* sums = scratch + kBeside * kStretch * kPanelWidth;
  const int step = a.activation != Activation::None || kLanes == 16 ? kBeside : 1;
  for (int begin = panel_begin; begin < panel_end; begin += step) {
    const int count = panel_end - begin < step ? panel_end - begin : step;
    const PanelRef* panels = a.panels + begin;
    const ResultLines results{a, row_begin, panels, count};
    for (int k = 0; k < a.depth; k += kStretch) {
      const int depth = a.depth - k < kStretch ? a.depth - k : kStretch;
      const int num_blocks = (depth + kBlockDepth - 1) / kBlockDepth;
      for (int p = 0; p < count; ++p) {
        format_kernels(panels[p].format)
            .unpack(panels[p].data, k / kBlockDepth, num_blocks,
                    weights + p * kStretch * kPanelWidth);
      }
      const TileOperands tile{a.x + row_begin * a.x_stride + k,
                              a.x_stride,
                              depth,
                              sums,
                              kBeside * kPanelWidth,
                              k > 0};
      const EvenPanels<Float32> panel{weights, kStretch * kPanelWidth, kPanelWidth};
      const NextStretch next = stretch_after(a, begin, count, panel_end, k / kBlockDepth,
                                             kStretch / kBlockDepth);
      run_tiles(tile, panel, num_rows, count, [&](int row, int past) {
        if (k == 0) results.ask_for(row, past);
        next.ask_for(row, past, num_rows);
      });
    }
    finish(a, row_begin, num_rows, panels, count, sums, kBeside * kPanelWidth);
  }
}

inline void linear(const LinearArgs& a, int row_begin, int row_end, int panel_begin, int panel_end,
                   void* scratch) {
  constexpr int kStep = 4;  // panels: whole gated pairs, and as many as are handled together
  auto* memory = static_cast<float*>(scratch);
  const int num_rows = row_end - row_begin;
  for (int begin = panel_begin; begin < panel_end; begin += kStep) {
    const int end = panel_end - begin < kStep ? panel_end : begin + kStep;
    int rows_in_passes = std::numeric_limits<int>::max();
    for (int p = begin; p < end; ++p) {
      rows_in_passes =
          std::min(rows_in_passes, format_kernels(a.panels[p].format).rows_in_passes);
    }
    if (num_rows > rows_in_passes) {
      linear_unpacked(a, row_begin, num_rows, begin, end, memory);
      continue;
    }
    // A few rows at a time, the panels stay in the first cache.
    for (int row = row_begin; row < row_end;) {
      // One more rather than one left alone.
      const int left = row_end - row;
      const int rows = left <= kFewRows ? left : kFewRows - 1;
      linear_few_rows(a, a.x + row * a.x_stride, a.x_stride, row, rows, begin, end, memory,
                      [](Format f) -> const auto& { return format_kernels(f).fused; });
      row += rows;
    }
  }
}

inline std::size_t linear_scratch(int, int num_rows) {
  const std::size_t rows = static_cast<std::size_t>(num_rows < kFewRows ? kFewRows : num_rows);
  return sizeof(float) * (2 * kStretch * kPanelWidth + rows * kUnitStride);
}

inline void unpack(Format format, const std::uint8_t* panel, int depth, float* out) {
  format_kernels(format).unpack(panel, 0, (depth + kBlockDepth - 1) / kBlockDepth, out);
}

}  // namespace
}  // namespace headrace

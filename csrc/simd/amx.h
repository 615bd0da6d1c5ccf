// Matrix products on AMX tiles: activations and weights rounded to bfloat16, sums in float32.
// Emulated in plain C++ where HEADRACE_AMX is 2, so that everything but the instructions
// themselves is tested on machines without them.
#pragma once

#include "simd/linear.h"

namespace headrace {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileBytes = 64;  // of one tile row

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

#if HEADRACE_AMX == 1

inline void load_config(const TileConfig& config) { _tile_loadconfig(&config); }
inline void release_tiles() { _tile_release(); }
// Written as assembly because the compiler's own macros take tile numbers only as literals.
template <int T>
inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"n"(T));
}
template <int T>
inline void load_tile(const void* p, std::ptrdiff_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"n"(T), "r"(p), "r"(stride) : "memory");
}
template <int T>
inline void store_tile(void* p, std::ptrdiff_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"n"(T), "r"(p), "r"(stride) : "memory");
}
template <int C, int A, int B>
inline void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"n"(C), "n"(A), "n"(B));
}

#else

struct EmulatedTiles {
  TileConfig config;
  std::uint8_t data[8][kTileRows][kTileBytes];
};
thread_local EmulatedTiles tiles;

inline void load_config(const TileConfig& config) {
  tiles.config = config;
  std::memset(tiles.data, 0, sizeof tiles.data);
}
inline void release_tiles() {}
template <int T>
inline void zero_tile() {
  std::memset(tiles.data[T], 0, sizeof tiles.data[T]);
}
template <int T>
inline void load_tile(const void* p, std::ptrdiff_t stride) {
  for (int r = 0; r < tiles.config.rows[T]; ++r) {
    std::memcpy(tiles.data[T][r], static_cast<const char*>(p) + r * stride,
                tiles.config.row_bytes[T]);
  }
}
template <int T>
inline void store_tile(void* p, std::ptrdiff_t stride) {
  for (int r = 0; r < tiles.config.rows[T]; ++r) {
    std::memcpy(static_cast<char*>(p) + r * stride, tiles.data[T][r], tiles.config.row_bytes[T]);
  }
}
inline float tile_bf16(const std::uint8_t* p) {
  const std::uint32_t bits = static_cast<std::uint32_t>(load_as<std::uint16_t>(p)) << 16;
  return load_as<float>(&bits);
}
template <int C, int A, int B>
inline void multiply_tiles() {
  for (int m = 0; m < tiles.config.rows[C]; ++m) {
    for (int k = 0; k < 2 * tiles.config.rows[B]; ++k) {
      const float a = tile_bf16(tiles.data[A][m] + 2 * k);
      for (int n = 0; n < tiles.config.row_bytes[C] / 4; ++n) {
        float sum = load_as<float>(tiles.data[C][m] + 4 * n);
        sum += a * tile_bf16(tiles.data[B][k / 2] + 4 * n + 2 * (k % 2));
        std::memcpy(tiles.data[C][m] + 4 * n, &sum, sizeof sum);
      }
    }
  }
}

#endif

// Tiles 0-3 are sums (two row tiles by two panels), 4-5 rows of x, 6-7 blocks of the panels.
inline void configure(int first_rows, int second_rows) {
  TileConfig config;
  for (int t = 0; t < 8; ++t) config.row_bytes[t] = kTileBytes;
  const int second = second_rows ? second_rows : kTileRows;
  const int rows[8] = {first_rows, first_rows, second,    second,
                       first_rows, second,     kTileRows, kTileRows};
  for (int t = 0; t < 8; ++t) config.rows[t] = static_cast<std::uint8_t>(rows[t]);
  load_config(config);
}

// c (+)= x @ b for one or two row tiles and one or two panels, over all of k.
template <bool TwoRows, bool TwoPanels>
void multiply(const std::uint16_t* x, std::ptrdiff_t x_stride, const std::uint8_t* const* b,
              int num_blocks, float* c, std::ptrdiff_t c_stride) {
  const std::ptrdiff_t x_bytes = 2 * x_stride, c_bytes = 4 * c_stride;
  zero_tile<0>();
  if constexpr (TwoPanels) zero_tile<1>();
  if constexpr (TwoRows) zero_tile<2>();
  if constexpr (TwoRows && TwoPanels) zero_tile<3>();
  for (int block = 0; block < num_blocks; ++block) {
    load_tile<4>(x + block * kBlockDepth, x_bytes);
    load_tile<6>(b[0] + block * 1024, kTileBytes);
    multiply_tiles<0, 4, 6>();
    if constexpr (TwoPanels) {
      load_tile<7>(b[1] + block * 1024, kTileBytes);
      multiply_tiles<1, 4, 7>();
    }
    if constexpr (TwoRows) {
      load_tile<5>(x + kTileRows * x_stride + block * kBlockDepth, x_bytes);
      multiply_tiles<2, 5, 6>();
      if constexpr (TwoPanels) multiply_tiles<3, 5, 7>();
    }
  }
  store_tile<0>(c, c_bytes);
  if constexpr (TwoPanels) store_tile<1>(c + kPanelWidth, c_bytes);
  if constexpr (TwoRows) store_tile<2>(c + kTileRows * c_stride, c_bytes);
  if constexpr (TwoRows && TwoPanels) {
    store_tile<3>(c + kTileRows * c_stride + kPanelWidth, c_bytes);
  }
}

// A panel rounded to bfloat16 in the tile layout, [k / 2][16][2].
template <Format F>
void unpack_tiles(const std::uint8_t* panel, int num_blocks, std::uint8_t* out) {
  PanelReader<F> reader;
  reader.panel = panel;
  for (int span = 0; span < PanelReader<F>::kSpans * num_blocks; ++span) {
    go_to_span(reader, span);
    for_units<F>([&](int u) {
      reader.open(u);
      for (int i = 0; i < PanelReader<F>::kUnit; i += 2) {
        for (int v = 0; v < kVecs; ++v) {
          const vu pair = round_bf16(reader.weight(i, v)) >> 16 |
                          (round_bf16(reader.weight(i + 1, v)) & 0xffff0000u);
          std::memcpy(out + 4 * v * kLanes, &pair, sizeof pair);
        }
        out += kTileBytes;
      }
    });
  }
}

// Float weights with more precision than bfloat16 stay off the tiles.
inline bool fits_tiles(Format f) { return f != Format::F32 && f != Format::F16; }

inline const std::uint8_t* tile_panel(const PanelRef& panel, int num_blocks, std::uint8_t* out) {
  switch (panel.format) {
    case Format::Q8_0: unpack_tiles<Format::Q8_0>(panel.data, num_blocks, out); return out;
    case Format::Q4_0: unpack_tiles<Format::Q4_0>(panel.data, num_blocks, out); return out;
    case Format::Q4_1: unpack_tiles<Format::Q4_1>(panel.data, num_blocks, out); return out;
    case Format::Q5_0: unpack_tiles<Format::Q5_0>(panel.data, num_blocks, out); return out;
    case Format::Q5_1: unpack_tiles<Format::Q5_1>(panel.data, num_blocks, out); return out;
    case Format::Q4_K: unpack_tiles<Format::Q4_K>(panel.data, num_blocks, out); return out;
    case Format::Q5_K: unpack_tiles<Format::Q5_K>(panel.data, num_blocks, out); return out;
    case Format::Q6_K: unpack_tiles<Format::Q6_K>(panel.data, num_blocks, out); return out;
    default: return panel.data;  // BF16 lies in the tile layout already
  }
}

struct ShapeInUse {
  int first_rows = -1;
  int second_rows = -1;

  void use(int first, int second) {
    if (first == first_rows && second == second_rows) return;
    first_rows = first;
    second_rows = second;
    configure(first, second);
  }
};

inline void linear_tiles(const LinearArgs& a, int row_begin, int row_end, int panel_begin,
                         int panel_end, void* scratch) {
  const int num_blocks = (a.depth + kBlockDepth - 1) / kBlockDepth;
  const int num_rows = row_end - row_begin;
  auto* weights = static_cast<std::uint8_t*>(scratch);
  auto* sums = reinterpret_cast<float*>(weights + 2 * static_cast<std::size_t>(num_blocks) * 1024);
  constexpr std::ptrdiff_t kStride = 2 * kPanelWidth;
  ShapeInUse shape;
  for (int begin = panel_begin; begin < panel_end; begin += 2) {
    const int count = panel_end - begin < 2 ? 1 : 2;
    const PanelRef* panels = a.panels + begin;
    if (!fits_tiles(panels[0].format) || !fits_tiles(panels[count - 1].format)) {
      linear(a, row_begin, row_end, begin, begin + count, sums);
      continue;
    }
    const std::uint8_t* b[2];
    for (int p = 0; p < count; ++p) {
      b[p] = tile_panel(panels[p], num_blocks, weights + p * num_blocks * 1024);
    }
    for (int row = 0; row < num_rows; row += 2 * kTileRows) {
      const int left = num_rows - row;
      const int first = left < kTileRows ? left : kTileRows;
      const int second = left - first < kTileRows ? left - first : kTileRows;
      shape.use(first, second);
      const std::uint16_t* x = a.x_bf16 + (row_begin + row) * a.x_bf16_stride;
      float* c = sums + row * kStride;
      if (second && count == 2) {
        multiply<true, true>(x, a.x_bf16_stride, b, num_blocks, c, kStride);
      } else if (second) {
        multiply<true, false>(x, a.x_bf16_stride, b, num_blocks, c, kStride);
      } else if (count == 2) {
        multiply<false, true>(x, a.x_bf16_stride, b, num_blocks, c, kStride);
      } else {
        multiply<false, false>(x, a.x_bf16_stride, b, num_blocks, c, kStride);
      }
    }
    finish(a, row_begin, num_rows, panels, count, sums, kStride);
  }
  release_tiles();
}

inline std::size_t linear_tiles_scratch(int depth, int num_rows) {
  const std::size_t num_blocks = static_cast<std::size_t>((depth + kBlockDepth - 1) / kBlockDepth);
  const std::size_t sums = static_cast<std::size_t>(num_rows) * 2 * kPanelWidth * sizeof(float);
  const std::size_t fallback = linear_scratch(depth, num_rows);
  return 2 * num_blocks * 1024 + (sums > fallback ? sums : fallback);
}

}  // namespace
}  // namespace headrace

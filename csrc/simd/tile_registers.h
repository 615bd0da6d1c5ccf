// The tile registers of AMX, and how rows fill them. Emulated in plain C++ where HEADRACE_AMX is 2,
// with the roundings of the manual, so that everything but the instructions themselves is tested on
// machines without them.
#pragma once

#include "simd/vec.h"

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
// Without a configuration nothing may be done with tiles; no rows make any use of them show.
inline void release_tiles() { tiles.config = {}; }
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

// The unit takes denormals for zeros and makes none.
inline float flushed(float x) { return __builtin_fabsf(x) < 0x1p-126f ? 0.0f : x; }
inline float tile_bf16(const std::uint8_t* p) {
  const std::uint32_t bits = static_cast<std::uint32_t>(load_as<std::uint16_t>(p)) << 16;
  return flushed(load_as<float>(&bits));
}

// Even and odd k are summed up on their own, each from zero, then together, then to what is there.
template <int C, int A, int B>
inline void multiply_tiles() {
  for (int m = 0; m < tiles.config.rows[C]; ++m) {
    for (int n = 0; n < tiles.config.row_bytes[C] / 4; ++n) {
      float sums[2] = {};
      for (int k = 0; k < 2 * tiles.config.rows[B]; ++k) {
        const float a = tile_bf16(tiles.data[A][m] + 2 * k);
        const float b = tile_bf16(tiles.data[B][k / 2] + 4 * n + 2 * (k % 2));
        sums[k % 2] = flushed(__builtin_fmaf(a, b, sums[k % 2]));
      }
      std::uint8_t* c = tiles.data[C][m] + 4 * n;
      const float sum = flushed(flushed(load_as<float>(c)) + flushed(sums[0] + sums[1]));
      std::memcpy(c, &sum, sizeof sum);
    }
  }
}

#endif

// Rows in equal blocks of one or two equal tiles, so that tiles keep one shape: to change it takes
// longer than a product. The last blocks may overlap; what is computed twice comes out the same.
struct RowBlocks {
  int num_rows, count, size, first, second;

  explicit RowBlocks(int rows)
      : num_rows(rows),
        count((rows + 2 * kTileRows - 1) / (2 * kTileRows)),
        size((rows + count - 1) / count),
        first(size <= kTileRows ? size : (size + 1) / 2),
        second(size - first) {}
  int begin(int i) const { return i * size < num_rows - size ? i * size : num_rows - size; }
};

// Tiles 0-3 are sums (two row tiles by two panels), 4-5 rows of x, 6-7 blocks of the panels.
inline void configure(const RowBlocks& blocks) {
  const int first = blocks.first, second = blocks.second ? blocks.second : kTileRows;
  const int rows[8] = {first, first, second, second, first, second, kTileRows, kTileRows};
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    config.row_bytes[t] = kTileBytes;
    config.rows[t] = static_cast<std::uint8_t>(rows[t]);
  }
  load_config(config);
}

// Two neighbouring k of each lane as tiles hold them: rounded to bfloat16, the first one low.
inline vu pair_bf16(vf first, vf second) {
#if HEADRACE_AMX == 1
  typedef std::uint16_t Halves __attribute__((vector_size(64)));
  const auto apart = reinterpret_cast<Halves>(_mm512_cvtne2ps_pbh(second, first));
  return reinterpret_cast<vu>(__builtin_shufflevector(
      apart, apart, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26,
      11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
#else
  // The instruction makes zeros of denormals. So does the product, which is all that sees them.
  return round_bf16(first) >> 16 | (round_bf16(second) & 0xffff0000u);
#endif
}

}  // namespace
}  // namespace headrace

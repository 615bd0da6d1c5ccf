// One tile of keys and values for few query rows, read where the cache holds it: to widen it to
// scratch first costs more than it saves. Holds the two products; adds in the same order as tile.h.
#pragma once

#include "simd/softmax.h"
#include "simd/tile.h"

namespace headrace {
namespace {

struct Float16 {
  using Stored = std::uint16_t;
  static vf load(const std::uint16_t* p) { return load_f16(p); }
};
struct BFloat16 {
  using Stored = std::uint16_t;
  static vf load(const std::uint16_t* p) { return load_bf16(p); }
};

// Query rows up to which a tile is read like this, and those that the registers hold together.
constexpr int kCachedRows = 8;
constexpr int kCachedRowBlock = kRowBlock < kCachedRows ? kRowBlock : kCachedRows;

// Heads of whole panels only, since nothing may be read behind the last value.
inline bool reads_cached(const AttentionArgs& a, int num_rows) {
  return num_rows <= kCachedRows && a.cache.block_size >= kPanelWidth &&
         a.cache.head_dim % kPanelWidth == 0;
}

// body(element) with the one that the cache holds.
template <typename Body>
inline void with_element(CacheType type, Body&& body) {
  switch (type) {
    case CacheType::F32: body(Float32()); break;
    case CacheType::F16: body(Float16()); break;
    case CacheType::BF16: body(BFloat16()); break;
  }
}

// Where a block of the sequence begins in keys and in values, this head.
inline std::ptrdiff_t block_start(const AttentionArgs& a, const AttentionItem& item, int position) {
  const int size = a.cache.block_size;
  const std::ptrdiff_t block = item.blocks[position / size];
  return (block * a.cache.num_kv_heads + item.kv_head) * size * a.cache.head_dim;
}

// Blocks lie anywhere in memory, so the machine cannot foresee the next one by itself: while a tile
// is used, the lines of the one after it are asked for, evenly, since few can be on their way.
template <typename Element>
struct CachedTile {
  using Stored = typename Element::Stored;
  static constexpr int kMaxRuns = kKeyTile / kPanelWidth;
  static constexpr int kLinePanels = 64 / (kPanelWidth * static_cast<int>(sizeof(Stored)));

  struct Run {  // positions side by side in one block
    const Stored* keys;
    const Stored* values;
    std::ptrdiff_t keys_ahead;  // from here to the same of the tile after
    std::ptrdiff_t values_ahead;
  };

  Run runs[kMaxRuns];
  int run_length;  // a power of two, like the block size
  int run_shift;
  int block_size;
  int head_dim;

  CachedTile(const AttentionArgs& a, const AttentionItem& item, int tile, int end)
      : run_length(a.cache.block_size < kKeyTile ? a.cache.block_size : kKeyTile),
        run_shift(__builtin_ctz(static_cast<unsigned>(run_length))),
        block_size(a.cache.block_size),
        head_dim(a.cache.head_dim) {
    const auto* keys = static_cast<const Stored*>(a.cache.keys);
    const auto* values = static_cast<const Stored*>(a.cache.values);
    const int last = item.first_position + item.num_tokens;
    for (int i = 0; tile + i * run_length < end; ++i) {
      const int position = tile + i * run_length, offset = position & (block_size - 1);
      const std::ptrdiff_t start = block_start(a, item, position);
      const int ahead = position + kKeyTile;
      std::ptrdiff_t next = start;
      int next_offset = offset;
      if (ahead < last) {
        next = block_start(a, item, ahead);
        next_offset = ahead & (block_size - 1);
      }
      runs[i] = {keys + start + offset, values + start + offset * head_dim,
                 next - start + next_offset - offset,
                 next - start + (next_offset - offset) * head_dim};
    }
  }

  const Run& run_of(int position) const { return runs[position >> run_shift]; }
  int offset_in_run(int position) const { return position & (run_length - 1); }
};

// Scores of M query rows against P panels of sixteen positions, from panel number `panel` on. A
// function of its own, like the next, so that its sums have all registers.
template <int M, int P, typename Element>
[[gnu::noinline]] void score_panels(const CachedTile<Element>& tile, int panel, const float* q,
                                    float* scores) {
  using Stored = typename Element::Stored;
  const int dim = tile.head_dim, size = tile.block_size;
  const Stored* keys[P];
  const Stored* ahead[P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    const int position = (panel + p) * kPanelWidth;
    const auto& run = tile.run_of(position);
    keys[p] = run.keys + tile.offset_in_run(position);
    ahead[p] = keys[p] + run.keys_ahead;
  }
  vf acc[M][P][kVecs] = {};
  for (int d = 0; d < dim; ++d) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      // Rows of a small block share a line.
      __builtin_prefetch(ahead[p], 0, 2);
      if constexpr (M > 1) asm("" : "+r"(q));  // broadcast again: there are few registers
      vf w[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) w[v] = Element::load(keys[p] + v * kLanes);
#pragma GCC unroll 12
      for (int m = 0; m < M; ++m) {
        const vf x = set1(q[m * dim]);
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) acc[m][p][v] = fma(x, w[v], acc[m][p][v]);
      }
      keys[p] += size;
      ahead[p] += size;
    }
    ++q;
  }
  store_sums(acc, scores + panel * kPanelWidth, kKeyTile);
}

// Add to P panels of columns of M rows the values of positions [begin, end) of the tile, weighted.
template <int M, int P, typename Element>
[[gnu::noinline]] void mix_panels(const CachedTile<Element>& tile, int begin, int end, int panel,
                                  const float* weights, float* sums, std::ptrdiff_t stride) {
  const int dim = tile.head_dim;
  sums += panel * kPanelWidth;
  vf acc[M][P][kVecs];
  load_sums(sums, stride, true, acc);
  weights += begin;
  const typename Element::Stored* values = nullptr;
  std::ptrdiff_t ahead = 0;
  for (int position = begin, left = 0; position < end; ++position, --left) {
    if (left == 0) {
      const auto& run = tile.run_of(position);
      const int offset = tile.offset_in_run(position);
      values = run.values + offset * dim + panel * kPanelWidth;
      ahead = run.values_ahead;
      left = tile.run_length - offset;
    }
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const auto* here = values + p * kPanelWidth;
      if (p % CachedTile<Element>::kLinePanels == 0) __builtin_prefetch(here + ahead, 0, 2);
      if constexpr (M > 1) asm("" : "+r"(weights));
      vf w[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) w[v] = Element::load(here + v * kLanes);
#pragma GCC unroll 12
      for (int m = 0; m < M; ++m) {
        const vf x = set1(weights[m * kKeyTile]);
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) acc[m][p][v] = fma(x, w[v], acc[m][p][v]);
      }
    }
    values += dim;
    ++weights;
  }
  store_sums(acc, sums, stride);
}

// body(std::integral_constant<int, rows>, first row) for blocks of rows that fit the registers.
template <int M = kCachedRowBlock, typename Body>
inline void for_block_of(int rows, int row, Body&& body) {
  if (rows == M) {
    body(std::integral_constant<int, M>(), row);
  } else if constexpr (M > 1) {
    for_block_of<M - 1>(rows, row, body);
  }
}

template <typename Body>
inline void for_row_blocks(int num_rows, Body&& body) {
  const int blocks = (num_rows + kCachedRowBlock - 1) / kCachedRowBlock;
  for (int i = 0; i < blocks; ++i) {
    const int row = num_rows * i / blocks;
    for_block_of(num_rows * (i + 1) / blocks - row, row, body);
  }
}

template <typename Element>
void score_cached(const CachedTile<Element>& tile, int num_panels, const float* q, int num_rows,
                  float* scores) {
  for_row_blocks(num_rows, [&](auto rows, int row) {
    constexpr int M = rows(), kBeside = panels_beside(M);
    const float* x = q + row * tile.head_dim;
    float* c = scores + row * kKeyTile;
    int panel = 0;
    for (; panel + kBeside <= num_panels; panel += kBeside) {
      score_panels<M, kBeside>(tile, panel, x, c);
    }
    if constexpr (kBeside > 1) {
      for (; panel < num_panels; ++panel) score_panels<M, 1>(tile, panel, x, c);
    }
  });
}

template <typename Element>
void mix_cached(const CachedTile<Element>& tile, Sight sight, const float* weights, int num_rows,
                float* sums, std::ptrdiff_t stride) {
  for_row_blocks(num_rows, [&](auto rows, int row) {
    constexpr int M = rows(), kBeside = panels_beside(M);
    const float* x = weights + row * kKeyTile;
    float* c = sums + row * stride;
    const int num_panels = tile.head_dim / kPanelWidth;
    int panel = 0;
    for (; panel + kBeside <= num_panels; panel += kBeside) {
      mix_panels<M, kBeside>(tile, sight.begin, sight.end, panel, x, c, stride);
    }
    if constexpr (kBeside > 1) {
      for (; panel < num_panels; ++panel) {
        mix_panels<M, 1>(tile, sight.begin, sight.end, panel, x, c, stride);
      }
    }
  });
}

}  // namespace
}  // namespace headrace

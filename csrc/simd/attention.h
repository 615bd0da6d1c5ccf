// Attention through the paged cache with a running softmax. What is added to what depends only on
// a query's absolute position: key tiles and partitions begin at fixed places, keys out of sight
// are left out of every sum, and partitions are merged in order.
#pragma once

#include "simd/math.h"
#include "simd/tile.h"

namespace headrace {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

inline int padded_dim(int head_dim) {
  return (head_dim + kPanelWidth - 1) / kPanelWidth * kPanelWidth;
}

inline float exp1(float x) { return exp(set1(x))[0]; }

// The softmax so far of one row: largest score, sum of weights, weighted sum of values.
struct RunningRow {
  float* maximum;
  float* sum;
  float* values;
};

inline void scale_row(float* values, float factor, int width) {
  if (factor == 1.0f) return;
  for (int i = 0; i < width; i += kLanes) store(values + i, load(values + i) * factor);
}

// Fold a finished partition into the rows before it.
inline void merge_row(const RunningRow& total, const RunningRow& part, int width) {
  const float maximum = *part.maximum > *total.maximum ? *part.maximum : *total.maximum;
  const vf keep = set1(exp1(*total.maximum - maximum));
  const vf take = set1(exp1(*part.maximum - maximum));
  *total.sum = *total.sum * keep[0] + *part.sum * take[0];
  *total.maximum = maximum;
  for (int i = 0; i < width; i += kLanes) {
    store(total.values + i, fma(load(part.values + i), take, load(total.values + i) * keep));
  }
}

inline void clear_row(const RunningRow& row, int width) {
  *row.maximum = kMinusInfinity;
  *row.sum = 0.0f;
  std::memset(row.values, 0, sizeof(float) * static_cast<std::size_t>(width));
}

inline void write_row(const RunningRow& row, int head_dim, float* out) {
  const float scale = 1.0f / *row.sum;
  for (int i = 0; i < head_dim; ++i) out[i] = row.values[i] * scale;
}

struct Scratch {
  float* q;       // [rows][head_dim], scaled
  float* scores;  // [rows][kKeyTile]
  float* keys;    // panels of 16 positions, [head_dim][16]
  float* values;  // [kKeyTile][padded]
  float* part;    // per row: maximum, sum, then values, like AttentionItem::partial
  float* total;
};

inline std::ptrdiff_t partial_size(int head_dim) { return kPanelWidth + padded_dim(head_dim); }

inline RunningRow running_row(float* rows, int head_dim, std::ptrdiff_t r) {
  float* row = rows + r * partial_size(head_dim);
  return {row, row + 1, row + kPanelWidth};
}

inline std::size_t attention_scratch(const AttentionArgs& a, int num_tokens) {
  const std::size_t dim = static_cast<std::size_t>(padded_dim(a.cache.head_dim));
  const std::size_t rows = static_cast<std::size_t>(num_tokens * a.group);
  return sizeof(float) * (rows * (3 * dim + 2 * kPanelWidth + kKeyTile) + 2 * kKeyTile * dim);
}

inline Scratch split_scratch(const AttentionArgs& a, std::ptrdiff_t rows, void* memory) {
  const std::ptrdiff_t dim = padded_dim(a.cache.head_dim), partial = partial_size(a.cache.head_dim);
  Scratch s;
  s.q = static_cast<float*>(memory);
  s.scores = s.q + rows * dim;
  s.keys = s.scores + rows * kKeyTile;
  s.values = s.keys + kKeyTile * dim;
  s.part = s.values + kKeyTile * dim;
  s.total = s.part + rows * partial;
  return s;
}

struct Float16 {
  using Stored = std::uint16_t;
  static vf load(const std::uint16_t* p) { return load_f16(p); }
};
struct BFloat16 {
  using Stored = std::uint16_t;
  static vf load(const std::uint16_t* p) { return load_bf16(p); }
};

// body(element) with the one that the cache holds.
template <typename Body>
inline void with_element(CacheType type, Body&& body) {
  switch (type) {
    case CacheType::F32: body(Float32()); break;
    case CacheType::F16: body(Float16()); break;
    case CacheType::BF16: body(BFloat16()); break;
  }
}

// n values in a row of the cache as float32.
template <typename Element>
inline void widen(const typename Element::Stored* in, int n, float* out) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, Element::load(in + i));
  if (i < n) {
    typename Element::Stored last[kLanes] = {};
    std::memcpy(last, in + i, sizeof(last[0]) * static_cast<std::size_t>(n - i));
    store_part(out + i, Element::load(last), n - i);
  }
}

// Where a block of the sequence begins in keys and in values, this head.
inline std::ptrdiff_t block_start(const AttentionArgs& a, const AttentionItem& item, int position) {
  const int size = a.cache.block_size;
  const std::ptrdiff_t block = item.blocks[position / size];
  return (block * a.cache.num_kv_heads + item.kv_head) * size * a.cache.head_dim;
}

// Ask for the block that holds this position, in one head's part of the cache, before it is needed.
// Blocks lie anywhere in memory, so the machine cannot foresee the next one by itself.
inline void prefetch_block(const AttentionArgs& a, const AttentionItem& item, int position) {
  constexpr std::ptrdiff_t kLine = 64;
  const std::ptrdiff_t values = static_cast<std::ptrdiff_t>(a.cache.block_size) * a.cache.head_dim;
  const std::ptrdiff_t bytes = values * (a.cache.type == CacheType::F32 ? 4 : 2);
  const std::ptrdiff_t start = block_start(a, item, position) / values * bytes;
  for (std::ptrdiff_t at = start; at < start + bytes; at += kLine) {
    __builtin_prefetch(static_cast<const char*>(a.cache.keys) + at);
    __builtin_prefetch(static_cast<const char*>(a.cache.values) + at);
  }
}

// Keys and values of positions [begin, end), end - begin <= kKeyTile, begin a multiple of it.
template <typename Element>
void load_tile_of_cache(const AttentionArgs& a, const AttentionItem& item, int begin, int end,
                        const Scratch& s) {
  const int dim = a.cache.head_dim, size = a.cache.block_size, padded = padded_dim(dim);
  const int run = size < kPanelWidth ? size : kPanelWidth;  // positions that lie side by side
  const int num_positions = item.first_position + item.num_tokens;
  for (int position = begin; position < end; position += run) {
    const int ahead = position + kKeyTile;
    if (size < kKeyTile && ahead % size == 0 && ahead < num_positions) {
      prefetch_block(a, item, ahead);
    }
    const std::ptrdiff_t start = block_start(a, item, position);
    const int offset = position % size, local = position - begin;
    float* panel = s.keys + local / kPanelWidth * kPanelWidth * dim + local % kPanelWidth;
    const auto* keys = static_cast<const typename Element::Stored*>(a.cache.keys) + start + offset;
    const auto* values = static_cast<const typename Element::Stored*>(a.cache.values) + start;
    for (int d = 0; d < dim; ++d) {
      if (run == kPanelWidth) {  // a constant count
        widen<Element>(keys + d * size, kPanelWidth, panel + d * kPanelWidth);
      } else {
        widen<Element>(keys + d * size, run, panel + d * kPanelWidth);
      }
    }
    const int count = end - position < run ? end - position : run;
    for (int i = 0; i < count; ++i) {
      float* row = s.values + (local + i) * padded;
      widen<Element>(values + (offset + i) * dim, dim, row);
      for (int d = dim; d < padded; ++d) row[d] = 0.0f;
    }
  }
}

// Turn scores of one row into weights, for tile columns [begin, end), and update the softmax.
inline void weigh(float* scores, int begin, int end, const RunningRow& row, int width) {
  constexpr int kCount = kKeyTile / kLanes;
  vf s[kCount];
  vf largest = set1(kMinusInfinity);
  for (int i = 0; i < kCount; ++i) {
    const vi at = lane_indices() + i * kLanes;
    const vf value = load(scores + i * kLanes);
    s[i] = (at >= begin) & (at < end) ? value : set1(kMinusInfinity);
    largest = max(largest, s[i]);
  }
  const float tile_maximum = max_lanes(largest);
  const float maximum = tile_maximum > *row.maximum ? tile_maximum : *row.maximum;
  const float keep = exp1(*row.maximum - maximum);
  vf sum{};
  for (int i = 0; i < kCount; ++i) {
    const vf weight = exp(s[i] - maximum);
    store(scores + i * kLanes, weight);
    sum += weight;
  }
  *row.sum = *row.sum * keep + sum_lanes(sum);
  *row.maximum = maximum;
  scale_row(row.values, keep, width);
}

struct Sight {
  int begin, end;
  bool operator==(const Sight& other) const { return begin == other.begin && end == other.end; }
};

// The first position that the query at `position` sees.
inline int first_in_sight(const AttentionArgs& a, int position) {
  return position >= a.window ? position - a.window + 1 : 0;
}

// The columns of the tile at `tile` that the query at `position` sees.
inline Sight sight_of(const AttentionArgs& a, int position, int tile) {
  const int first = first_in_sight(a, position);
  const int begin = first > tile ? first - tile : 0;
  const int end = position + 1 - tile < kKeyTile ? position + 1 - tile : kKeyTile;
  return {begin, end > begin ? end : begin};
}

// Few query rows read keys and values where they lie: to widen them to scratch costs more than it
// saves. Heads of whole panels only, since nothing may be read behind the last value.
constexpr int kDirectRows = 8;

inline bool reads_directly(const AttentionArgs& a, int num_rows) {
  return num_rows <= kDirectRows && a.cache.block_size >= kPanelWidth &&
         a.cache.head_dim % kPanelWidth == 0;
}

// Reading where they lie, each row asks for the same row of the tile after this one, because blocks
// lie anywhere in memory and the machine cannot foresee the next. Evenly, since it can wait for few
// lines at a time.

// The keys of a tile: panels of sixteen positions, each somewhere else.
template <typename Element>
struct CachedKeys {
  const typename Element::Stored* panels[kKeyTile / kPanelWidth];
  const typename Element::Stored* ahead[kKeyTile / kPanelWidth];
  std::ptrdiff_t row_stride;
  std::ptrdiff_t row = 0;
  int first = 0;

  void skip(int count) { first += count; }
  void next_row() { row += row_stride; }
  vf get(int p, int v) const {
    if (v == 0) __builtin_prefetch(ahead[first + p] + row);
    return Element::load(panels[first + p] + row + v * kLanes);
  }
};

// The values of positions in one block.
template <typename Element>
struct CachedValues {
  const typename Element::Stored* rows;
  std::ptrdiff_t ahead;
  std::ptrdiff_t row_stride;

  void skip(int panels) { rows += panels * kPanelWidth; }
  void next_row() { rows += row_stride; }
  vf get(int p, int v) const {
    const auto* panel = rows + p * kPanelWidth;
    if (v == 0) __builtin_prefetch(panel + ahead);
    return Element::load(panel + v * kLanes);
  }
};

// The position a tile further on, or this one where the sequence ends.
inline int position_ahead(const AttentionItem& item, int position) {
  const int ahead = position + kKeyTile;
  return ahead < item.first_position + item.num_tokens ? ahead : position;
}

template <typename Element>
CachedKeys<Element> cached_keys(const AttentionArgs& a, const AttentionItem& item, int tile,
                                int num_panels) {
  const int size = a.cache.block_size;
  const auto* all = static_cast<const typename Element::Stored*>(a.cache.keys);
  const auto at = [&](int position) {
    return all + block_start(a, item, position) + position % size;
  };
  CachedKeys<Element> keys{{}, {}, size};
  for (int p = 0; p < num_panels; ++p) {
    const int position = tile + p * kPanelWidth;
    keys.panels[p] = at(position);
    keys.ahead[p] = at(position_ahead(item, position));
  }
  return keys;
}

// Weighted values of mix.depth positions from `begin` on, added block by block.
template <typename Element>
void mix_cached_values(const AttentionArgs& a, const AttentionItem& item, int begin,
                       TileOperands mix, int num_rows) {
  const int dim = a.cache.head_dim, size = a.cache.block_size, end = begin + mix.depth;
  const auto* all = static_cast<const typename Element::Stored*>(a.cache.values);
  for (int position = begin; position < end; position += mix.depth) {
    const int left = end - position, offset = position % size;
    mix.depth = left < size - offset ? left : size - offset;
    const std::ptrdiff_t start = block_start(a, item, position);
    const std::ptrdiff_t ahead = block_start(a, item, position_ahead(item, position)) - start;
    const CachedValues<Element> values{all + start + offset * dim, ahead, dim};
    run_tiles(mix, values, num_rows, dim / kPanelWidth);
    mix.x += mix.depth;
  }
}

inline void attend_tile(const AttentionArgs& a, const AttentionItem& item, int tile,
                        const Scratch& s) {
  const int dim = a.cache.head_dim, padded = padded_dim(dim);
  const int last = item.first_position + item.num_tokens;
  // Tokens that see something here: a stretch, since sight moves with the position.
  int first = 0, past = item.num_tokens;
  const auto sees = [&](int token) {
    const Sight sight = sight_of(a, item.first_position + token, tile);
    return sight.begin < sight.end;
  };
  while (first < past && !sees(first)) ++first;
  while (first < past && !sees(past - 1)) --past;
  if (first == past) return;

  const int end = last - tile < kKeyTile ? last : tile + kKeyTile;
  const int row_begin = first * a.group, num_rows = (past - first) * a.group;
  const bool direct = reads_directly(a, num_rows);
  if (!direct) {
    with_element(a.cache.type, [&](auto element) {
      load_tile_of_cache<decltype(element)>(a, item, tile, end, s);
    });
  }
  const int num_panels = (end - tile + kPanelWidth - 1) / kPanelWidth;
  const TileOperands score{
      s.q + row_begin * dim, dim, dim, s.scores + row_begin * kKeyTile, kKeyTile, false};
  if (direct) {
    with_element(a.cache.type, [&](auto element) {
      run_tiles(score, cached_keys<decltype(element)>(a, item, tile, num_panels), num_rows,
                num_panels);
    });
  } else {
    const EvenPanels<Float32> keys{s.keys, static_cast<std::ptrdiff_t>(dim) * kPanelWidth,
                                   kPanelWidth};
    run_tiles(score, keys, num_rows, num_panels);
  }

  for (int token = first; token < past;) {
    const Sight sight = sight_of(a, item.first_position + token, tile);
    int next = token + 1;
    while (next < past && sight_of(a, item.first_position + next, tile) == sight) ++next;
    const int row = token * a.group, rows = (next - token) * a.group;
    for (int r = row; r < row + rows; ++r) {
      weigh(s.scores + r * kKeyTile, sight.begin, sight.end, running_row(s.part, dim, r), padded);
    }
    const TileOperands mix{s.scores + row * kKeyTile + sight.begin,
                           kKeyTile,
                           sight.end - sight.begin,
                           running_row(s.part, dim, row).values,
                           partial_size(dim),
                           true};
    if (direct) {
      with_element(a.cache.type, [&](auto element) {
        mix_cached_values<decltype(element)>(a, item, tile + sight.begin, mix, rows);
      });
    } else {
      const EvenPanels<Float32> values{s.values + sight.begin * padded, kPanelWidth, padded};
      run_tiles(mix, values, rows, padded / kPanelWidth);
    }
    token = next;
  }
}

inline void attention(const AttentionArgs& a, const AttentionItem& item, void* memory) {
  const int dim = a.cache.head_dim, padded = padded_dim(dim);
  const std::ptrdiff_t rows = item.num_tokens * a.group;
  const Scratch s = split_scratch(a, rows, memory);
  for (int t = 0; t < item.num_tokens; ++t) {
    const float* q = a.q + (item.first_row + t) * a.q_stride + item.kv_head * a.group * dim;
    for (int i = 0; i < a.group * dim; ++i) s.q[t * a.group * dim + i] = q[i] * a.scale;
  }
  for (std::ptrdiff_t r = 0; r < rows; ++r) clear_row(running_row(s.total, dim, r), padded);

  const int num_positions = item.first_position + item.num_tokens;
  const int lowest = first_in_sight(a, item.first_position);
  const int begin = item.partition < 0 ? lowest / kPartition : item.partition;
  const int end = item.partition < 0 ? (num_positions + kPartition - 1) / kPartition : begin + 1;
  for (int partition = begin; partition < end; ++partition) {
    for (std::ptrdiff_t r = 0; r < rows; ++r) clear_row(running_row(s.part, dim, r), padded);
    for (int t = 0; t < kPartition; t += kKeyTile) {
      const int tile = partition * kPartition + t;
      if (tile < num_positions) attend_tile(a, item, tile, s);
    }
    if (item.partition >= 0) {
      std::memcpy(item.partial, s.part,
                  sizeof(float) * static_cast<std::size_t>(rows * partial_size(dim)));
      return;
    }
    for (std::ptrdiff_t r = 0; r < rows; ++r) {
      const RunningRow part = running_row(s.part, dim, r);
      if (*part.sum != 0.0f) merge_row(running_row(s.total, dim, r), part, padded);
    }
  }
  for (std::ptrdiff_t r = 0; r < rows; ++r) {
    float* out = a.out + (item.first_row + r / a.group) * a.out_stride +
                 (item.kv_head * a.group + r % a.group) * dim;
    write_row(running_row(s.total, dim, r), dim, out);
  }
}

inline void merge(const AttentionArgs& a, const MergeItem& item, void* memory) {
  const int dim = a.cache.head_dim, padded = padded_dim(dim);
  float* memory_row = static_cast<float*>(memory);
  const RunningRow total{memory_row, memory_row + 1, memory_row + kPanelWidth};
  clear_row(total, padded);
  for (int p = 0; p < item.num_partials; ++p) {
    float* part = item.partials + p * item.partial_stride;
    const RunningRow row{part, part + 1, part + kPanelWidth};
    if (*row.sum != 0.0f) merge_row(total, row, padded);
  }
  write_row(total, dim, a.out + item.row * a.out_stride + item.head * dim);
}

}  // namespace
}  // namespace headrace

// Attention through the paged cache with a running softmax. What is added to what depends only on
// a query's absolute position: key tiles and partitions begin at fixed places, keys out of sight
// are left out of every sum, and partitions are merged in order.
#pragma once

#include "simd/cached_tile.h"
#include "simd/rope.h"

namespace headrace {
namespace {

struct Scratch {
  float* q;       // [rows][head_dim], scaled
  float* scores;  // [rows][kKeyTile]
  float* keys;    // panels of 16 positions, [head_dim][16]
  float* values;  // [kKeyTile][padded]
  float* part;    // rows of the partition at work
  float* total;   // rows of all before it
};

inline std::size_t attention_scratch(const AttentionArgs& a, int num_tokens) {
  const std::size_t dim = static_cast<std::size_t>(padded_dim(a.cache.head_dim));
  const std::size_t rows = static_cast<std::size_t>(num_tokens * a.group);
  const std::size_t partial = static_cast<std::size_t>(partial_size(a.cache.head_dim));
  return sizeof(float) * (rows * (dim + kKeyTile + 2 * partial) + 2 * kKeyTile * dim);
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

// Ask for the block that holds this position, in one head's part of the cache, before it is needed.
inline void prefetch_block(const AttentionArgs& a, const AttentionItem& item, int position) {
  constexpr std::ptrdiff_t kLine = 64;
  const std::ptrdiff_t values = static_cast<std::ptrdiff_t>(a.cache.block_size) * a.cache.head_dim;
  const std::ptrdiff_t bytes = values * (a.cache.type == CacheType::F32 ? 4 : 2);
  const std::ptrdiff_t start = block_start(a, item, position) / values * bytes;
  for (std::ptrdiff_t at = start; at < start + bytes; at += kLine) {
    prefetch_to_read(static_cast<const char*>(a.cache.keys) + at);
    prefetch_to_read(static_cast<const char*>(a.cache.values) + at);
  }
}

// Keys and values of positions [begin, end), end - begin <= kKeyTile, begin a multiple of it.
template <typename Element>
void widen_tile(const AttentionArgs& a, const AttentionItem& item, int begin, int end,
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

// Consecutive tokens of an item that see something of a tile, and the columns all of them see.
struct TileView {
  int first, past;
  Sight common;
};

inline TileView view_of(const AttentionArgs& a, const AttentionItem& item, int tile) {
  const auto sight = [&](int token) { return sight_of(a, item.first_position + token, tile); };
  const auto sees = [&](int token) { return sight(token).begin < sight(token).end; };
  int first = 0, past = item.num_tokens;
  while (first < past && !sees(first)) ++first;
  while (first < past && !sees(past - 1)) --past;
  if (first == past) return {first, past, {0, 0}};
  // Sight moves on with the position: the first token sees least at the end, the last at the start.
  return {first, past, {sight(past - 1).begin, sight(first).end}};
}

// Add the weighted values of `sight`, one row after the other in the order of positions.
inline void mix_widened(const AttentionArgs& a, const Scratch& s, Sight sight, int row,
                        int num_rows, float* part) {
  if (sight.begin >= sight.end) return;
  const int dim = a.cache.head_dim, padded = padded_dim(dim);
  const TileOperands mix{s.scores + row * kKeyTile + sight.begin, kKeyTile,
                         sight.end - sight.begin, running_row(part, dim, row).values,
                         partial_size(dim), true};
  const EvenPanels<Float32> values{s.values + sight.begin * padded, kPanelWidth, padded};
  run_tiles(mix, values, num_rows, padded / kPanelWidth);
}

inline void attend_widened(const AttentionArgs& a, const AttentionItem& item, int tile, int end,
                           const TileView& view, const Scratch& s, float* part) {
  const int dim = a.cache.head_dim, group = a.group;
  with_element(a.cache.type, [&](auto element) {
    widen_tile<decltype(element)>(a, item, tile, end, s);
  });
  const int row = view.first * group, num_rows = (view.past - view.first) * group;
  const TileOperands score{s.q + row * dim, dim, dim, s.scores + row * kKeyTile, kKeyTile, false};
  const EvenPanels<Float32> keys{s.keys, static_cast<std::ptrdiff_t>(dim) * kPanelWidth,
                                 kPanelWidth};
  run_tiles(score, keys, num_rows, (end - tile + kPanelWidth - 1) / kPanelWidth);

  Sight common = view.common;
  if (common.is_whole()) {
    weigh_rows(s.scores + row * kKeyTile, num_rows, common, part + row * partial_size(dim), dim);
    mix_widened(a, s, common, row, num_rows, part);
    return;
  }
  if (common.end < common.begin) common.end = common.begin;
  const auto each_token = [&](auto&& body) {
    for (int token = view.first; token < view.past; ++token) {
      body(token * group, sight_of(a, item.first_position + token, tile));
    }
  };
  each_token([&](int r, Sight sight) {
    weigh_rows(s.scores + r * kKeyTile, group, sight, part + r * partial_size(dim), dim);
    const int before = sight.end < common.begin ? sight.end : common.begin;
    mix_widened(a, s, {sight.begin, before}, r, group, part);
  });
  mix_widened(a, s, common, row, num_rows, part);
  each_token([&](int r, Sight sight) {
    const int after = sight.begin > common.end ? sight.begin : common.end;
    mix_widened(a, s, {after, sight.end}, r, group, part);
  });
}

template <typename Element>
void attend_cached(const AttentionArgs& a, const AttentionItem& item, int tile, int end,
                   const TileView& view, const Scratch& s, float* part) {
  const int dim = a.cache.head_dim, group = a.group;
  const CachedTile<Element> cached(a, item, tile, end);
  const int row = view.first * group, num_rows = (view.past - view.first) * group;
  score_cached(cached, (end - tile + kPanelWidth - 1) / kPanelWidth, s.q + row * dim, num_rows,
               s.scores + row * kKeyTile);
  const auto weigh_and_mix = [&](int r, int rows, Sight sight) {
    float* scores = s.scores + r * kKeyTile;
    weigh_rows(scores, rows, sight, part + r * partial_size(dim), dim);
    mix_cached(cached, sight, scores, rows, running_row(part, dim, r).values, partial_size(dim));
  };
  if (view.common.is_whole()) {
    weigh_and_mix(row, num_rows, view.common);
    return;
  }
  for (int token = view.first; token < view.past; ++token) {
    weigh_and_mix(token * group, group, sight_of(a, item.first_position + token, tile));
  }
}

inline void attend_tile(const AttentionArgs& a, const AttentionItem& item, int tile,
                        const Scratch& s, float* part) {
  const TileView view = view_of(a, item, tile);
  if (view.first == view.past) return;
  const int last = item.first_position + item.num_tokens;
  const int end = last - tile < kKeyTile ? last : tile + kKeyTile;
  if (reads_cached(a, (view.past - view.first) * a.group)) {
    with_element(a.cache.type, [&](auto element) {
      attend_cached<decltype(element)>(a, item, tile, end, view, s, part);
    });
  } else {
    attend_widened(a, item, tile, end, view, s, part);
  }
}

// Within an item tiles ask for each other in time; its first tile the item before asks for. Large
// blocks are left to the machine, which foresees them.
inline void prefetch_first_tile(const AttentionArgs& a, const AttentionItem& item) {
  if (a.cache.block_size > kKeyTile) return;
  const int begin = item.first_partition * kPartition;
  const int lowest = first_in_sight(a, item.first_position) / kKeyTile * kKeyTile;
  const int tile = begin > lowest ? begin : lowest;
  const int past = item.first_position + item.num_tokens;
  const int end = past < tile + kKeyTile ? past : tile + kKeyTile;
  for (int position = tile; position < end; position += a.cache.block_size) {
    prefetch_block(a, item, position);
  }
}

// One partition from its beginning, into `part`. `next` is the item after, if this is the last.
inline void attend_partition(const AttentionArgs& a, const AttentionItem& item, int partition,
                             const AttentionItem* next, const Scratch& s, float* part) {
  const int dim = a.cache.head_dim, rows = item.num_tokens * a.group;
  for (int r = 0; r < rows; ++r) clear_row(running_row(part, dim, r), padded_dim(dim));
  const int past = item.first_position + item.num_tokens, begin = partition * kPartition;
  const int end = past < begin + kPartition ? past : begin + kPartition;
  for (int tile = begin; tile < end; tile += kKeyTile) {
    if (next && tile + kKeyTile >= end) prefetch_first_tile(a, *next);
    attend_tile(a, item, tile, s, part);
  }
}

inline void attend_item(const AttentionArgs& a, const AttentionItem& item,
                        const AttentionItem* next, const Scratch& s) {
  const int dim = a.cache.head_dim, padded = padded_dim(dim);
  const std::ptrdiff_t rows = item.num_tokens * a.group;
  const float scale = a.scale * kLog2E;
  for (int t = 0; t < item.num_tokens; ++t) {
    const float* q = a.q + (item.first_row + t) * a.q_stride + item.kv_head * a.group * dim;
    for (int i = 0; i < a.group * dim; ++i) s.q[t * a.group * dim + i] = q[i] * scale;
  }
  const bool is_whole = item.partials_at < 0;
  float* part = is_whole ? s.part : a.partials + item.partials_at;
  float* result = s.part;
  for (int p = 0; p < item.num_partitions; ++p) {
    const bool is_last = p + 1 == item.num_partitions;
    attend_partition(a, item, item.first_partition + p, is_last ? next : nullptr, s, part);
    if (!is_whole) {
      part += rows * partial_size(dim);
    } else if (item.num_partitions > 1) {
      result = s.total;
      for (std::ptrdiff_t r = 0; r < rows; ++r) {
        const RunningRow total = running_row(s.total, dim, r);
        if (p == 0) clear_row(total, padded);
        merge_row(total, running_row(s.part, dim, r), padded);
      }
    }
  }
  for (std::ptrdiff_t r = 0; is_whole && r < rows; ++r) {
    float* out = a.out + (item.first_row + r / a.group) * a.out_stride +
                 (item.kv_head * a.group + r % a.group) * dim;
    write_row(running_row(result, dim, r), dim, out);
  }
}

inline void attention(const AttentionArgs& a, const AttentionItem* items, int num_items,
                      const RopeArgs* rope, void* memory) {
  prefetch_first_tile(a, items[0]);
  for (int i = 0; i < num_items; ++i) {
    const AttentionItem& item = items[i];
    if (rope) {
      rope_and_cache(*rope, item.first_row, item.first_row + item.num_tokens, item.kv_head,
                     item.kv_head + 1);
    }
    attend_item(a, item, i + 1 < num_items ? items + i + 1 : nullptr,
                split_scratch(a, item.num_tokens * a.group, memory));
  }
}

inline void merge(const AttentionArgs& a, const MergeItem& item) {
  const int dim = a.cache.head_dim;
  // Into the first: it is not needed again.
  float* partials = a.partials + item.partials_at;
  const RunningRow total = running_row(partials, dim, 0);
  for (int p = 1; p < item.num_partials; ++p) {
    merge_row(total, running_row(partials + p * item.partial_stride, dim, 0), padded_dim(dim));
  }
  write_row(total, dim, a.out + item.row * a.out_stride + item.head * dim);
}

}  // namespace
}  // namespace headrace

// The running softmax of attention: one row per query and head, fed tile by tile. Scores are in
// units of log2, so that a weight is a power of two.
#pragma once

#include "simd/vec.h"

namespace headrace {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();
constexpr float kLog2E = 1.44269504f;

inline int padded_dim(int head_dim) {
  return (head_dim + kPanelWidth - 1) / kPanelWidth * kPanelWidth;
}

// 2^x for x <= 0 within 2 ulp: exactly 1 at 0, 2^-126 below that, NaN for NaN.
inline vf exp2_of_negative(vf x) {
  x = max(set1(-126.0f), x);
  // x = n + r, and n an integer.
  const vf shifted = x + kRoundToInteger;
  const vf r = x - (shifted - kRoundToInteger);
  vf p = set1(1.326472731e-3f);
  p = fma(p, r, set1(9.671512991e-3f));
  p = fma(p, r, set1(5.550733581e-2f));
  p = fma(p, r, set1(2.402224243e-1f));
  p = fma(p, r, set1(6.931470037e-1f));
  p = fma(p, r, set1(1.0f));
  return as_float(as_bits(p) + (as_bits(shifted) << 23));
}

inline float exp2_of_negative(float x) { return exp2_of_negative(set1(x))[0]; }

// The softmax so far of one row: largest score, sums of weights (of every kLanes-th position, so
// that they are added up only once), weighted sum of values.
struct RunningRow {
  float* sums;
  float* maximum;
  float* values;
};

// Floats of a row in memory.
inline std::ptrdiff_t partial_size(int head_dim) { return 2 * kPanelWidth + padded_dim(head_dim); }

inline RunningRow running_row(float* rows, int head_dim, std::ptrdiff_t r) {
  float* row = rows + r * partial_size(head_dim);
  return {row, row + kPanelWidth, row + 2 * kPanelWidth};
}

inline void clear_row(const RunningRow& row, int width) {
  *row.maximum = kMinusInfinity;
  store(row.sums, vf{});
  for (int i = 0; i < width; i += kLanes) store(row.values + i, vf{});
}

// Whether no position was in sight: such a row adds nothing, not even a changed sign of zero.
inline bool is_empty(const RunningRow& row) {
  return *row.maximum == kMinusInfinity && sum_lanes(load(row.sums)) == 0.0f;
}

inline void scale_row(const RunningRow& row, float factor, int width) {
  store(row.sums, load(row.sums) * factor);
  for (int i = 0; i < width; i += kLanes) store(row.values + i, load(row.values + i) * factor);
}

// Fold a finished partition into those before it.
inline void merge_row(const RunningRow& total, const RunningRow& part, int width) {
  if (is_empty(part)) return;
  if (is_empty(total)) {
    *total.maximum = *part.maximum;
    store(total.sums, load(part.sums));
    for (int i = 0; i < width; i += kLanes) store(total.values + i, load(part.values + i));
    return;
  }
  const float maximum = *part.maximum > *total.maximum ? *part.maximum : *total.maximum;
  const vf keep = set1(exp2_of_negative(*total.maximum - maximum));
  const vf take = set1(exp2_of_negative(*part.maximum - maximum));
  *total.maximum = maximum;
  store(total.sums, fma(load(part.sums), take, load(total.sums) * keep));
  for (int i = 0; i < width; i += kLanes) {
    store(total.values + i, fma(load(part.values + i), take, load(total.values + i) * keep));
  }
}

inline void write_row(const RunningRow& row, int head_dim, float* out) {
  const float scale = 1.0f / sum_lanes(load(row.sums));
  int i = 0;
  for (; i + kLanes <= head_dim; i += kLanes) store(out + i, load(row.values + i) * scale);
  if (i < head_dim) store_part(out + i, load(row.values + i) * scale, head_dim - i);
}

// The columns of a tile that a query sees.
struct Sight {
  int begin, end;
  bool is_whole() const { return begin == 0 && end == kKeyTile; }
};

inline vi in_sight(Sight sight, int column) {
  const vi at = lane_indices() + column;
  return (at >= sight.begin) & (at < sight.end);
}

// Take the tile's largest score into account; scores out of sight become minus infinity.
template <bool Masked>
inline void raise_maximum(float* scores, Sight sight, const RunningRow& row, int width) {
  vf largest = set1(kMinusInfinity);
  for (int i = 0; i < kKeyTile; i += kLanes) {
    vf score = load(scores + i);
    if constexpr (Masked) score = in_sight(sight, i) ? score : set1(kMinusInfinity);
    largest = max(largest, score);
  }
  const float maximum = max_lanes(largest);
  if (maximum > *row.maximum) {
    scale_row(row, exp2_of_negative(*row.maximum - maximum), width);
    *row.maximum = maximum;
  }
}

// Turn the scores into weights and add them up.
template <bool Masked>
inline void weigh(float* scores, Sight sight, const RunningRow& row) {
  const vf maximum = set1(*row.maximum);
  vf sums = load(row.sums);
  for (int i = 0; i < kKeyTile; i += kLanes) {
    vf weight = exp2_of_negative(load(scores + i) - maximum);
    if constexpr (Masked) weight = in_sight(sight, i) ? weight : vf{};
    store(scores + i, weight);
    sums += weight;
  }
  store(row.sums, sums);
}

// Scores [num_rows][kKeyTile] of rows that see the same columns become weights. In two passes,
// because what one row waits for another can fill.
inline void weigh_rows(float* scores, int num_rows, Sight sight, float* rows, int head_dim) {
  const int width = padded_dim(head_dim);
  const bool whole = sight.is_whole();
  for (int r = 0; r < num_rows; ++r) {
    const RunningRow row = running_row(rows, head_dim, r);
    float* mine = scores + r * kKeyTile;
    whole ? raise_maximum<false>(mine, sight, row, width)
          : raise_maximum<true>(mine, sight, row, width);
  }
  for (int r = 0; r < num_rows; ++r) {
    const RunningRow row = running_row(rows, head_dim, r);
    float* mine = scores + r * kKeyTile;
    whole ? weigh<false>(mine, sight, row) : weigh<true>(mine, sight, row);
  }
}

}  // namespace
}  // namespace headrace

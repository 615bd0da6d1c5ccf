// Row norms and sums, and the rounding of rows to bfloat16.
#pragma once

#include "simd/math.h"

namespace headrace {
namespace {

// Sum of squares of n values, in an order that depends on n alone.
inline float sum_squares(const float* x, int n) {
  vf sums[4] = {};
  int i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int u = 0; u < 4; ++u) {
      const vf v = load(x + i + u * kLanes);
      sums[u] = fma(v, v, sums[u]);
    }
  }
  for (; i < n; i += kLanes) {
    const vf v = n - i < kLanes ? load_part(x + i, n - i) : load(x + i);
    sums[0] = fma(v, v, sums[0]);
  }
  return sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

inline void norm_row(const float* x, const float* weight, float eps, int width, float* y) {
  const float mean = sum_squares(x, width) / static_cast<float>(width);
  const float scale = 1.0f / __builtin_sqrtf(mean + eps);
  for (int i = 0; i < width; ++i) y[i] = x[i] * scale * weight[i];
}

inline void rms_norm(const NormArgs& a, int row_begin, int row_end) {
  for (int r = row_begin; r < row_end; ++r) {
    norm_row(a.x + r * a.x_stride, a.weight, a.eps, a.width, a.y + r * a.y_stride);
  }
}

inline void add(const AddArgs& a, int row_begin, int row_end) {
  for (int r = row_begin; r < row_end; ++r) {
    const float* x = a.x + r * a.x_stride;
    const float* y = a.y + r * a.y_stride;
    float* sum = a.sum + r * a.sum_stride;
    for (int i = 0; i < a.width; ++i) sum[i] = x[i] + y[i];
  }
}

inline void round_rows(const float* x, std::ptrdiff_t x_stride, int width, std::uint16_t* out,
                       std::ptrdiff_t out_stride, int num_rows) {
  for (int r = 0; r < num_rows; ++r, x += x_stride, out += out_stride) {
    int i = 0;
    for (; i + kLanes <= width; i += kLanes) store_bf16(out + i, load(x + i));
    if (i < width) {
      std::uint16_t last[kLanes];
      store_bf16(last, load_part(x + i, width - i));
      std::memcpy(out + i, last, sizeof(std::uint16_t) * static_cast<std::size_t>(width - i));
    }
    for (i = width; i < out_stride; ++i) out[i] = 0;
  }
}

}  // namespace
}  // namespace headrace

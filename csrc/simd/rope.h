// Norm and rotation of queries and keys, and the write of keys and values to the cache.
#pragma once

#include "simd/norm.h"

namespace headrace {
namespace {

constexpr int kMaxHeadDim = 1024;

inline void rotate(const float* x, const float* rope, int num_pairs, int head_dim, float* y) {
  const float* cos = rope;
  const float* sin = rope + num_pairs;
  for (int i = 0; i < num_pairs; ++i) {
    const float first = x[i], second = x[i + num_pairs];
    y[i] = first * cos[i] - second * sin[i];
    y[i + num_pairs] = second * cos[i] + first * sin[i];
  }
  for (int i = 2 * num_pairs; i < head_dim; ++i) y[i] = x[i];
}

inline void round_to_f16(const float* x, int n, std::uint16_t* out) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store_f16(out + i, load(x + i));
  if (i < n) {
    std::uint16_t last[kLanes];
    store_f16(last, load_part(x + i, n - i));
    std::memcpy(out + i, last, sizeof(std::uint16_t) * static_cast<std::size_t>(n - i));
  }
}

inline void write_cache(void* cache, CacheType type, std::ptrdiff_t at, std::ptrdiff_t step,
                        const float* x, int n) {
  if (type == CacheType::F32) {
    float* out = static_cast<float*>(cache) + at;
    for (int i = 0; i < n; ++i) out[i * step] = x[i];
    return;
  }
  std::uint16_t* out = static_cast<std::uint16_t*>(cache) + at;
  std::uint16_t rounded[kMaxHeadDim];
  if (type == CacheType::F16) {
    round_to_f16(x, n, rounded);
  } else {
    round_rows(x, 0, n, rounded, n, 1);
  }
  for (int i = 0; i < n; ++i) out[i * step] = rounded[i];
}

inline void rope_and_cache(const RopeArgs& a, int row_begin, int row_end) {
  const int dim = a.cache.head_dim, size = a.cache.block_size, heads = a.cache.num_kv_heads;
  float normed[kMaxHeadDim], rotated[kMaxHeadDim];
  for (int r = row_begin; r < row_end; ++r) {
    const float* x = a.qkv + r * a.qkv_stride;
    const float* rope = a.rope + r * a.rope_stride;
    for (int h = 0; h < a.num_heads; ++h, x += dim) {
      const float* head = x;
      if (a.q_norm) {
        norm_row(x, a.q_norm, a.eps, dim, normed);
        head = normed;
      }
      rotate(head, rope, a.num_pairs, dim, a.q + r * a.q_stride + h * dim);
    }
    const std::ptrdiff_t block = a.slots[r] / size, offset = a.slots[r] % size;
    for (int h = 0; h < heads; ++h, x += dim) {
      const float* head = x;
      if (a.k_norm) {
        norm_row(x, a.k_norm, a.eps, dim, normed);
        head = normed;
      }
      rotate(head, rope, a.num_pairs, dim, rotated);
      const std::ptrdiff_t start = (block * heads + h) * size * dim;
      write_cache(a.cache.keys, a.cache.type, start + offset, size, rotated, dim);
    }
    for (int h = 0; h < heads; ++h, x += dim) {
      const std::ptrdiff_t start = (block * heads + h) * size * dim;
      write_cache(a.cache.values, a.cache.type, start + offset * dim, 1, x, dim);
    }
  }
}

}  // namespace
}  // namespace headrace

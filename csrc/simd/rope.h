// Norm and rotation of queries and keys, and the write of keys and values to the cache.
#pragma once

#include "simd/norm.h"

namespace headrace {
namespace {

constexpr int kMaxHeadDim = 1024;

// y[i], y[i + num_pairs] = the pair x[i], x[i + num_pairs] turned; the rest as it is.
inline void rotate(const float* x, const float* rope, int num_pairs, int head_dim, float* y) {
  const float* cos = rope;
  const float* sin = rope + num_pairs;
  int i = 0;
  for (; i + kLanes <= num_pairs; i += kLanes) {
    const vf first = load(x + i), second = load(x + i + num_pairs);
    const vf c = load(cos + i), s = load(sin + i);
    store(y + i, first * c - second * s);
    store(y + i + num_pairs, second * c + first * s);
  }
  for (; i < num_pairs; ++i) {
    const float first = x[i], second = x[i + num_pairs];
    y[i] = first * cos[i] - second * sin[i];
    y[i + num_pairs] = second * cos[i] + first * sin[i];
  }
  for (i = 2 * num_pairs; i < head_dim; ++i) y[i] = x[i];
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

// Ask for the lines a token's keys and values of some heads go to: the keys of one position lie in
// as many lines as a head has pairs or more, and each would be waited for in turn.
inline void prefetch_slot(const CacheView& cache, std::ptrdiff_t block, std::ptrdiff_t offset,
                          int head_begin, int head_end) {
  const std::ptrdiff_t size = cache.block_size, dim = cache.head_dim;
  const std::ptrdiff_t bytes = cache.type == CacheType::F32 ? 4 : 2;
  const std::ptrdiff_t key_step = size * bytes < 64 ? 64 / (size * bytes) : 1;
  for (int h = head_begin; h < head_end; ++h) {
    const std::ptrdiff_t start = (block * cache.num_kv_heads + h) * size * dim;
    const char* keys = static_cast<const char*>(cache.keys) + (start + offset) * bytes;
    for (std::ptrdiff_t d = 0; d < dim; d += key_step) {
      prefetch_to_write(keys + d * size * bytes);
    }
    const char* values = static_cast<const char*>(cache.values) + (start + offset * dim) * bytes;
    for (std::ptrdiff_t at = 0; at < dim * bytes; at += 64) prefetch_to_write(values + at);
  }
}

inline void rope_and_cache(const RopeArgs& a, int row_begin, int row_end, int head_begin,
                           int head_end) {
  const int dim = a.cache.head_dim, size = a.cache.block_size, heads = a.cache.num_kv_heads;
  const int group = a.num_heads / heads;
  float normed[kMaxHeadDim], rotated[kMaxHeadDim];
  const auto norm = [&](const float* x, const float* weight) {
    if (!weight) return x;
    norm_row(x, weight, a.eps, dim, normed);
    return static_cast<const float*>(normed);
  };
  for (int r = row_begin; r < row_end; ++r) {
    const std::ptrdiff_t block = a.slots[r] / size, offset = a.slots[r] % size;
    prefetch_slot(a.cache, block, offset, head_begin, head_end);
    const float* queries = a.qkv + r * a.qkv_stride;
    const float* rope = a.rope + r * a.rope_stride;
    for (int h = head_begin * group; h < head_end * group; ++h) {
      rotate(norm(queries + h * dim, a.q_norm), rope, a.num_pairs, dim,
             a.q + r * a.q_stride + h * dim);
    }
    const float* keys = queries + a.num_heads * dim;
    const float* values = keys + heads * dim;
    for (int h = head_begin; h < head_end; ++h) {
      const std::ptrdiff_t start = (block * heads + h) * size * dim;
      rotate(norm(keys + h * dim, a.k_norm), rope, a.num_pairs, dim, rotated);
      write_cache(a.cache.keys, a.cache.type, start + offset, size, rotated, dim);
      write_cache(a.cache.values, a.cache.type, start + offset * dim, 1, values + h * dim, dim);
    }
  }
}

}  // namespace
}  // namespace headrace

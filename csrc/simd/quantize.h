// What quantising has in common, of rows and of blocks: the largest magnitude, which the scale is
// made of, and its inverse.
#pragma once

#include <limits>

#include "simd/vec.h"

namespace headrace {
namespace {

constexpr int kBlockVecs = kBlockDepth / kLanes;

inline void load_block(const float* x, vf (&values)[kBlockVecs]) {
#pragma GCC unroll 8
  for (int i = 0; i < kBlockVecs; ++i) values[i] = load(x + i * kLanes);
}

// Magnitudes are compared as integers: in any order, and NaN is the greatest.
inline vi larger_magnitude(vi largest, vf value) {
  const vi magnitude = reinterpret_cast<vi>(value) & 0x7fffffff;
  return magnitude > largest ? magnitude : largest;
}
inline float largest_lane(vi magnitudes) {
  return reduce_lanes(reinterpret_cast<vf>(magnitudes), [](vf a, vf b) {
    const vi p = reinterpret_cast<vi>(a), q = reinterpret_cast<vi>(b);
    return reinterpret_cast<vf>(p > q ? p : q);
  });
}

inline float largest_magnitude(const vf (&values)[kBlockVecs]) {
  vi largest{};
#pragma GCC unroll 8
  for (int i = 0; i < kBlockVecs; ++i) largest = larger_magnitude(largest, values[i]);
  return largest_lane(largest);
}

inline float largest_magnitude(const float* x, int width) {
  vi largest{};
  for (int k = 0; k < width; k += kLanes) {
    const vf value = width - k < kLanes ? load_part(x + k, width - k) : load(x + k);
    largest = larger_magnitude(largest, value);
  }
  return largest_lane(largest);
}

// What values are multiplied by to become codes: the largest code over their largest magnitude.
// Zero where that is so small that this would be infinite, or nearly; and where an infinity or a
// NaN is among the values, which their scale shows.
inline float inverse_scale(float largest, float largest_code) {
  constexpr float kTiny = 1e-30f;
  const bool has_inverse = largest >= kTiny && largest <= std::numeric_limits<float>::max();
  return has_inverse ? largest_code / largest : 0.0f;
}

}  // namespace
}  // namespace headrace

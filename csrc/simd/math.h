// exp and the activations built on it; a lane's result never depends on the other lanes.
#pragma once

#include "simd/vec.h"

namespace headrace {
namespace {

// exp(x) within about 1 ulp; exactly 1 at 0, 0 below -87.3, capped near the largest float.
inline vf exp(vf x) {
  const vf lowest = set1(-87.33654f);
  const vf clamped = min(max(x, lowest), set1(88.3762f));
  // x = n ln 2 + r, and n an integer.
  const vf shifted = fma(clamped, set1(1.44269504f), set1(kRoundToInteger));
  const vf n = shifted - kRoundToInteger;
  const vf r = fma(n, set1(-1.42860677e-6f), fma(n, set1(-0.693145752f), clamped));
  vf p = set1(1.3888889e-3f);
  p = fma(p, r, set1(8.3333333e-3f));
  p = fma(p, r, set1(4.1666668e-2f));
  p = fma(p, r, set1(1.6666667e-1f));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  const vu scaled = as_bits(p) + (as_bits(shifted) << 23);
  return x < lowest ? vf{} : as_float(scaled);
}

// NaN in, NaN out, although `exp` does not pass it on.
inline vf silu(vf x) { return x / (1.0f + exp(-x)); }

// 0.5 x (1 + tanh(u)) = x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
inline vf gelu_tanh(vf x) {
  const vf cubic = fma(x * x * x, set1(0.044715f), x);
  return x / (1.0f + exp(-1.59576912f * cubic));
}

inline vf activate(Activation activation, vf x) {
  return activation == Activation::Silu ? silu(x) : gelu_tanh(x);
}

}  // namespace
}  // namespace headrace

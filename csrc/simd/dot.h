// Dot products of a few neighbours in k, the instructions that integer kernels are made of.
// HEADRACE_INT8_UNSIGNED says whether those of bytes want x + 128, unsigned, instead of x.
#pragma once

#include "simd/vec.h"

namespace headrace {
namespace {

// sum + x . w of four neighbours in k, in every lane.
inline vi dot4(vi sum, vi x, vi w) {
#if HEADRACE_INT8_UNSIGNED && HEADRACE_LANES == 16 && defined(__AVX512VNNI__)
  return reinterpret_cast<vi>(_mm512_dpbusd_epi32(
      reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(x), reinterpret_cast<__m512i>(w)));
#elif HEADRACE_INT8_UNSIGNED && HEADRACE_LANES == 8 && defined(__AVXVNNI__)
  return reinterpret_cast<vi>(_mm256_dpbusd_avx_epi32(
      reinterpret_cast<__m256i>(sum), reinterpret_cast<__m256i>(x), reinterpret_cast<__m256i>(w)));
#elif HEADRACE_INT8_UNSIGNED
  vu total = reinterpret_cast<vu>(sum);
#pragma GCC unroll 4
  for (int shift = 0; shift < 32; shift += 8) {
    const vi value = (x >> shift) & 0xff, weight = (w << (24 - shift)) >> 24;
    total += reinterpret_cast<vu>(value * weight);
  }
  return reinterpret_cast<vi>(total);
#elif HEADRACE_LANES == 8
  // |x| times w with the sign of x. Two products are at most 2 * 127 * 127 < 2^15: no saturation.
  const __m256i sx = reinterpret_cast<__m256i>(x), sw = reinterpret_cast<__m256i>(w);
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(sx), _mm256_sign_epi8(sw, sx));
  return sum + reinterpret_cast<vi>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#else
  // Bytes 0, 2 and 1, 3 of each lane as 16-bit numbers; the sum of two products fits one.
  typedef std::int16_t vs __attribute__((vector_size(4 * kLanes)));
  const vs xs = reinterpret_cast<vs>(x), ws = reinterpret_cast<vs>(w);
  const vs pairs = ((xs << 8) >> 8) * ((ws << 8) >> 8) + (xs >> 8) * (ws >> 8);
  const vi both = reinterpret_cast<vi>(pairs);
  return sum + ((both << 16) >> 16) + (both >> 16);
#endif
}

// sum + a . b of two neighbours in k, in every lane.
inline vi dot2(vi sum, vi a, vi b) {
#if defined(__AVX512VNNI__)
  return reinterpret_cast<vi>(_mm512_dpwssd_epi32(
      reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#else
  return sum + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

}  // namespace
}  // namespace headrace

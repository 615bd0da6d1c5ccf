// A thin wrapper over compiler vectors: kLanes floats, and the few operations that need a
// machine instruction. Everything in simd/ has internal linkage: it is compiled once per
// instruction set, and the linker must never mix the copies.
#pragma once

#include <cstring>
#include <utility>

#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace headrace {
namespace {

constexpr int kLanes = HEADRACE_LANES;
constexpr int kVecs = kPanelWidth / kLanes;  // vectors per panel row
#if HEADRACE_LANES == 16 || defined(__aarch64__)
constexpr bool kManyRegisters = true;  // 32 vectors of them, else 16
#else
constexpr bool kManyRegisters = false;
#endif

typedef float vf __attribute__((vector_size(4 * kLanes)));
typedef std::int32_t vi __attribute__((vector_size(4 * kLanes)));
typedef std::uint32_t vu __attribute__((vector_size(4 * kLanes)));
typedef std::uint16_t vh __attribute__((vector_size(2 * kLanes)));
typedef std::uint8_t vb __attribute__((vector_size(kLanes)));
typedef std::int8_t vc __attribute__((vector_size(kLanes)));

template <typename V>
inline V load_as(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Ask for the line of an address, to read or to write it. The assembly is there because GCC takes a
// function that only asks for memory for one without effect, and leaves its calls out.
inline void prefetch_to_read(const void* p) {
  __builtin_prefetch(p);
  asm volatile("");
}
inline void prefetch_to_second_cache(const void* p) {
  __builtin_prefetch(p, 0, 2);
  asm volatile("");
}
inline void prefetch_to_write(const void* p) {
  __builtin_prefetch(p, 1);
  asm volatile("");
}

inline vf load(const float* p) { return load_as<vf>(p); }
inline void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }
inline vf set1(float x) { return x - vf{}; }
inline vi set1i(std::int32_t x) { return x - vi{}; }
inline vf to_float(vi v) { return __builtin_convertvector(v, vf); }
inline vf as_float(vu v) { return reinterpret_cast<vf>(v); }
inline vu as_bits(vf v) { return reinterpret_cast<vu>(v); }

// Adding this rounds what is below 2^22 to an integer, ties to even, and leaves it in the low bits.
constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23
// The integer in such a sum.
inline vi rounded_integer(vf sum) {
  return reinterpret_cast<vi>(sum) - reinterpret_cast<vi>(set1(kRoundToInteger));
}

inline vf max(vf a, vf b) { return a > b ? a : b; }
inline vf min(vf a, vf b) { return a < b ? a : b; }

// a * b + c, rounded once where the machine can. One machine always does it one way.
inline vf fma(vf a, vf b, vf c) {
#if HEADRACE_LANES == 16 && defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif HEADRACE_LANES == 16
  union Halves {
    vf whole;
    __m256 half[2];
  } x{a}, y{b}, z{c};
  for (int i = 0; i < 2; ++i) z.half[i] = _mm256_fmadd_ps(x.half[i], y.half[i], z.half[i]);
  return z.whole;
#elif HEADRACE_LANES == 8
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__FP_FAST_FMAF)
  vf r;
  for (int i = 0; i < kLanes; ++i) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return r;
#else
  return a * b + c;
#endif
}

// The maskz forms with a full mask compile to the plain instruction; the plain intrinsics of some
// compilers warn about an undefined operand.
inline vi load_u8(const std::uint8_t* p) {
#if HEADRACE_LANES == 16 && defined(__AVX512F__)
  return reinterpret_cast<vi>(_mm512_maskz_cvtepu8_epi32(0xffff, load_as<__m128i>(p)));
#elif HEADRACE_LANES == 8
  return reinterpret_cast<vi>(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#elif defined(__aarch64__)
  const uint8x8_t bytes = vcreate_u8(load_as<std::uint32_t>(p));
  return reinterpret_cast<vi>(vmovl_u16(vget_low_u16(vmovl_u8(bytes))));
#else
  return __builtin_convertvector(load_as<vb>(p), vi);
#endif
}

inline vi load_i8(const std::uint8_t* p) {
#if HEADRACE_LANES == 16 && defined(__AVX512F__)
  return reinterpret_cast<vi>(_mm512_maskz_cvtepi8_epi32(0xffff, load_as<__m128i>(p)));
#elif HEADRACE_LANES == 8
  return reinterpret_cast<vi>(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#elif defined(__aarch64__)
  const int8x8_t bytes = vcreate_s8(load_as<std::uint32_t>(p));
  return reinterpret_cast<vi>(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
#else
  return __builtin_convertvector(load_as<vc>(p), vi);
#endif
}

inline vu load_u16(const std::uint16_t* p) {
#if HEADRACE_LANES == 16 && defined(__AVX512F__)
  return reinterpret_cast<vu>(_mm512_maskz_cvtepu16_epi32(0xffff, load_as<__m256i>(p)));
#elif HEADRACE_LANES == 8
  return reinterpret_cast<vu>(_mm256_cvtepu16_epi32(load_as<__m128i>(p)));
#elif defined(__aarch64__)
  return reinterpret_cast<vu>(vmovl_u16(vld1_u16(p)));
#else
  return __builtin_convertvector(load_as<vh>(p), vu);
#endif
}

inline vf load_bf16(const std::uint16_t* p) { return as_float(load_u16(p) << 16); }

inline vf load_f16(const std::uint16_t* p) {
#if HEADRACE_LANES == 16 && defined(__AVX512F__)
  return _mm512_maskz_cvtph_ps(0xffff, load_as<__m256i>(p));
#elif HEADRACE_LANES == 8
  return _mm256_cvtph_ps(load_as<__m128i>(p));
#elif defined(__aarch64__)
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
  // Shift the fields into place; a power of two then corrects the exponent, subnormals included.
  const vu h = load_u16(p);
  const vu magnitude = (h & 0x7fff) << 13;
  const vf value = as_float(magnitude) * set1(0x1p112f);
  const vu special = as_bits(value) | 0x7f800000;
  const vu bits = magnitude >= (0x7c00u << 13) ? special : as_bits(value);
  return as_float(bits | (h & 0x8000) << 16);
#endif
}

// Bits of the nearest bfloat16 (ties to even) in the high half of each lane, the low half unclean.
inline vu round_bf16(vf v) {
  const vu bits = as_bits(v);
  const vu rounded = bits + 0x7fff + ((bits >> 16) & 1);
  return v == v ? rounded : (bits | 0x00400000);  // a NaN must not be carried into an infinity
}

inline void store_bf16(std::uint16_t* p, vf v) {
#if HEADRACE_LANES == 16 && defined(__AVX512BF16__)
  // Makes zeros of denormals, which products on tiles do anyway.
  const auto half = _mm512_maskz_cvtneps_pbh(0xffff, v);
#else
  const vh half = __builtin_convertvector(round_bf16(v) >> 16, vh);
#endif
  std::memcpy(p, &half, sizeof half);
}

// The nearest half float (ties to even); beyond its range the largest it has, NaN stays NaN.
inline void store_f16(std::uint16_t* p, vf v) {
  const vf limit = set1(65504.0f);
  const vf kept = v > limit ? limit : v < -limit ? -limit : v;
#if HEADRACE_LANES == 16 && defined(__AVX512F__)
  const __m256i half = _mm512_maskz_cvtps_ph(0xffff, kept, _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(p, &half, sizeof half);
#elif HEADRACE_LANES == 8
  const __m128i half = _mm256_cvtps_ph(kept, _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(p, &half, sizeof half);
#elif defined(__aarch64__)
  vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(kept)));
#else
  const vu bits = as_bits(kept);
  const vu sign = (bits >> 16) & 0x8000;
  const vu magnitude = bits & 0x7fffffff;
  // Normal halves: rebias the exponent and round off 13 bits.
  const vu normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Subnormal ones: adding 0.5 lets the float unit round at their last bit, 2^-24.
  const vu subnormal = as_bits(as_float(magnitude) + set1(0.5f)) - as_bits(set1(0.5f));
  vu half = magnitude < (113u << 23) ? subnormal : normal;
  half = v == v ? half : vu{} + 0x7e00;
  const vh stored = __builtin_convertvector(half | sign, vh);
  std::memcpy(p, &stored, sizeof stored);
#endif
}

// The first n < kLanes values, zeros behind.
inline vf load_part(const float* p, int n) {
  vf v{};
  std::memcpy(&v, p, sizeof(float) * static_cast<std::size_t>(n));
  return v;
}

inline void store_part(float* p, vf v, int n) {
  std::memcpy(p, &v, sizeof(float) * static_cast<std::size_t>(n));
}

template <int By, int... Lane>
inline vf rotate_lanes(vf v, std::integer_sequence<int, Lane...>) {
  return __builtin_shufflevector(v, v, ((Lane + By) % kLanes)...);
}

// Combine the two halves of the lanes, then the halves of that: always the same tree.
template <int Half = kLanes / 2, typename Combine>
inline float reduce_lanes(vf v, Combine combine) {
  const vf both = combine(v, rotate_lanes<Half>(v, std::make_integer_sequence<int, kLanes>()));
  if constexpr (Half == 1) {
    return both[0];
  } else {
    return reduce_lanes<Half / 2>(both, combine);
  }
}

inline float sum_lanes(vf v) {
  return reduce_lanes(v, [](vf a, vf b) { return a + b; });
}
inline float max_lanes(vf v) {
  return reduce_lanes(v, [](vf a, vf b) { return max(a, b); });
}

inline vi lane_indices() {
  vi v;
  for (int i = 0; i < kLanes; ++i) v[i] = i;
  return v;
}

}  // namespace
}  // namespace headrace

// Sixteen float lanes in the widest registers the target has, and what the row passes need of them.
//
// Every operation is one IEEE operation per lane and sums fold in one fixed order, so all register
// widths give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

// Everything here is inlined; no vector ever crosses a call, whose convention the note is about.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

#define HEADRACE_INLINE inline __attribute__((always_inline))

namespace headrace::sampling {
namespace {  // see row_passes_impl.h

constexpr std::size_t kLanes = 16;

struct Quad {  // 4 lanes: SSE2, NEON
  typedef float F __attribute__((vector_size(16)));
  F v;
};

struct Octet {  // 8 lanes: AVX2
  typedef float F __attribute__((vector_size(32)));
  F v;
};

template <class T>
struct Pair {
  T lo, hi;
};

using NarrowLanes = Pair<Pair<Quad>>;
using WideLanes = Pair<Octet>;

// Applies `op` to each native register of the operands.
template <class T, class Op, class... Rest>
HEADRACE_INLINE T map(Op op, const T& a, const Rest&... rest) {
  if constexpr (requires { a.v; }) {
    return T{op(a.v, rest.v...)};
  } else {
    return T{map(op, a.lo, rest.lo...), map(op, a.hi, rest.hi...)};
  }
}

template <class T>
HEADRACE_INLINE T broadcast(float x) {
  if constexpr (requires(T t) { t.v; }) {
    return T{typename T::F{} + x};
  } else {
    const auto half = broadcast<decltype(T::lo)>(x);
    return T{half, half};
  }
}

// Registers are moved one by one: a copy of the whole aggregate would go through memory.
template <class T>
HEADRACE_INLINE T load(const float* x) {
  T t;
  if constexpr (requires { t.v; }) {
    std::memcpy(&t.v, x, sizeof t.v);
  } else {
    t.lo = load<decltype(t.lo)>(x);
    t.hi = load<decltype(t.hi)>(x + sizeof t.lo / sizeof(float));
  }
  return t;
}

template <class T>
HEADRACE_INLINE void store(float* x, const T& t) {
  if constexpr (requires { t.v; }) {
    std::memcpy(x, &t.v, sizeof t.v);
  } else {
    store(x, t.lo);
    store(x + sizeof t.lo / sizeof(float), t.hi);
  }
}

// The first `count` (1 to 16) floats of x; the other lanes hold `fill`.
template <class T>
HEADRACE_INLINE T load_some(const float* x, std::size_t count, float fill) {
  if (count == kLanes) return load<T>(x);
  float padded[kLanes];
  store(padded, broadcast<T>(fill));
  std::memcpy(padded, x, count * sizeof(float));
  return load<T>(padded);
}

template <class T>
HEADRACE_INLINE T operator+(const T& a, const T& b) {
  return map([](auto x, auto y) __attribute__((always_inline)) { return x + y; }, a, b);
}

template <class T>
HEADRACE_INLINE T operator-(const T& a, const T& b) {
  return map([](auto x, auto y) __attribute__((always_inline)) { return x - y; }, a, b);
}

template <class T>
HEADRACE_INLINE T operator*(const T& a, const T& b) {
  return map([](auto x, auto y) __attribute__((always_inline)) { return x * y; }, a, b);
}

template <class T>
HEADRACE_INLINE T max(const T& a, const T& b) {
  return map([](auto x, auto y) __attribute__((always_inline)) { return x > y ? x : y; }, a, b);
}

// Lanes that count: as many 32-bit integers, kept in a float register's place.
template <class T>
HEADRACE_INLINE T count_nan(const T& counts, const T& a) {
  return map(
      [](auto c, auto x) __attribute__((always_inline)) {
        decltype(x < x) bits;
        std::memcpy(&bits, &c, sizeof bits);
        bits -= (x != x);
        std::memcpy(&c, &bits, sizeof bits);
        return c;
      },
      counts, a);
}

template <class T>
HEADRACE_INLINE T count_above(const T& counts, const T& a, const T& bound) {
  return map(
      [](auto c, auto x, auto y) __attribute__((always_inline)) {
        decltype(x < x) bits;
        std::memcpy(&bits, &c, sizeof bits);
        bits -= (x > y);
        std::memcpy(&c, &bits, sizeof bits);
        return c;
      },
      counts, a, bound);
}

template <class T>
HEADRACE_INLINE std::size_t total_count(const T& counts) {
  float stored[kLanes];
  store(stored, counts);
  std::int32_t lanes[kLanes];
  std::memcpy(lanes, stored, sizeof lanes);
  std::size_t total = 0;
  for (const std::int32_t lane : lanes) total += static_cast<std::size_t>(lane);
  return total;
}

// Folds the lanes: 16 to 8 to 4 to 1, each step joining lane i with lane i + half.
template <class T, class Op>
HEADRACE_INLINE float fold(Op op, const T& a) {
  if constexpr (requires { a.lo; }) {
    return fold(op, op(a.lo, a.hi));
  } else if constexpr (sizeof(T) == sizeof(Octet)) {
    Pair<Quad> halves;
    std::memcpy(&halves.lo.v, &a.v, sizeof halves.lo.v);
    std::memcpy(&halves.hi.v, reinterpret_cast<const char*>(&a.v) + sizeof halves.lo.v,
                sizeof halves.hi.v);
    return fold(op, halves);
  } else {
    struct Scalar {
      float v;
    };
    const Scalar x{a.v[0]}, y{a.v[1]}, z{a.v[2]}, w{a.v[3]};
    return op(op(x, z), op(y, w)).v;
  }
}

template <class T>
HEADRACE_INLINE float fold_max(const T& a) {
  return fold(
      [](const auto& x, const auto& y) __attribute__((always_inline)) { return max(x, y); }, a);
}

template <class T>
HEADRACE_INLINE float fold_sum(const T& a) {
  return fold([](const auto& x, const auto& y) __attribute__((always_inline)) { return x + y; }, a);
}

// 2^z for z <= 0, within two units in the last place and exactly 1 at 0; 0 where z < lowest, which
// must be at least -126. 2^z = 2^n * (1 + f q(f)) with |f| <= 1/2; q is fitted by minimax, to a
// relative error of 2e-9.
template <class T>
HEADRACE_INLINE T exp2_nonpositive(const T& exponents, const T& lowest) {
  return map(
      [](auto z, auto low) __attribute__((always_inline)) {
        using F = decltype(z);
        // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the float.
        const F magic = F{} + 12582912.0f;
        const F shifted = z + magic;
        const F f = z - (shifted - magic);
        F q = F{} + 1.53533416e-4f;
        q = q * f + 1.33989006e-3f;
        q = q * f + 9.61843785e-3f;
        q = q * f + 5.55033237e-2f;
        q = q * f + 2.40226477e-1f;
        q = q * f + 6.93147182e-1f;
        typedef std::uint32_t Bits __attribute__((vector_size(sizeof(F))));
        Bits bits;
        std::memcpy(&bits, &shifted, sizeof bits);
        bits = (bits << 23) + 0x3F800000u;
        F scale;
        std::memcpy(&scale, &bits, sizeof scale);
        // Below `lowest` (minus infinity, too) the numbers above mean nothing and are dropped.
        return z >= low ? (f * q + 1.0f) * scale : F{};
      },
      exponents, lowest);
}

}  // namespace
}  // namespace headrace::sampling

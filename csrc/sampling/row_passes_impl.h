// The row passes over a type of lanes. Included once by the source file of each instruction set;
// everything is local to that file, and no standard template is used, so that code for a newer
// instruction set cannot become another file's.
#pragma once

#include <cstddef>
#include <cstring>

#include "sampling/lanes.h"
#include "sampling/row_passes.h"

namespace headrace::sampling {
namespace {

constexpr float kInfinity = __builtin_inff();

HEADRACE_INLINE std::size_t smaller(std::size_t a, std::size_t b) { return a < b ? a : b; }

// Calls visit(offset, count) for each group of up to 16 elements of [begin, end).
template <class Visit>
HEADRACE_INLINE void for_groups(std::size_t begin, std::size_t end, Visit visit) {
  std::size_t i = begin;
  for (; i + kLanes <= end; i += kLanes) visit(i, kLanes);
  if (i < end) visit(i, end - i);
}

template <class V>
float block_max(const float* x, std::size_t n, float* maxima) {
  float all = -kInfinity;
  V nans = broadcast<V>(0.0f);
  for (std::size_t begin = 0, block = 0; begin < n; begin += kBlock, ++block) {
    V best = broadcast<V>(-kInfinity);
    for_groups(begin, smaller(n, begin + kBlock),
               [&](std::size_t i, std::size_t count) __attribute__((always_inline)) {
                 const V v = load_some<V>(x + i, count, -kInfinity);
                 best = max(v, best);
                 nans = count_nan(nans, v);
               });
    maxima[block] = fold_max(best);
    if (maxima[block] > all) all = maxima[block];
  }
  return total_count(nans) == 0 ? all : __builtin_nanf("");
}

template <class V>
struct Weigh {
  V max, scale, lowest;

  explicit HEADRACE_INLINE Weigh(const WeightRule& rule)
      : max(broadcast<V>(rule.max)),
        scale(broadcast<V>(rule.scale)),
        lowest(broadcast<V>(rule.lowest)) {}

  HEADRACE_INLINE V operator()(const V& x) const {
    return exp2_nonpositive((x - max) * scale, lowest);
  }
};

template <class V>
double block_sums(const float* x, std::size_t n, const float* maxima, const WeightRule& rule,
                  float* sums) {
  const Weigh<V> weigh(rule);
  double all = 0.0;
  for (std::size_t begin = 0, block = 0; begin < n; begin += kBlock, ++block) {
    sums[block] = 0.0f;
    if (!((maxima[block] - rule.max) * rule.scale >= rule.lowest)) continue;  // all weights are 0
    V sum = broadcast<V>(0.0f);
    for_groups(begin, smaller(n, begin + kBlock),
               [&](std::size_t i, std::size_t count) __attribute__((always_inline)) {
                 sum = sum + weigh(load_some<V>(x + i, count, -kInfinity));
               });
    sums[block] = fold_sum(sum);
    all += sums[block];
  }
  return all;
}

template <class V>
void weights(const float* x, std::size_t n, const WeightRule& rule, float* out) {
  const Weigh<V> weigh(rule);
  for_groups(0, n, [&](std::size_t i, std::size_t count) __attribute__((always_inline)) {
    const V w = weigh(load_some<V>(x + i, count, -kInfinity));
    if (count == kLanes) {
      store(out + i, w);
    } else {
      float padded[kLanes];
      store(padded, w);
      std::memcpy(out + i, padded, count * sizeof(float));
    }
  });
}

template <class V>
std::size_t count_greater(const float* x, std::size_t n, float value) {
  const V bound = broadcast<V>(value);
  V counts = broadcast<V>(0.0f);
  for_groups(0, n, [&](std::size_t i, std::size_t count) __attribute__((always_inline)) {
    counts = count_above(counts, load_some<V>(x + i, count, -kInfinity), bound);
  });
  return total_count(counts);
}

template <class V>
std::size_t collect(const float* x, std::size_t begin, std::size_t end, float bound,
                    std::int32_t* indices, float* values) {
  std::size_t found = 0;
  for_groups(begin, end, [&](std::size_t i, std::size_t count) __attribute__((always_inline)) {
    if (!(fold_max(load_some<V>(x + i, count, -kInfinity)) >= bound)) return;
    for (std::size_t j = i; j < i + count; ++j) {
      // Written always and counted when wanted: a branch would be mispredicted too often.
      indices[found] = static_cast<std::int32_t>(j);
      values[found] = x[j];
      found += x[j] >= bound;
    }
  });
  return found;
}

template <class V>
constexpr RowPasses kRowPasses{block_max<V>, block_sums<V>, weights<V>, count_greater<V>,
                               collect<V>};

}  // namespace
}  // namespace headrace::sampling

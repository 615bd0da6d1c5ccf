// Compiled for AVX2 from here on; the standard headers come first, for the baseline.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "sampling/row_passes.h"

namespace headrace::sampling {

namespace {
const RowPasses& avx2_passes();

bool has_avx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2");
#else
  return false;
#endif
}
}  // namespace

const RowPasses& best_passes() {
  static const bool wide = has_avx2();
  return wide ? avx2_passes() : portable_passes();
}

}  // namespace headrace::sampling

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif

#include "sampling/row_passes_impl.h"

namespace headrace::sampling {
namespace {

const RowPasses& avx2_passes() {
  static constexpr RowPasses passes = kRowPasses<WideLanes>;
  return passes;
}

}  // namespace
}  // namespace headrace::sampling

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif

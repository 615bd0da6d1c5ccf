// Compiled for AVX2 from here on; the standard headers come first, for the baseline.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "sampling/row_passes.h"

namespace headrace::sampling {

#if defined(__x86_64__)
namespace {
const RowPasses& avx2_passes();
}
#endif

const RowPasses& best_passes() {
#if defined(__x86_64__)
  static const bool wide = __builtin_cpu_supports("avx2");
  if (wide) return avx2_passes();
#endif
  return portable_passes();
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

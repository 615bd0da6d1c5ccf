#include "integer_kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace headrace {

#if defined(__x86_64__)
namespace {

bool has_avx_vnni() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}

bool has_amx_int8() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & 1u << 25);
}

}  // namespace
#endif

IntegerKernels integer_kernels_beside([[maybe_unused]] const Kernels& kernels) {
#if defined(HEADRACE_EMULATE_ISA)
  if (&kernels == &kAmxEmulatedKernels) return kAmxEmulatedIntegerKernels;
  if (&kernels == &kAvx512EmulatedKernels) return kAvx512VnniEmulatedIntegerKernels;
#endif
#if defined(__x86_64__)
  const bool has_tiles = &kernels == &kAmxKernels, has_avx512 = &kernels == &kAvx512Kernels;
  const bool has_vnni = (has_tiles || has_avx512) && __builtin_cpu_supports("avx512vnni");
  if (has_tiles && has_vnni && has_amx_int8()) return kAmxIntegerKernels;
  if (has_vnni) return kAvx512VnniIntegerKernels;
  if (&kernels != &kPortableKernels) {
    IntegerKernels found = has_avx_vnni() ? kAvxVnniIntegerKernels : kAvx2IntegerKernels;
    // Of half the width of AVX-512, whose floats are faster for many rows.
    if (has_avx512) found.blocks = found.blocks8 = nullptr;
    return found;
  }
#endif
  return kPortableIntegerKernels;
}

}  // namespace headrace

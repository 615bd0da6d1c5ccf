#include <string_view>

#include "int16_kernels.h"
#include "int8_kernels.h"

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

const Int8Kernels& int8_kernels_beside(const Kernels& kernels) {
  [[maybe_unused]] const std::string_view name = kernels.name;
#if defined(HEADRACE_EMULATE_ISA)
  if (name == "amx_emulated") return kInt8AmxEmulated;
  if (name == "avx512_emulated") return kInt8Avx512VnniEmulated;
#endif
#if defined(__x86_64__)
  const bool has_vnni = __builtin_cpu_supports("avx512vnni");
  if (name == "amx" && has_vnni && has_amx_int8()) return kInt8Amx;
  if ((name == "amx" || name == "avx512") && has_vnni) return kInt8Avx512Vnni;
  if (name != "portable") return has_avx_vnni() ? kInt8AvxVnni : kInt8Avx2;
#endif
  return kInt8Portable;
}

const Int8Kernels* block_kernels_beside(const Kernels& kernels) {
  const Int8Kernels& found = int8_kernels_beside(kernels);
  // AVX-512 without VNNI has integer kernels of half its width: floats are faster for many rows.
  const bool is_narrow = std::string_view(kernels.name) == "avx512" &&
                         std::string_view(found.name) != "avx512vnni";
  return found.multiplies_blocks && !is_narrow ? &found : nullptr;
}

const Int16Kernels* int16_kernels_beside(const Kernels& kernels) {
  [[maybe_unused]] const Int8Kernels* found = &int8_kernels_beside(kernels);
#if defined(HEADRACE_EMULATE_ISA)
  if (found == &kInt8Avx512VnniEmulated) return &kInt16Avx512VnniEmulated;
#endif
#if defined(__x86_64__)
  // Plain AVX2 takes two instructions for a pair and gains nothing.
  if (found == &kInt8Avx512Vnni) return &kInt16Avx512Vnni;
#endif
  return nullptr;
}

}  // namespace headrace

#include "cpu.h"

#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#endif

namespace headrace {
namespace {

#if defined(__x86_64__)

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

// Tiles must be in the processor, and the system must grant this process their state: to all its
// threads, also those that are there already.
bool has_amx() {
#if defined(__linux__)
  unsigned a, b, c, d;
  if (!has_avx512() || !__builtin_cpu_supports("avx512bf16")) return false;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kTile = 1u << 24, kTileBf16 = 1u << 22;
  if (!(d & kTile) || !(d & kTileBf16)) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

#endif

std::vector<const Kernels*> find_kernels() {
  std::vector<const Kernels*> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (has_amx()) found.push_back(&kAmxKernels);
  if (has_avx512()) found.push_back(&kAvx512Kernels);
  if (has_avx2()) found.push_back(&kAvx2Kernels);
#endif
  found.push_back(&kPortableKernels);
#if defined(HEADRACE_EMULATE_ISA)
  if (has_avx2()) {
    found.push_back(&kAvx512EmulatedKernels);
    found.push_back(&kAmxEmulatedKernels);
  }
#endif
  return found;
}

}  // namespace

const std::vector<const Kernels*>& available_kernels() {
  static const std::vector<const Kernels*> found = find_kernels();
  return found;
}

const Kernels& kernels_by_name(const std::string& name) {
  for (const Kernels* kernels : available_kernels()) {
    if (name == kernels->name) return *kernels;
  }
  throw std::invalid_argument("instruction set '" + name + "' is not available here");
}

std::size_t second_cache_bytes() {
  static const std::size_t found = [] {
    long bytes = 0;
#if defined(_SC_LEVEL2_CACHE_SIZE)
    bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    constexpr long kSmall = 512 * 1024, kLarge = 4 * 1024 * 1024;
    return static_cast<std::size_t>(std::clamp(bytes, kSmall, kLarge));
  }();
  return found;
}

}  // namespace headrace

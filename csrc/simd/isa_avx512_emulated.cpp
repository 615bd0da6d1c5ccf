// For tests: the AVX-512 kernels, compiled for AVX2.
#define HEADRACE_ISA_NAME "avx512_emulated"
#define HEADRACE_TABLE kAvx512EmulatedKernels
#define HEADRACE_LANES 16
#define HEADRACE_AMX 0
#include "simd/table.h"

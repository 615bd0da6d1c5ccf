// Kernels for AVX2 with FMA and F16C.
#define HEADRACE_ISA_NAME "avx2"
#define HEADRACE_TABLE kAvx2Kernels
#define HEADRACE_LANES 8
#define HEADRACE_AMX 0
#include "simd/table.h"

// Kernels for AVX-512 (F, BW, VL, DQ).
#define HEADRACE_ISA_NAME "avx512"
#define HEADRACE_TABLE kAvx512Kernels
#define HEADRACE_LANES 16
#define HEADRACE_AMX 0
#include "simd/table.h"

// Kernels for AVX-512 with BF16 and AMX bfloat16 tiles.
#define HEADRACE_ISA_NAME "amx"
#define HEADRACE_TABLE kAmxKernels
#define HEADRACE_LANES 16
#define HEADRACE_AMX 1
#include "simd/table.h"

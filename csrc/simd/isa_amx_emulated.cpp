// For tests: the AMX kernels, compiled for AVX2, tiles in plain C++.
#define HEADRACE_ISA_NAME "amx_emulated"
#define HEADRACE_TABLE kAmxEmulatedKernels
#define HEADRACE_LANES 16
#define HEADRACE_AMX 2
#include "simd/table.h"

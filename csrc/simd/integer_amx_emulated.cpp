// For tests: the AMX kernels, compiled for AVX2, tiles in plain C++.
#define HEADRACE_TABLE kAmxEmulatedIntegerKernels
#define HEADRACE_LANES 16
#define HEADRACE_AMX 2
#define HEADRACE_INT8_UNSIGNED 1
#include "simd/integer_table.h"

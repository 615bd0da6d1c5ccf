// Integer kernels for AVX2.
#define HEADRACE_TABLE kAvx2IntegerKernels
#define HEADRACE_LANES 8
#define HEADRACE_AMX 0
#define HEADRACE_INT8_UNSIGNED 0
#include "simd/integer_table.h"

// Integer kernels for AMX tiles, and AVX-512 VNNI for few rows.
#define HEADRACE_TABLE kAmxIntegerKernels
#define HEADRACE_LANES 16
#define HEADRACE_AMX 1
#define HEADRACE_INT8_UNSIGNED 1
#include "simd/integer_table.h"

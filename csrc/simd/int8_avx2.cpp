// Int8 kernels for AVX2.
#define HEADRACE_ISA_NAME "avx2"
#define HEADRACE_TABLE kInt8Avx2
#define HEADRACE_LANES 8
#define HEADRACE_AMX 0
#define HEADRACE_INT8_UNSIGNED 0
#include "simd/int8_table.h"

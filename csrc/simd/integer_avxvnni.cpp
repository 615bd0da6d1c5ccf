// Integer kernels for AVX2 with the dot-product instruction (AVX-VNNI).
#define HEADRACE_TABLE kAvxVnniIntegerKernels
#define HEADRACE_LANES 8
#define HEADRACE_AMX 0
#define HEADRACE_INT8_UNSIGNED 1
#include "simd/integer_table.h"

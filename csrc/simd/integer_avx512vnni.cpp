// Integer kernels for AVX-512 with the dot-product instruction (VNNI).
#define HEADRACE_TABLE kAvx512VnniIntegerKernels
#define HEADRACE_LANES 16
#define HEADRACE_AMX 0
#define HEADRACE_INT8_UNSIGNED 1
#include "simd/integer_table.h"

// For tests: the AVX-512 VNNI kernels, compiled for AVX2.
#define HEADRACE_TABLE kAvx512VnniEmulatedIntegerKernels
#define HEADRACE_LANES 16
#define HEADRACE_AMX 0
#define HEADRACE_INT8_UNSIGNED 1
#include "simd/integer_table.h"

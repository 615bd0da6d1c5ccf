// For tests: the AVX-512 VNNI kernels, compiled for AVX2.
#define HEADRACE_ISA_NAME "avx512vnni_emulated"
#define HEADRACE_TABLE kInt8Avx512VnniEmulated
#define HEADRACE_INT16_TABLE kInt16Avx512VnniEmulated
#define HEADRACE_LANES 16
#define HEADRACE_AMX 0
#define HEADRACE_INT8_UNSIGNED 1
#include "simd/int8_table.h"

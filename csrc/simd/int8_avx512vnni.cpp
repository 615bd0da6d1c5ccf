// Int8 kernels for AVX-512 with the dot-product instruction (VNNI).
#define HEADRACE_ISA_NAME "avx512vnni"
#define HEADRACE_TABLE kInt8Avx512Vnni
#define HEADRACE_INT16_TABLE kInt16Avx512Vnni
#define HEADRACE_LANES 16
#define HEADRACE_AMX 0
#define HEADRACE_INT8_UNSIGNED 1
#include "simd/int8_table.h"

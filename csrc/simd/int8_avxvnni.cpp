// Int8 kernels for AVX2 with the dot-product instruction (AVX-VNNI).
#define HEADRACE_ISA_NAME "avxvnni"
#define HEADRACE_TABLE kInt8AvxVnni
#define HEADRACE_LANES 8
#define HEADRACE_AMX 0
#define HEADRACE_INT8_UNSIGNED 1
#include "simd/int8_table.h"

// Int8 kernels for AMX tiles, and AVX-512 VNNI for few rows.
#define HEADRACE_ISA_NAME "amx"
#define HEADRACE_TABLE kInt8Amx
#define HEADRACE_LANES 16
#define HEADRACE_AMX 1
#define HEADRACE_INT8_UNSIGNED 1
#include "simd/int8_table.h"

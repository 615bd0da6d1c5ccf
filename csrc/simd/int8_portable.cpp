// Int8 kernels for any processor the compiler knows.
#define HEADRACE_ISA_NAME "portable"
#define HEADRACE_TABLE kInt8Portable
#define HEADRACE_LANES 4
#define HEADRACE_AMX 0
#define HEADRACE_INT8_UNSIGNED 0
#include "simd/int8_table.h"

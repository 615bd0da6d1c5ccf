// Integer kernels for any processor the compiler knows.
#define HEADRACE_TABLE kPortableIntegerKernels
#define HEADRACE_LANES 4
#define HEADRACE_AMX 0
#define HEADRACE_INT8_UNSIGNED 0
#include "simd/integer_table.h"

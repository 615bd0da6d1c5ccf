// Kernels for any processor the compiler knows: no machine flags, four lanes.
#define HEADRACE_ISA_NAME "portable"
#define HEADRACE_TABLE kPortableKernels
#define HEADRACE_LANES 4
#define HEADRACE_AMX 0
#include "simd/table.h"

// For tests: the AMX kernels, compiled for AVX2, tiles in plain C++.
#define HEADRACE_ISA_NAME "amx_emulated"
#define HEADRACE_TABLE kInt8AmxEmulated
#define HEADRACE_LANES 16
#define HEADRACE_AMX 2
#define HEADRACE_INT8_UNSIGNED 1
#include "simd/int8_table.h"

// The int8 table of one instruction set. Included last by each int8_*.cpp, after it has said what
// it is.
#pragma once

#include "simd/int8.h"
#if HEADRACE_AMX
#include "simd/int8_tiles.h"
#endif

namespace headrace {

extern const Int8Kernels HEADRACE_TABLE = {
    HEADRACE_ISA_NAME,
    HEADRACE_INT8_UNSIGNED ? 0x80 : 0,
    quantize_rows,
#if HEADRACE_AMX
    int8_linear_tiles,
#else
    int8_linear,
#endif
};

}  // namespace headrace

// The tables of integer products of one instruction set. Included last by each int8_*.cpp, after it has said what
// it is.
#pragma once

#include "simd/int8.h"
#if HEADRACE_AMX
#include "simd/int8_tiles.h"
#elif HEADRACE_LANES >= 8
#include "simd/block_products.h"
#endif
#ifdef HEADRACE_INT16_TABLE
#include "simd/int16.h"
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
#if HEADRACE_AMX || HEADRACE_LANES < 8
    // Tiles of bfloat16 do more in a cycle; and without instructions for it integers do less.
    nullptr, nullptr, nullptr, nullptr,
#else
    multiplies_blocks, block_linear, block_scratch, quantize_blocks,
#endif
};

#ifdef HEADRACE_INT16_TABLE
extern const Int16Kernels HEADRACE_INT16_TABLE = {
    int16_linear,
    int16_scratch,
    quantize_int16,
    pack_int16,
};
#endif

}  // namespace headrace

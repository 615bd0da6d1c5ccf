// The integer kernels of one instruction set. Included last by each integer_*.cpp, after it has
// said what it is.
#pragma once

#include "integer_kernels.h"
#if HEADRACE_AMX
#include "simd/int8_tiles.h"
#else
#include "simd/int8.h"
#endif
#if !HEADRACE_AMX && HEADRACE_LANES >= 8
#include "simd/block_products.h"
#endif
#if !HEADRACE_AMX && HEADRACE_LANES == 16
#include "simd/int16.h"
#endif

namespace headrace {

extern const IntegerKernels HEADRACE_TABLE = {
#if HEADRACE_AMX
    // Tiles of bfloat16 do more in a cycle than other integers.
    &kInt8TileKernels, nullptr, nullptr, nullptr,
#elif HEADRACE_LANES == 16
    &kInt8Kernels, &kInt16Kernels, &kBlockKernels<true>, &kBlockKernels<false>,
#elif HEADRACE_LANES == 8
    // Plain AVX2 takes two instructions for a pair of 16-bit integers and gains nothing.
    &kInt8Kernels, nullptr, &kBlockKernels<true>, &kBlockKernels<false>,
#else
    // Without instructions for them integers do less than floats.
    &kInt8Kernels, nullptr, nullptr, nullptr,
#endif
};

}  // namespace headrace

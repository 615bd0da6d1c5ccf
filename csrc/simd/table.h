// The table of one instruction set. Included last by each isa_*.cpp, after it has said what it is.
#pragma once

#include "simd/attention.h"
#include "simd/linear.h"
#include "simd/rope.h"
#if HEADRACE_AMX
#include "simd/amx.h"
#endif

namespace headrace {

extern const Kernels HEADRACE_TABLE = {
    HEADRACE_ISA_NAME,
#if HEADRACE_AMX
    2 * kTileRows,
    true,
    linear_tiles_scratch,
    linear_tiles,
#else
    kRowBlock,
    false,
    linear_scratch,
    linear,
#endif
    round_rows,
    unpack,
    rms_norm,
    add,
    rope_and_cache,
    partial_size,
    attention_scratch,
    attention,
    merge,
};

}  // namespace headrace

// Quantises stored matrices to int8 and packs them into panels, once, at load.
#pragma once

#include "int8_kernels.h"
#include "packing.h"

namespace headrace {

std::size_t int8_panel_bytes(int depth);

// Quantise and write panel number `panel` of a matrix to zeroed memory; rows past the last stay
// zero. Only one row at a time is ever float32.
void pack_int8_panel(const Int8Kernels& kernels, const StoredMatrix& matrix, int panel,
                     std::uint8_t* out);

}  // namespace headrace

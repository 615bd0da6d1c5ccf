// Makes integers of bfloat16 matrices and packs them into panels, once, at load.
#pragma once

#include "int16_kernels.h"
#include "packing.h"

namespace headrace {

// Whether a matrix can be one of Format::Int16: bfloat16 in whole blocks.
bool fits_int16(const StoredMatrix& matrix);

std::size_t int16_panel_bytes(int depth);

// Write panel number `panel` of a matrix to zeroed memory; rows past the last stay zero. Only one
// row at a time is ever float32.
void pack_int16_panel(const Int16Kernels& kernels, const StoredMatrix& matrix, int panel,
                      std::uint8_t* out);

}  // namespace headrace

// Makes integers of bfloat16 matrices and packs them into panels, once, at load.
#pragma once

#include "int16_kernels.h"
#include "packing.h"

namespace headrace {

// Whether a matrix can be one of Format::Int16: bfloat16 in whole blocks.
bool fits_int16(const StoredMatrix& matrix);

// Only one row at a time is ever float32.
PanelPacking int16_packing(const Int16Kernels& kernels, int depth);

}  // namespace headrace

// Quantises stored matrices to int8 and packs them into panels, once, at load.
#pragma once

#include "int8_kernels.h"
#include "packing.h"

namespace headrace {

// Only one row at a time is ever float32.
PanelPacking int8_packing(const Int8Kernels& kernels, int depth);

}  // namespace headrace

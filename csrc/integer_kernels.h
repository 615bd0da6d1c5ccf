// The kernels in integers of one instruction set, and which of them go with this processor.
#pragma once

#include "block_kernels.h"
#include "int16_kernels.h"
#include "int8_kernels.h"

namespace headrace {

struct IntegerKernels {
  const Int8Kernels* int8;
  // Null where products of floats, or of tiles, are as fast.
  const Int16Kernels* int16;
  const BlockKernels* blocks;   // activations of 16 bits
  const BlockKernels* blocks8;  // of 8 bits; null where those are
};

extern const IntegerKernels kPortableIntegerKernels;
extern const IntegerKernels kAvx2IntegerKernels;
extern const IntegerKernels kAvxVnniIntegerKernels;
extern const IntegerKernels kAvx512VnniIntegerKernels;
extern const IntegerKernels kAmxIntegerKernels;
extern const IntegerKernels kAvx512VnniEmulatedIntegerKernels;
extern const IntegerKernels kAmxEmulatedIntegerKernels;

// The best for a processor that runs these kernels.
IntegerKernels integer_kernels_beside(const Kernels& kernels);

}  // namespace headrace

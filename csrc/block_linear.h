// A product of activations in blocks of integers, of one or two bytes, with weights stored in
// blocks.
#pragma once

#include "input_rows.h"
#include "int8_kernels.h"

namespace headrace {

// Quantises the rows of `x`, then multiplies; `linear.x` is not read.
void run_block_linear(Frame& frame, const Int8Kernels& kernels, int bytes, const InputRows& x,
                      const LinearArgs& linear, int num_panels);

}  // namespace headrace

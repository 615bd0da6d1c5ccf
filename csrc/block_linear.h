// A product of activations in blocks of integers, of one or two bytes, with weights stored in
// blocks.
#pragma once

#include "block_kernels.h"
#include "input_rows.h"
#include "program.h"

namespace headrace {

// Quantises the rows of `x`, then multiplies; `linear.x` is not read.
void run_block_linear(Frame& frame, const BlockKernels& kernels, const InputRows& x,
                      const LinearArgs& linear, int num_panels);

}  // namespace headrace

// Runs products in integers: quantises the rows, then shares the work among threads.
#pragma once

#include "input_rows.h"
#include "integer_kernels.h"
#include "program.h"

namespace headrace {

// `linear` says all but its x, which are the rows `x` quantised.
void run_int8_linear(Frame& frame, const Int8Kernels& kernels, const InputRows& x,
                     const LinearArgs& linear, int num_panels);
void run_int16_linear(Frame& frame, const Int16Kernels& kernels, const InputRows& x,
                      const LinearArgs& linear, int num_panels);
void run_block_linear(Frame& frame, const BlockKernels& kernels, const InputRows& x,
                      const LinearArgs& linear, int num_panels);

}  // namespace headrace

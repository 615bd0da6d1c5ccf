// Runs a product whose weights are 16-bit integers in blocks: makes integers of its rows, then
// shares the work among threads.
#pragma once

#include "input_rows.h"
#include "int16_kernels.h"
#include "program.h"

namespace headrace {

// `args` says all but its x, which are the rows `x` as integers.
void run_int16_linear(Frame& frame, const Int16Kernels& kernels, const InputRows& x,
                      const LinearArgs& args, int num_panels);

}  // namespace headrace

// Runs a product whose weights are int8: quantises its rows, then shares the work among threads.
#pragma once

#include "input_rows.h"
#include "int8_kernels.h"
#include "program.h"

namespace headrace {

// `args` says all but its x, which are the rows `x` quantised.
void run_int8_linear(Frame& frame, const Int8Kernels& kernels, const InputRows& x,
                     const LinearArgs& args, int num_panels);

}  // namespace headrace

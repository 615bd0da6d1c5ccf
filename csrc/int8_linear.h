// Runs a product whose weights are int8: quantises its rows, then shares the work among threads.
#pragma once

#include "int8_kernels.h"
#include "program.h"

namespace headrace {

// `args` says all but what is quantised here: its x holds float32 rows.
void run_int8_linear(Frame& frame, const Int8Kernels& kernels, const LinearArgs& args,
                     int num_panels);

}  // namespace headrace

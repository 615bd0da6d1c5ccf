// Which instruction sets are built and which of them this processor has.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kernels.h"

namespace headrace {

// Usable here, best first; those emulated for tests, if built, come last.
const std::vector<const Kernels*>& available_kernels();

// Throws std::invalid_argument for a name that is not available.
const Kernels& kernels_by_name(const std::string& name);

// Bytes of a core's second cache, as the system tells; a small one if it does not.
std::size_t second_cache_bytes();

}  // namespace headrace

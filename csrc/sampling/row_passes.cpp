#include "sampling/row_passes_impl.h"

namespace headrace::sampling {

const RowPasses& portable_passes() {
  static constexpr RowPasses passes = kRowPasses<NarrowLanes>;
  return passes;
}

}  // namespace headrace::sampling

// The rows that go into a product, for kernels that convert them first: as they are, or normed on
// the way, so that they need not be written and read once more in between.
#pragma once

#include <vector>

#include "program.h"
#include "thread_pool.h"

namespace headrace {

struct RowNorm {
  std::vector<float> weight;
  float eps = 0.0f;
};

struct InputRows {
  Rows x;
  int width;
  const RowNorm* norm;  // null: as they are

  // convert(data, stride, first, count) for the rows [begin, end), in one or more calls.
  template <typename Convert>
  void convert(const Kernels& kernels, int begin, int end, Convert&& convert) const {
    if (!norm) return convert(x.data + begin * x.stride, x.stride, begin, end - begin);
    auto* row =
        static_cast<float*>(thread_scratch(sizeof(float) * static_cast<std::size_t>(width)));
    for (int r = begin; r < end; ++r) {
      const NormArgs args{x.data + r * x.stride, 0, norm->weight.data(), norm->eps, width, row, 0};
      kernels.rms_norm(args, 0, 1);
      convert(row, std::ptrdiff_t{0}, r, 1);
    }
  }
};

}  // namespace headrace

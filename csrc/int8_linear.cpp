#include "int8_linear.h"

#include "product_tasks.h"

namespace headrace {

void run_int8_linear(Frame& frame, const Int8Kernels& kernels, const InputRows& x,
                     const LinearArgs& linear, int num_panels) {
  const int num_rows = frame.num_rows, depth = linear.depth;
  const int row_bytes = (depth + kInt8Block - 1) / kInt8Block * kInt8Block;
  const std::size_t code_bytes = static_cast<std::size_t>(num_rows) * row_bytes;
  auto* codes = static_cast<std::uint8_t*>(
      frame.work(0, code_bytes + static_cast<std::size_t>(num_rows) * sizeof(float)));
  auto* scales = reinterpret_cast<float*>(codes + code_bytes);
  frame.for_rows(2 * static_cast<std::size_t>(depth), [&](int begin, int end) {
    x.convert(frame.kernels, begin, end,
              [&](const float* rows, std::ptrdiff_t stride, int first, int count) {
                kernels.quantize(rows, stride, depth, kernels.x_flip,
                                 codes + static_cast<std::ptrdiff_t>(first) * row_bytes, row_bytes,
                                 scales + first, count);
              });
  });
  const Int8Args args{codes, row_bytes, scales, linear};

  ProductShape shape{};
  shape.num_rows = num_rows;
  shape.num_panels = num_panels;
  shape.panels_together = 2;  // gated pairs, and tiles
  shape.row_bytes = static_cast<std::size_t>(row_bytes);
  shape.row_multiple = 32;
  shape.min_multiples = 2;
  shape.max_multiples = 16;
  // Each of these is sixteen multiply-adds, about what `kWorthSharing` counts.
  shape.cost = static_cast<std::size_t>(num_rows) * static_cast<std::size_t>(depth) *
               static_cast<std::size_t>(num_panels);
  for_product_tasks(frame, shape, [&](int row_begin, int row_end, int begin, int end) {
    kernels.linear(args, row_begin, row_end, begin, end);
  });
}

}  // namespace headrace

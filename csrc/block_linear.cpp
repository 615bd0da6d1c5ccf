#include "block_linear.h"

#include "product_tasks.h"

namespace headrace {

void run_block_linear(Frame& frame, const BlockKernels& kernels, const InputRows& x,
                      const LinearArgs& linear, int num_panels) {
  const int num_rows = frame.num_rows, depth = linear.depth;
  const std::ptrdiff_t stride = depth / kBlockDepth;
  const std::size_t row_bytes = static_cast<std::size_t>(stride) * sizeof(InputBlock);
  auto* blocks =
      static_cast<InputBlock*>(frame.work(0, static_cast<std::size_t>(num_rows) * row_bytes));
  frame.for_rows(2 * static_cast<std::size_t>(depth), [&](int begin, int end) {
    x.convert(frame.kernels, begin, end,
              [&](const float* rows, std::ptrdiff_t row_stride, int first, int count) {
                kernels.quantize(rows, row_stride, depth, blocks + first * stride, stride, count);
              });
  });
  const BlockArgs args{blocks, stride, linear};
  const ProductShape shape = block_product_shape(num_rows, depth, num_panels, row_bytes);
  const std::size_t scratch = kernels.scratch(rows_of_a_task(shape));
  for_product_tasks(frame, shape, [&](int row_begin, int row_end, int begin, int end) {
    kernels.linear(args, row_begin, row_end, begin, end, thread_scratch(scratch));
  });
}

}  // namespace headrace

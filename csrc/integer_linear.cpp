#include "integer_linear.h"

#include "product_tasks.h"

namespace headrace {
namespace {

// Rows quantised in blocks, whatever those and the weights are.
template <typename Block, typename Args, typename Kernels>
void run_in_blocks(Frame& frame, const Kernels& kernels, const InputRows& x,
                   const LinearArgs& linear, int num_panels) {
  const int num_rows = frame.num_rows, depth = linear.depth;
  const std::ptrdiff_t stride = depth / kBlockDepth;
  const std::size_t row_bytes = static_cast<std::size_t>(stride) * sizeof(Block);
  auto* blocks =
      static_cast<Block*>(frame.work(0, static_cast<std::size_t>(num_rows) * row_bytes));
  frame.for_rows(2 * static_cast<std::size_t>(depth), [&](int begin, int end) {
    x.convert(frame.kernels, begin, end,
              [&](const float* rows, std::ptrdiff_t row_stride, int first, int count) {
                kernels.quantize(rows, row_stride, depth, blocks + first * stride, stride, count);
              });
  });
  const Args args{blocks, stride, linear};

  ProductShape shape{};
  shape.num_rows = num_rows;
  shape.num_panels = num_panels;
  shape.panels_together = 4;  // two gated pairs
  shape.row_bytes = row_bytes;
  shape.row_multiple = 12;
  shape.min_multiples = 5;
  shape.max_multiples = 40;
  // Each of these is sixteen multiply-adds, about twice what `kWorthSharing` counts.
  shape.cost = 2 * static_cast<std::size_t>(num_rows) * static_cast<std::size_t>(depth) *
               static_cast<std::size_t>(num_panels);
  const std::size_t scratch = kernels.scratch(rows_of_a_task(shape));
  for_product_tasks(frame, shape, [&](int row_begin, int row_end, int begin, int end) {
    kernels.linear(args, row_begin, row_end, begin, end, thread_scratch(scratch));
  });
}

}  // namespace

void run_int16_linear(Frame& frame, const Int16Kernels& kernels, const InputRows& x,
                      const LinearArgs& linear, int num_panels) {
  run_in_blocks<Int16Block, Int16Args>(frame, kernels, x, linear, num_panels);
}

void run_block_linear(Frame& frame, const BlockKernels& kernels, const InputRows& x,
                      const LinearArgs& linear, int num_panels) {
  run_in_blocks<InputBlock, BlockArgs>(frame, kernels, x, linear, num_panels);
}

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

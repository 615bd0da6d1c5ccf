#include "int8_linear.h"

#include "frame.h"

namespace headrace {
namespace {

// Rows of activations that stay in a core's second cache while panels pass by.
constexpr int kRowCacheBytes = 192 * 1024;
// Rows always done in one go: splitting them would read the weights twice from memory.
constexpr int kRowsTogether = 64;
constexpr int kRowMultiple = 32;  // whole register blocks and tiles

int row_chunk(int num_rows, int row_bytes) {
  if (num_rows <= kRowsTogether) return num_rows;
  const int fit = std::clamp(kRowCacheBytes / row_bytes, 2 * kRowMultiple, 16 * kRowMultiple);
  const int chunks = (num_rows + fit - 1) / fit;
  return ((num_rows + chunks - 1) / chunks + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
}

}  // namespace

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
                kernels.quantize_rows(rows, stride, depth, kernels.x_flip,
                                      codes + static_cast<std::ptrdiff_t>(first) * row_bytes,
                                      row_bytes, scales + first, count);
              });
  });
  const Int8Args args{codes, row_bytes, scales, linear};

  const int chunk = row_chunk(num_rows, row_bytes);
  const int row_tasks = (num_rows + chunk - 1) / chunk;
  const std::size_t cost = static_cast<std::size_t>(num_rows) * static_cast<std::size_t>(depth) *
                           static_cast<std::size_t>(num_panels);
  // Each of these is sixteen multiply-adds, about what `kWorthSharing` counts.
  const int threads = cost < kWorthSharing ? 1 : frame.num_threads;
  if (row_tasks == 1) {
    // Panels go two and two: gated pairs, and tiles.
    parallel_spans(threads, num_panels, 2, [&](int begin, int end) {
      kernels.linear(args, 0, num_rows, begin, end);
    });
    return;
  }
  // Enough tasks that threads end together.
  const int pairs = (num_panels + 1) / 2;
  const int wanted = threads == 1 ? 1 : std::max(1, 8 * threads / row_tasks);
  const int panel_tasks = std::min(pairs, wanted);
  parallel(threads, row_tasks * panel_tasks, [&](int task) {
    const int row = task / panel_tasks * chunk, part = task % panel_tasks;
    const auto bound = [&](int p) {
      return std::min(num_panels,
                      2 * static_cast<int>(static_cast<std::int64_t>(pairs) * p / panel_tasks));
    };
    kernels.linear(args, row, std::min(num_rows, row + chunk), bound(part), bound(part + 1));
  });
}

}  // namespace headrace

// How a matrix product is cut into tasks for threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu.h"
#include "frame.h"

namespace headrace {

// Rows always done in one go: splitting them would read the weights twice from memory.
constexpr int kRowsTogether = 64;

// So many that threads end together although one may be slower.
constexpr int kTasksOfAThread = 12;

// Bytes of activations that stay in a core's second cache while panels and results pass by.
inline std::size_t row_cache_bytes() { return second_cache_bytes() / 8 * 3; }

struct ProductShape {
  int num_rows;
  int num_panels;
  int panels_together;     // that go well together: gated pairs, tiles
  std::size_t row_bytes;   // of activations
  int row_multiple;        // rows of whole register blocks or tiles
  int min_multiples;       // of those in a task, whatever the cache holds
  int max_multiples;
  std::size_t cost;        // in the measure of kWorthSharing
};

// Rows of a task: as many as stay in the cache, in about equal chunks.
inline int rows_of_a_task(const ProductShape& shape) {
  if (shape.num_rows <= kRowsTogether) return shape.num_rows;
  const int multiple = shape.row_multiple;
  const int fit = std::clamp(static_cast<int>(row_cache_bytes() / shape.row_bytes),
                             shape.min_multiples * multiple, shape.max_multiples * multiple);
  const int chunks = (shape.num_rows + fit - 1) / fit;
  return ((shape.num_rows + chunks - 1) / chunks + multiple - 1) / multiple * multiple;
}

// multiply(row_begin, row_end, panel_begin, panel_end) over all rows and panels. Rows are cut at
// multiples of rows_of_a_task alone.
template <typename Multiply>
void for_product_tasks(const Frame& frame, const ProductShape& shape, Multiply&& multiply) {
  const int num_rows = shape.num_rows, num_panels = shape.num_panels;
  const int unit = shape.panels_together;
  const int chunk = rows_of_a_task(shape);
  const int row_tasks = (num_rows + chunk - 1) / chunk;
  const int threads = shape.cost < kWorthSharing ? 1 : frame.num_threads;
  if (row_tasks == 1) {
    parallel_spans(threads, num_panels, unit,
                   [&](int begin, int end) { multiply(0, num_rows, begin, end); });
    return;
  }
  // As many tasks for each thread.
  const int groups = (num_panels + unit - 1) / unit;
  const int wanted = (kTasksOfAThread * threads + row_tasks - 1) / row_tasks;
  const int even = row_tasks % threads ? (wanted + threads - 1) / threads * threads : wanted;
  const int panel_tasks = threads == 1 ? 1 : std::min(groups, even);
  parallel(threads, row_tasks * panel_tasks, [&](int task) {
    const int row = task / panel_tasks * chunk, part = task % panel_tasks;
    const auto bound = [&](int p) {
      return std::min(num_panels, unit * static_cast<int>(static_cast<std::int64_t>(groups) * p /
                                                          panel_tasks));
    };
    multiply(row, std::min(num_rows, row + chunk), bound(part), bound(part + 1));
  });
}

}  // namespace headrace

// How instructions share rows among threads.
#pragma once

#include <algorithm>

#include "program.h"
#include "thread_pool.h"

namespace headrace {

// Operations below which a second thread costs more than it brings.
constexpr std::size_t kWorthSharing = 30000;

template <typename Body>
void Frame::for_rows(std::size_t row_cost, Body&& body) const {
  const std::size_t cost = row_cost * static_cast<std::size_t>(num_rows);
  const int threads = cost < 2 * kWorthSharing ? 1 : num_threads;
  const int tasks = threads == 1 ? 1 : std::min(num_rows, 4 * threads);
  parallel(threads, tasks, [&](int task) {
    const auto bound = [&](int t) {
      return static_cast<int>(static_cast<std::int64_t>(num_rows) * t / tasks);
    };
    body(bound(task), bound(task + 1));
  });
}

}  // namespace headrace

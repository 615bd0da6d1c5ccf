// One pool of worker threads per process. A call splits work into numbered tasks that threads take
// as they become free; the caller works too. Workers spin for a moment after each call, because a
// step makes hundreds of calls, and then sleep, so that an idle engine uses no processor.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <type_traits>

namespace headrace {

// Cores this process may use.
int available_cores();

// Memory of the calling thread, 64-byte aligned, kept and grown between uses. Contents are stale.
void* thread_scratch(std::size_t bytes);

using TaskFunction = void (*)(void* context, int task);

// Run tasks 0 .. num_tasks - 1 on up to num_threads threads and return when all are done. Called
// while another thread is inside (or from a task), it runs them on the calling thread alone.
void run_tasks(int num_threads, int num_tasks, TaskFunction function, void* context);

template <typename Body>
void parallel(int num_threads, int num_tasks, Body&& body) {
  run_tasks(
      num_threads, num_tasks,
      [](void* context, int task) {
        (*static_cast<std::remove_reference_t<Body>*>(context))(task);
      },
      &body);
}

// body(begin, end) for spans that cover [0, count), of whole units but for the last. Threads take
// large spans first, so that memory is read in long runs, then ever smaller ones: they end together
// although one may be slower.
template <typename Body>
void parallel_spans(int num_threads, int count, int unit, Body&& body) {
  if (num_threads == 1) return body(0, count);
  std::atomic<int> next{0};
  parallel(num_threads, num_threads, [&](int) {
    for (int begin = next.load(std::memory_order_relaxed); begin < count;) {
      // Four fifths of what each thread's share of the rest would be.
      const int length = 4 * (count - begin) / (5 * num_threads) / unit * unit;
      const int end = std::min(count, begin + std::max(unit, length));
      if (!next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
      body(begin, end);
      begin = next.load(std::memory_order_relaxed);
    }
  });
}

}  // namespace headrace

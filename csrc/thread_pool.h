// One pool of worker threads per process. A call splits work into numbered tasks that threads take
// as they become free; the caller works too. Workers spin for a moment after each call, because a
// step makes hundreds of calls, and then sleep, so that an idle engine uses no processor.
#pragma once

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

}  // namespace headrace

// The thread pool under use by several threads at once, with pauses in which its workers fall
// asleep. Made to be run under ThreadSanitizer; says nothing and returns 0 when all is well.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "thread_pool.h"

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::abort();
}

// Each task writes its own element; the caller reads them all afterwards, without further locks.
void check_call(int num_threads, int num_tasks) {
  std::vector<int> done(static_cast<std::size_t>(num_tasks), 0);
  headrace::parallel(num_threads, num_tasks, [&](int task) {
    auto* scratch = static_cast<int*>(headrace::thread_scratch(sizeof(int) * (1 + task % 7)));
    scratch[task % 7] = task;
    done[static_cast<std::size_t>(task)] += 1 + scratch[task % 7];
  });
  for (int task = 0; task < num_tasks; ++task) {
    require(done[static_cast<std::size_t>(task)] == task + 1, "every task runs once");
  }
}

void check_calls(int seed, int num_calls) {
  for (int call = 0; call < num_calls; ++call) {
    check_call(1 + (seed + call) % 5, (seed + 31 * call) % 67);
    if (call % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void check_tasks_that_call() {
  headrace::parallel(3, 20, [](int task) { check_call(3, task); });
}

void check_after_fork() {
  const pid_t child = fork();
  require(child >= 0, "fork works");
  if (child == 0) {
    check_call(3, 50);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a forked child has a pool of its own");
}

}  // namespace

int main() {
  check_calls(0, 2000);
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) callers.emplace_back([i] { check_calls(i, 2000); });
  for (std::thread& caller : callers) caller.join();
  check_tasks_that_call();
#if !defined(__SANITIZE_THREAD__)  // which refuses new threads in a child of many threads
  check_after_fork();
#endif
  return 0;
}

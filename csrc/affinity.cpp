#include "affinity.h"

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

#include "thread_pool.h"

namespace headrace {
namespace {

std::mutex mutex;
std::vector<int> binding;
std::atomic<int> generation{0};  // rises with every binding

#if defined(__linux__)
bool bind_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  return pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
}

bool may_use(int cpu) {
  cpu_set_t before;
  if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
  if (pthread_getaffinity_np(pthread_self(), sizeof before, &before) != 0) return false;
  const bool bound = bind_to(cpu);
  pthread_setaffinity_np(pthread_self(), sizeof before, &before);
  return bound;
}
#endif

}  // namespace

void bind_threads(const std::vector<int>& cpus) {
#if defined(__linux__)
  for (const int cpu : cpus) {
    if (!may_use(cpu)) {
      throw std::invalid_argument("processor " + std::to_string(cpu) + " cannot be used here");
    }
  }
#else
  if (!cpus.empty()) throw std::invalid_argument("this system cannot bind threads to processors");
#endif
  available_cores();  // counted before any thread is bound
  const std::lock_guard lock(mutex);
  binding = cpus;
  generation.fetch_add(1);
}

void bind_this_thread(int index) {
  thread_local int seen = 0;
  if (seen == generation.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex);
  seen = generation.load();
#if defined(__linux__)
  // It was possible when the binding was made; if it no longer is, work goes on anywhere.
  if (!binding.empty()) bind_to(binding[static_cast<std::size_t>(index) % binding.size()]);
#else
  (void)index;
#endif
}

}  // namespace headrace

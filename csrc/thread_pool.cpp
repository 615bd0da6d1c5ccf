#include "thread_pool.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

#include "affinity.h"
#include "fences.h"

namespace headrace {
namespace {

constexpr auto kSpinTime = std::chrono::microseconds(60);
// Some tens of microseconds: more than one waits for the last task of a small call.
constexpr int kPausesBeforeYield = 1000;

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// For tools that list threads.
void name_this_thread(const std::string& name) {
#if defined(__linux__)
  pthread_setname_np(pthread_self(), name.c_str());
#else
  (void)name;
#endif
}

// Says which call workers may join, in one word: a number that rises with every call, whether the
// call is open, and how many workers are inside. A worker enters and leaves by changing the count,
// so the caller never waits for a worker that the system has not given a core in time.
class Gate {
 public:
  static constexpr std::uint64_t kOpen = 1u << 16;
  static constexpr std::uint64_t kCall = kOpen << 1;

  void open() { state_.store((call() + 1) * kCall | kOpen); }
  std::uint64_t call() const { return state_.load() / kCall; }

  bool enter(std::uint64_t call) {
    std::uint64_t state = state_.load();
    while (state / kCall == call && (state & kOpen)) {
      if (state_.compare_exchange_weak(state, state + 1)) return true;
    }
    return false;
  }

  void leave() { state_.fetch_sub(1); }

  void close_and_wait() {
    state_.fetch_and(~kOpen);
    // A worker that long has lost its core, perhaps to this very wait.
    for (int i = 0; state_.load() & (kOpen - 1); ++i) {
      i < kPausesBeforeYield ? pause_briefly() : std::this_thread::yield();
    }
  }

 private:
  std::atomic<std::uint64_t> state_{0};
};

struct Call {
  TaskFunction function = nullptr;
  void* context = nullptr;
  int num_tasks = 0;
  int num_workers = 0;
};

// Never destroyed: its threads sleep until the process ends.
class Pool {
 public:
  bool try_enter() { return !busy_.exchange(true); }
  void exit() { busy_.store(false); }

  void run(int num_threads, const Call& call) {
    while (static_cast<int>(workers_.size()) < num_threads - 1) {
      const int index = static_cast<int>(workers_.size());
      workers_.emplace_back([this, index] { work(index); });
    }
    call_ = call;
    call_.num_workers = num_threads - 1;
    next_.store(0);
    gate_.open();
    if (num_sleeping_.load() > 0) {
      // The lock makes sure that a worker about to sleep sees the open gate or hears the bell.
      const std::lock_guard lock(sleep_mutex_);
      wake_.notify_all();
    }
    take_tasks();
    gate_.close_and_wait();
  }

 private:
  void take_tasks() {
    for (int task = next_.fetch_add(1); task < call_.num_tasks; task = next_.fetch_add(1)) {
      call_.function(call_.context, task);
    }
  }

  void work(int index) {
    name_this_thread("headrace-" + std::to_string(index + 1));
    std::uint64_t seen = 0;
    for (;;) {
      wait_for_call(seen);
      seen = gate_.call();
      if (!gate_.enter(seen)) continue;
      bind_this_thread(index + 1);
      if (index < call_.num_workers) take_tasks();
      gate_.leave();
    }
  }

  void wait_for_call(std::uint64_t seen) {
    const auto until = std::chrono::steady_clock::now() + kSpinTime;
    do {
      for (int i = 0; i < 64; ++i) {
        if (gate_.call() != seen) return;
        pause_briefly();
      }
    } while (std::chrono::steady_clock::now() < until);
    std::unique_lock lock(sleep_mutex_);
    num_sleeping_.fetch_add(1);
    wake_.wait(lock, [&] { return gate_.call() != seen; });
    num_sleeping_.fetch_sub(1);
  }

  std::atomic<bool> busy_{false};
  Gate gate_;
  Call call_;
  alignas(64) std::atomic<int> next_{0};
  alignas(64) std::atomic<int> num_sleeping_{0};
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

std::mutex pool_mutex;
Pool* pool = nullptr;

Pool& process_pool() {
  const std::lock_guard lock(pool_mutex);
  if (!pool) {
    pool = new Pool;
    // A forked child has none of the threads: it forgets the pool and makes its own when needed.
    static const int registered = pthread_atfork(nullptr, nullptr, [] {
      pool = nullptr;
      new (&pool_mutex) std::mutex;
    });
    (void)registered;
  }
  return *pool;
}

struct FreeAligned {
  void operator()(void* p) const { std::free(p); }
};

}  // namespace

int available_cores() {
  // As at first: later the calling thread may be bound to one of them.
  static const int count = [] {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    const unsigned threads = std::thread::hardware_concurrency();
    return threads ? static_cast<int>(threads) : 1;
  }();
  return count;
}

void* thread_scratch(std::size_t bytes) {
  thread_local std::unique_ptr<void, FreeAligned> memory;
  thread_local std::size_t size = 0;
  if (bytes > size) {
    memory.reset();
    size = 0;
    const std::size_t rounded = (bytes + 4095) / 4096 * 4096;
    memory.reset(std::aligned_alloc(4096, rounded + kFence));
    if (!memory) throw std::bad_alloc();
    size = rounded;
  }
  allow_only(memory.get(), bytes, size);
  return memory.get();
}

void run_tasks(int num_threads, int num_tasks, TaskFunction function, void* context) {
  bind_this_thread(0);
  if (num_threads > num_tasks) num_threads = num_tasks;
  if (num_threads > 1) {
    Pool& shared = process_pool();
    if (shared.try_enter()) {
      shared.run(num_threads, {function, context, num_tasks, 0});
      shared.exit();
      return;
    }
  }
  for (int task = 0; task < num_tasks; ++task) function(context, task);
}

}  // namespace headrace

// A persistent team of threads that walks a whole program together and meets at a spin barrier.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "team/elastic.h"

namespace ei {

// Waiters spin, then yield the CPU so that a preempted peer on the same core can arrive.
class Barrier {
 public:
  void wait(int threads);  // how many threads meet

  // Time that threads have waited here beyond a spin, since the last call.
  std::chrono::nanoseconds take_stalled() {
    return std::chrono::nanoseconds(stalled_.exchange(0, std::memory_order_relaxed));
  }

 private:
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int64_t> stalled_{0};  // nanoseconds
};

class Team {
 public:
  using Function = void (*)(void* context, int thread, int threads);

  // cpus: where thread i is pinned (i modulo the list); empty: not pinned. Throws
  // Error("invalid_parameter") for a count outside 1..1024.
  Team(int threads, std::vector<int> cpus);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Runs function on every thread, the caller being thread 0, and returns when all are done. Calls
  // from several threads take turns. Throws Error("execution_failed") in a forked child: threads do
  // not survive fork.
  void run(Function function, void* context);

  // The same, on as many threads as have CPUs of their own (see Elastic): for functions that give
  // the same results on any number of threads.
  void run_elastic(Function function, void* context);

  int threads() const { return threads_; }
  const std::vector<int>& cpus() const { return cpus_; }
  Barrier& barrier() { return barrier_; }

 private:
  void work(int thread);
  std::unique_lock<std::mutex> begin();
  void run_on(int threads, Function function, void* context);

  const int threads_;
  const std::vector<int> cpus_;
  const pid_t owner_;
  Barrier barrier_;
  std::mutex turn_;
  Function function_ = nullptr;
  void* context_ = nullptr;
  bool stop_ = false;
  Elastic elastic_;
  // How often the team ran, and on how many threads (lowest bits): one word, so that a thread left
  // out cannot take the number of one run for another's.
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int> running_{0};
  std::vector<std::thread> workers_;
};

}  // namespace ei

// A persistent team of threads that walks a whole program together and meets at a spin barrier.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace ei {

// Waiters spin, then yield the CPU so that a preempted peer on the same core can arrive.
class Barrier {
 public:
  void wait(int threads);  // how many threads meet

 private:
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
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

  int threads() const { return threads_; }
  const std::vector<int>& cpus() const { return cpus_; }
  Barrier& barrier() { return barrier_; }

 private:
  void work(int thread);

  const int threads_;
  const std::vector<int> cpus_;
  const pid_t owner_;
  Barrier barrier_;
  std::mutex turn_;
  Function function_ = nullptr;
  void* context_ = nullptr;
  bool stop_ = false;
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int> running_{0};
  std::vector<std::thread> workers_;
};

}  // namespace ei

#include "team/team.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "common/error.h"

namespace ei {
namespace {

constexpr uint32_t kOneRun = 1 << 11;  // a generation counts runs above the bits of its threads

// Longer than the gap between two decode steps, too short to show as idle CPU use.
constexpr auto kSpin = std::chrono::microseconds(100);

template <class Done>
bool spin_until(Done done) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      _mm_pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return done();
}

// Pins the calling thread for the length of a run and gives it its old CPUs back.
class ScopedPin {
 public:
  explicit ScopedPin(int cpu) {
    if (cpu < 0 || sched_getaffinity(0, sizeof(old_), &old_) != 0) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    pinned_ = sched_setaffinity(0, sizeof(one), &one) == 0;
  }
  ~ScopedPin() {
    if (pinned_) sched_setaffinity(0, sizeof(old_), &old_);
  }
  ScopedPin(const ScopedPin&) = delete;
  ScopedPin& operator=(const ScopedPin&) = delete;

 private:
  cpu_set_t old_{};
  bool pinned_ = false;
};

int checked(int threads) {
  if (threads < 1 || threads > 1024)
    throw Error("invalid_parameter",
                "A team has 1 to 1024 threads, not " + std::to_string(threads) + ".");
  return threads;
}

}  // namespace

void Barrier::wait(int threads) {
  if (threads == 1) return;
  const uint32_t generation = generation_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.store(generation + 1, std::memory_order_release);
    return;
  }
  const auto met = [&] { return generation_.load(std::memory_order_acquire) != generation; };
  for (int spins = 0; spins < 4096; ++spins) {
    if (met()) return;
    _mm_pause();
  }
  const auto start = std::chrono::steady_clock::now();
  while (!met()) sched_yield();
  const std::chrono::nanoseconds stalled = std::chrono::steady_clock::now() - start;
  stalled_.fetch_add(stalled.count(), std::memory_order_relaxed);
}

Team::Team(int threads, std::vector<int> cpus)
    : threads_(checked(threads)), cpus_(std::move(cpus)), owner_(getpid()), elastic_(threads) {
  for (int cpu : cpus_)
    if (cpu < 0 || cpu >= CPU_SETSIZE)
      throw Error("invalid_parameter", "CPU number " + std::to_string(cpu) + " is out of range.");
  workers_.reserve(threads - 1);
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

Team::~Team() {
  if (getpid() != owner_) {
    for (std::thread& t : workers_) t.detach();  // they exist only in the parent
    return;
  }
  stop_ = true;
  generation_.fetch_add(kOneRun, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& t : workers_) t.join();
}

std::unique_lock<std::mutex> Team::begin() {
  if (getpid() != owner_)
    throw Error("execution_failed",
                "The model was opened before fork(); threads do not survive it. Open it in the "
                "child process.");
  return std::unique_lock<std::mutex>(turn_);
}

void Team::run(Function function, void* context) {
  const auto lock = begin();
  const ScopedPin pin(cpus_.empty() ? -1 : cpus_[0]);
  run_on(threads_, function, context);
}

void Team::run_elastic(Function function, void* context) {
  const auto lock = begin();
  const auto start = Elastic::Clock::now();
  const int threads = elastic_.threads(start);
  // Alone, the caller goes wherever there is room.
  const ScopedPin pin(cpus_.empty() || threads < threads_ ? -1 : cpus_[0]);
  barrier_.take_stalled();
  run_on(threads, function, context);
  elastic_.finished(threads, start, Elastic::Clock::now(), barrier_.take_stalled());
}

void Team::run_on(int threads, Function function, void* context) {
  if (threads == 1) {
    function(context, 0, 1);
    return;
  }
  function_ = function;
  context_ = context;
  running_.store(threads - 1, std::memory_order_relaxed);
  const uint32_t last = generation_.load(std::memory_order_relaxed) & ~(kOneRun - 1);
  generation_.store(last + kOneRun + static_cast<uint32_t>(threads), std::memory_order_release);
  generation_.notify_all();
  function(context, 0, threads);
  const auto done = [this] { return running_.load(std::memory_order_acquire) == 0; };
  while (!spin_until(done)) sched_yield();
}

void Team::work(int thread) {
  if (!cpus_.empty()) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpus_[thread % cpus_.size()], &one);
    pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
  }
  uint32_t seen = 0;
  for (;;) {
    if (!spin_until([&] { return generation_.load(std::memory_order_acquire) != seen; }))
      generation_.wait(seen, std::memory_order_acquire);
    const uint32_t now = generation_.load(std::memory_order_acquire);
    if (now == seen) continue;
    seen = now;
    if (stop_) return;
    const int threads = static_cast<int>(now & (kOneRun - 1));
    if (thread >= threads) continue;
    function_(context_, thread, threads);
    running_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

}  // namespace ei

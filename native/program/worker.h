// One thread's view of the running step.
#pragma once
#include "program/program.h"

namespace ei {

struct Program::Worker {
  int thread;
  int threads;
  Barrier& barrier;
  uint8_t* scratch;          // private_stride_ bytes, 64-byte aligned
  OpTimes* times = nullptr;  // of the running operation, where this thread is timed
  Clock::time_point last{};

  // The time since the last lap goes to this part of the running operation.
  void lap(double OpTimes::* part) {
    if (times == nullptr) return;
    const Clock::time_point now = Clock::now();
    times->*part += std::chrono::duration<double>(now - last).count();
    last = now;
  }
  void wait() {
    lap(&OpTimes::work);
    barrier.wait(threads);
    lap(&OpTimes::wait);
  }

  int begin(int rows) const {
    return static_cast<int>(static_cast<int64_t>(rows) * thread / threads);
  }
  int end(int rows) const {
    return static_cast<int>(static_cast<int64_t>(rows) * (thread + 1) / threads);
  }
};

}  // namespace ei

// One thread's view of the running step.
#pragma once
#include "program/program.h"

namespace ei {

struct Program::Worker {
  int thread;
  int threads;
  Barrier& barrier;
  uint8_t* scratch;  // private_stride_ bytes, 64-byte aligned

  int begin(int rows) const {
    return static_cast<int>(static_cast<int64_t>(rows) * thread / threads);
  }
  int end(int rows) const {
    return static_cast<int>(static_cast<int64_t>(rows) * (thread + 1) / threads);
  }
};

}  // namespace ei

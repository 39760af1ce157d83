// Memory and threads of a caller from outside (torch): linears take both from the calling thread.
#pragma once
#include <algorithm>
#include <cstdint>

#include "common/arena.h"
#include "team/openmp.h"

namespace ei {

// Multiply-adds, or elements of a row operation times 16, that are not worth waking threads for.
constexpr int64_t kSmallWork = 1 << 16;

// Memory that a calling thread keeps from one use to the next; pages appear as they are used.
class Workspace {
 public:
  uint8_t* reserve(int64_t bytes) {
    if (static_cast<int64_t>(arena_.size()) < bytes) {
      arena_ = Arena();
      arena_ = Arena(static_cast<size_t>((bytes + (1 << 20) - 1) >> 20 << 20));
    }
    return arena_.data();
  }

 private:
  Arena arena_;
};

// The runtime for that much work; null: the caller alone.
inline const OpenMp* threads_for(int64_t work) {
  return work <= kSmallWork ? nullptr : OpenMp::find();
}

// Calls f(thread, threads) on the caller's OpenMP threads, or on the caller alone. f must not
// throw.
template <class F>
void on_threads(const OpenMp* omp, F f) {
  const auto call = [](void* context, int thread, int threads) {
    (*static_cast<F*>(context))(thread, threads);
  };
  if (omp != nullptr) {
    omp->run(call, &f);
  } else {
    f(0, 1);
  }
}

// Calls f(row) for every row, shared out.
template <class F>
void for_rows(int64_t rows, int64_t width, F f) {
  on_threads(threads_for(rows * width * 16), [&](int thread, int threads) {
    for (int64_t r = rows * thread / threads; r < rows * (thread + 1) / threads; ++r) f(r);
  });
}

}  // namespace ei

// How the blocks of an operation are dealt out to the threads of a team.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

namespace ei {

// What has been taken of each thread's range: blocks from its front (low half of the word) and from
// its back (high half). All zero before the operation.
struct Claims {
  std::atomic<uint64_t>* taken;  // of thread 0
  int64_t stride;                // from one thread's word to the next one's

  std::atomic<uint64_t>& of(int thread) const { return taken[thread * stride]; }
};

struct Blocks {
  int begin, end;
};

// Thread t's own range of `total` blocks, cut at multiples of `unit`.
inline Blocks own_blocks(int total, int unit, int thread, int threads) {
  const int64_t units = (total + unit - 1) / unit;
  const auto cut = [&](int t) {
    return static_cast<int>(std::min<int64_t>(total, units * t / threads * unit));
  };
  return {cut(thread), cut(thread + 1)};
}

// The next blocks of an owner's range, empty when none are left: for the owner a quarter of them
// from the front, so that it reads on where it was; for another thread half of them from the back.
inline Blocks claim(const Blocks& own, int unit, std::atomic<uint64_t>& taken, bool owner) {
  uint64_t seen = taken.load(std::memory_order_relaxed);
  for (;;) {
    const int begin = own.begin + static_cast<int>(seen & 0xffffffffu);
    const int end = own.end - static_cast<int>(seen >> 32);
    if (begin >= end) return {0, 0};
    const int wanted = std::max(1, (end - begin) / (owner ? 4 : 2));
    Blocks b{begin, std::min(end, begin + (wanted + unit - 1) / unit * unit)};
    if (!owner) b = {std::max(begin, (end - wanted) / unit * unit), end};
    const uint64_t more = static_cast<uint64_t>(b.end - b.begin) << (owner ? 0 : 32);
    if (taken.compare_exchange_weak(seen, seen + more, std::memory_order_relaxed)) return b;
  }
}

// Calls f(begin, end) for the thread's share of `total` blocks: most of its own contiguous range,
// then what others have left of theirs, in ever smaller pieces, so that all end together and a core
// that was taken away for a moment does not hold the others up.
template <class F>
void share_blocks(int total, int unit, int thread, int threads, const Claims& claims, F f) {
  for (int i = 0; i < threads; ++i) {
    const int owner = (thread + i) % threads;
    const Blocks own = own_blocks(total, unit, owner, threads);
    for (Blocks b; (b = claim(own, unit, claims.of(owner), i == 0)).begin < b.end;)
      f(b.begin, b.end);
  }
}

}  // namespace ei

// How many threads of a team run a step. Where other processes keep a CPU busy, every barrier waits
// until the thread there gets its turn, and a step takes longer than fewer threads would need.
#pragma once
#include <algorithm>
#include <chrono>

namespace ei {

class Elastic {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Elastic(int threads) : all_(threads), active_(threads) {}

  // Threads for a step that starts now: now and then all of them, to see whether they have CPUs.
  int threads(Clock::time_point now) const { return now >= retry_ ? all_ : active_; }

  // What came of it: `stalled` is the time that its threads together waited beyond a spin.
  void finished(int threads, Clock::time_point begin, Clock::time_point end,
                Clock::duration stalled) {
    const bool held_up = threads > 1 && stalled / (threads - 1) > (end - begin) / 2;
    if (!held_up) {
      held_up_ = 0;
      if (threads == all_) *this = Elastic(all_);
      return;
    }
    const bool retried = threads == all_ && active_ < all_;
    if (!retried && ++held_up_ < kSteps) return;
    held_up_ = 0;
    if (!retried) active_ = std::max(1, active_ / 2);
    pause_ = std::min<Clock::duration>(retried ? 2 * pause_ : kPause, kLongestPause);
    retry_ = end + pause_;
  }

 private:
  static constexpr int kSteps = 3;  // in a row: one alone can be an accident
  static constexpr Clock::duration kPause = std::chrono::milliseconds(250);
  static constexpr Clock::duration kLongestPause = std::chrono::seconds(4);

  int all_, active_;
  int held_up_ = 0;
  Clock::duration pause_{};
  Clock::time_point retry_{};
};

}  // namespace ei

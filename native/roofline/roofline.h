// Measures the ceilings of the machine with a team of threads: streaming reads and
// multiply-accumulates.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "common/arena.h"
#include "kernels/kernels.h"
#include "team/team.h"

namespace ei {

// Anonymous memory of which every thread of a team owns one contiguous region, touched by it first.
// The 64-bit words count up from 1, so that the sum of a read is known.
class ReadBuffer {
 public:
  // Throws Error("invalid_parameter") below 4096 bytes a thread, "capacity_exceeded" when the
  // system refuses.
  ReadBuffer(std::shared_ptr<Team> team, int64_t bytes);

  struct Result {
    double seconds;
    uint64_t sum;
  };
  Result read(const KernelTable& kernels);  // every thread reads its region once
  int64_t bytes() const { return static_cast<int64_t>(arena_.size()); }

 private:
  struct Region {
    uint8_t* data;
    int64_t bytes;
  };
  Region region(int thread) const;

  std::shared_ptr<Team> team_;
  Arena arena_;
  int64_t region_bytes_ = 0;
};

struct Peak {
  int64_t operations;  // multiply-accumulates, all threads
  double seconds;
};
// Runs `peak` (KernelTable::peak_int8 or peak_bf16) on every thread at once.
Peak measure_peak(Team& team, int64_t (*peak)(int64_t), int64_t steps);

}  // namespace ei

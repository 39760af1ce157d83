#include "roofline/roofline.h"

#include <chrono>
#include <string>

#include "common/error.h"

namespace ei {
namespace {

constexpr int64_t kPage = 4096;

// Runs work(thread) on every thread between two barriers; seconds by thread 0's clock.
template <class Work>
double timed(Team& team, Work work) {
  struct Run {
    Team& team;
    Work& work;
    double seconds = 0;
  } run{team, work};
  team.run(
      [](void* context, int thread, int) {
        Run& r = *static_cast<Run*>(context);
        r.team.barrier().wait(r.team.threads());
        const auto start = std::chrono::steady_clock::now();
        r.work(thread);
        r.team.barrier().wait(r.team.threads());
        if (thread == 0)
          r.seconds =
              std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      },
      &run);
  return run.seconds;
}

}  // namespace

ReadBuffer::ReadBuffer(std::shared_ptr<Team> team, int64_t bytes) : team_(std::move(team)) {
  region_bytes_ = bytes / team_->threads() / kPage * kPage;
  if (region_bytes_ < kPage || bytes > (int64_t{1} << 46))
    throw Error("invalid_parameter", "A read buffer has 4096 bytes a thread to 64 TiB, not " +
                                         std::to_string(bytes) + " bytes in all.");
  arena_ = Arena(static_cast<size_t>(region_bytes_ * team_->threads()), /*huge=*/true);
  timed(*team_, [this](int thread) {
    const Region r = region(thread);
    auto* words = reinterpret_cast<uint64_t*>(r.data);
    const uint64_t first = static_cast<uint64_t>(r.data - arena_.data()) / 8 + 1;
    for (int64_t i = 0; i < r.bytes / 8; ++i) words[i] = first + static_cast<uint64_t>(i);
  });
}

ReadBuffer::Region ReadBuffer::region(int thread) const {
  return {arena_.data() + region_bytes_ * thread, region_bytes_};
}

ReadBuffer::Result ReadBuffer::read(const KernelTable& kernels) {
  std::vector<uint64_t> sums(team_->threads());
  const double seconds = timed(*team_, [&](int thread) {
    const Region r = region(thread);
    sums[thread] = kernels.stream_read(r.data, r.bytes);
  });
  uint64_t sum = 0;
  for (const uint64_t s : sums) sum += s;
  return {seconds, sum};
}

Peak measure_peak(Team& team, int64_t (*peak)(int64_t), int64_t steps) {
  std::vector<int64_t> operations(team.threads());
  const double seconds = timed(team, [&](int thread) { operations[thread] = peak(steps); });
  int64_t sum = 0;
  for (const int64_t n : operations) sum += n;
  return {sum, seconds};
}

}  // namespace ei

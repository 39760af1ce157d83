#include "checkpoint/quantize.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "common/half.h"
#include "checkpoint/code_lines.h"
#include "checkpoint/vec4.h"
#include "common/error.h"
#include "kernels/kernels.h"

namespace ei {
namespace {

constexpr int kMaxGroup = 128;
constexpr float kHalfMax = 65504.f;
constexpr float kTiny = 0x1p-25f;  // half of the smallest fp16: anything below is best stored as 0

// One group being fitted: values and weights, padded with weight 0.
struct Group {
  alignas(16) float x[kMaxGroup];
  alignas(16) float w[kMaxGroup];
  int size;
  bool weighted;  // false: every weight is 1
};

// Weighted sums over a group for codes q = clamp(round((x - shift) * inverse)).
struct Sums {
  float q, qq, qx;  // x is x - shift here
};

template <bool kWeighted, bool kShifted>
Sums sums(const Group& g, float shift, float inverse, float low, float high) {
  Vec4 q1 = splat(0), qq = splat(0), qx = splat(0);
  const Vec4 inv = splat(inverse), lo = splat(low), hi = splat(high), sh = splat(shift);
  for (int i = 0; i < g.size; i += 4) {
    const Vec4 x = kShifted ? load(g.x + i) - sh : load(g.x + i);
    const Vec4 q = round_nearest(min(max(x * inv, lo), hi));
    const Vec4 wq = kWeighted ? load(g.w + i) * q : q;
    qq = qq + wq * q;
    qx = qx + wq * x;
    if (kShifted) q1 = q1 + wq;
  }
  return {kShifted ? sum(q1) : 0, sum(qq), sum(qx)};
}

Sums sums(const Group& g, float shift, float inverse, float low, float high) {
  return g.weighted ? sums<true, true>(g, shift, inverse, low, high)
                    : sums<false, true>(g, shift, inverse, low, high);
}

Sums sums(const Group& g, float inverse, float low, float high) {
  return g.weighted ? sums<true, false>(g, 0, inverse, low, high)
                    : sums<false, false>(g, 0, inverse, low, high);
}

// Weighted squared error of s*q + m with the nearest codes.
float error_of(const Group& g, float s, float m, float low, float high) {
  const Vec4 inv = splat(s == 0 ? 0 : 1 / s), lo = splat(low), hi = splat(high);
  const Vec4 vs = splat(s), vm = splat(m);
  Vec4 total = splat(0);
  for (int i = 0; i < g.size; i += 4) {
    const Vec4 x = load(g.x + i) - vm, w = load(g.w + i);
    const Vec4 q = round_nearest(min(max(x * inv, lo), hi));
    const Vec4 d = x - vs * q;
    total = total + w * (d * d);
  }
  return sum(total);
}

// The fp16 neighbour of h, one step further from (up) or closer to zero.
uint16_t step(uint16_t h, bool up) {
  const uint16_t magnitude = h & 0x7fff;
  if (up) return magnitude < 0x7bff ? h + 1 : h;
  return magnitude > 0 ? h - 1 : h;
}

struct Fit {
  uint16_t scale = 0;
  uint16_t minimum = 0;
  bool in_range = true;
};

float extreme_of(const Group& g) {
  float best = 0;
  for (int i = 0; i < g.size; ++i) {
    if (std::fabs(g.x[i]) > std::fabs(best)) best = g.x[i];
  }
  return best;
}

// The stored scale nearest to `s` by true error: fp16 rounding and one step to both sides.
uint16_t best_half(const Group& g, float s, float m, float low, float high) {
  const uint16_t centre = float_to_half(s);
  uint16_t best = centre;
  float best_error = error_of(g, half_to_float(centre), m, low, high);
  for (const uint16_t h : {step(centre, true), step(centre, false)}) {
    const float e = error_of(g, half_to_float(h), m, low, high);
    if (e < best_error) {
      best_error = e;
      best = h;
    }
  }
  return best;
}

// Symmetric codes in [low, high]: the extreme value is put on `t` for a range of t, the scale for
// each set of codes is the least-squares one, and the best is refined by alternating both.
Fit fit_symmetric(const Group& g, float low, float high, float t_begin, float t_end, float t_step) {
  Fit fit;
  const float extreme = extreme_of(g);
  if (std::fabs(extreme) < kTiny) return fit;
  float best_gain = 0, best_scale = 0, best_t = 0;
  const auto consider = [&](float inverse, float t) {
    const Sums s = sums(g, inverse, low, high);
    if (s.qq <= 0) return;
    const float scale = s.qx / s.qq, gain = s.qx * scale;  // error = sum w x^2 - gain
    if (gain > best_gain) {
      best_gain = gain;
      best_scale = scale;
      best_t = t;
    }
  };
  const int steps = static_cast<int>((t_end - t_begin) / t_step + 0.5f);
  for (int i = 0; i <= steps; ++i) {
    const float t = t_begin + t_step * static_cast<float>(i);
    consider(t / extreme, t);
    if (low + high != 0) consider(-t / extreme, -t);  // the code range is lopsided: try both signs
  }
  const float middle = best_t;
  for (const float part : {-0.5f, -0.25f, 0.25f, 0.5f}) {
    const float t = middle + part * t_step;
    consider(t / extreme, t);
  }
  if (best_scale == 0) best_scale = extreme / high;  // every value had weight 0
  for (int i = 0; i < 4; ++i) {
    const float before = best_scale;
    consider(1 / best_scale, best_t);
    if (best_scale == before) break;
  }
  fit.in_range = std::fabs(best_scale) <= kHalfMax;
  if (fit.in_range) fit.scale = best_half(g, best_scale, 0, low, high);
  return fit;
}

// Codes 0..high with scale and minimum, solved jointly for each candidate spacing.
Fit fit_minimum(const Group& g, float high) {
  Fit fit;
  float lo = g.x[0], hi = g.x[0];
  for (int i = 1; i < g.size; ++i) {
    lo = std::min(lo, g.x[i]);
    hi = std::max(hi, g.x[i]);
  }
  fit.in_range = std::fabs(lo) <= kHalfMax && hi - lo <= kHalfMax * high;
  if (!fit.in_range) return fit;
  fit.minimum = float_to_half(lo);
  if (hi - lo < kTiny) return fit;

  Vec4 vw = splat(0), vwx = splat(0);
  for (int i = 0; i < g.size; i += 4) {
    vw = vw + load(g.w + i);
    vwx = vwx + load(g.w + i) * (load(g.x + i) - splat(lo));
  }
  const double total_w = sum(vw), total_wx = sum(vwx);
  double best_gain = -1, best_s = (hi - lo) / high, best_m = 0;  // m relative to lo
  const auto consider = [&](float shift, float inverse) {
    const Sums t = sums(g, lo + shift, inverse, 0, high);
    const double qx = t.qx + static_cast<double>(shift) * t.q;  // back to x - lo
    const double det = total_w * t.qq - static_cast<double>(t.q) * t.q;
    if (!(det > 1e-6 * total_w * t.qq)) return;
    const double s = (total_w * qx - t.q * total_wx) / det;
    const double m = (total_wx - s * t.q) / total_w;
    const double gain = s * qx + m * total_wx;
    if (s > 0 && gain > best_gain) {
      best_gain = gain;
      best_s = s;
      best_m = m;
    }
  };
  const float range = hi - lo;
  for (int i = 0; i < 16; ++i) {  // ends clipped by up to 1.5 steps, or 0.6 steps to spare
    const float span = high - 0.6f + 0.25f * static_cast<float>(i);
    const float inverse = span / range;
    const float slack = 0.5f * (span - high) / inverse;  // clip both ends alike
    consider(slack, inverse);
    if (span > high) {
      consider(0, inverse);
      consider(2 * slack, inverse);
    }
  }
  for (int i = 0; i < 4; ++i) {
    const double before = best_s;
    consider(static_cast<float>(best_m), static_cast<float>(1 / best_s));
    if (best_s == before) break;
  }

  // fp16 rounds the scale, then the minimum that suits the rounded scale, then the scale again.
  const auto minimum_for = [&](uint16_t scale) {
    const float s = half_to_float(scale), shift = static_cast<float>(best_m);
    const Sums t = sums(g, lo + shift, s == 0 ? 0 : 1 / s, 0, high);
    return float_to_half(
        static_cast<float>(lo + (total_wx - static_cast<double>(s) * t.q) / total_w));
  };
  const float s = static_cast<float>(best_s);
  fit.in_range = s <= kHalfMax && std::fabs(lo + best_m) <= kHalfMax;
  if (!fit.in_range) return fit;
  if (!(total_w > 0)) {
    fit.scale = float_to_half(s);
    return fit;
  }
  float best_error = INFINITY;
  const uint16_t centre = float_to_half(s);
  for (const uint16_t h : {centre, step(centre, true), step(centre, false)}) {
    for (const uint16_t m : {minimum_for(h), float_to_half(static_cast<float>(lo + best_m))}) {
      const float e = error_of(g, half_to_float(h), half_to_float(m), 0, high);
      if (e < best_error) {
        best_error = e;
        fit.scale = h;
        fit.minimum = m;
      }
    }
  }
  fit.scale = best_half(g, half_to_float(fit.scale), half_to_float(fit.minimum), 0, high);
  return fit;
}

// First trouble of a worker: the lowest row wins, so the message does not depend on the threads.
struct Trouble {
  int64_t row = -1;
  int64_t column = 0;
  bool finite = true;
  float value = 0;
};

class Worker {
 public:
  explicit Worker(const QuantizeJob& job)
      : job_(job),
        k_pad_((job.k + job.group - 1) / job.group * job.group),
        offset_(job.minimum ? 0 : code_offset(job.bits)),
        low_(job.minimum     ? 0.f
             : job.bits == 8 ? -127.f
                             : static_cast<float>(-offset_)),
        high_(job.bits == 8 ? 127.f : static_cast<float>((1 << job.bits) - 1 - offset_)) {
    group_.size = job.group;
  }

  bool block(int64_t b) {
    const int64_t lines = code_lines(k_pad_, job_.bits);
    const int64_t groups = k_pad_ / job_.group;
    uint8_t* codes = job_.codes + b * lines * 64;
    fill_codes(codes, job_.bits, lines, offset_);
    for (int c = 0; c < 16; ++c) {
      const int64_t row = b * 16 + c;
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t at = (b * groups + g) * 16 + c;
        Fit fit;
        if (row < job_.n) {
          if (!load_group(row, g * job_.group)) return false;
          fit = job_.minimum     ? fit_minimum(group_, high_)
                : job_.bits == 4 ? fit_symmetric(group_, -8, 7, 5.7f, 9.3f, 0.3f)
                : job_.bits == 6 ? fit_symmetric(group_, -32, 31, 27.f, 33.f, 0.25f)
                                 : fit_symmetric(group_, -127, 127, 123.5f, 127.5f, 0.5f);
          if (!fit.in_range) {
            trouble = {row, g * job_.group, true, extreme_of(group_)};
            return false;
          }
          store_codes(codes, c, g * job_.group, fit);
        }
        job_.scales[at] = fit.scale;
        if (job_.minimum) job_.minimums[at] = fit.minimum;
      }
    }
    return true;
  }

  Trouble trouble;

 private:
  bool load_group(int64_t row, int64_t begin) {
    const int count = static_cast<int>(std::min<int64_t>(job_.group, job_.k - begin));
    const char* base = static_cast<const char*>(job_.data) + row * job_.row_stride;
    if (job_.type == SourceType::kF32) {
      std::memcpy(group_.x, base + begin * 4, static_cast<size_t>(count) * 4);
    } else {
      uint16_t raw[kMaxGroup];
      std::memcpy(raw, base + begin * 2, static_cast<size_t>(count) * 2);
      for (int i = 0; i < count; ++i) {
        group_.x[i] = job_.type == SourceType::kBf16
                          ? float_from_bits(static_cast<uint32_t>(raw[i]) << 16)
                          : half_to_float(raw[i]);
      }
    }
    uint32_t worst = 0;
    for (int i = 0; i < count; ++i) {
      worst = std::max(worst, bits_from_float(group_.x[i]) & 0x7fffffffu);
      group_.w[i] = job_.importance ? job_.importance[begin + i] : 1.f;
    }
    if (worst >= 0x7f800000u) {
      int i = 0;
      while (std::isfinite(group_.x[i])) ++i;
      trouble = {row, begin + i, false, group_.x[i]};
      return false;
    }
    group_.weighted = job_.importance != nullptr || count < job_.group;
    for (int i = count; i < job_.group; ++i) {  // repeats a value, so that the range is unchanged
      group_.x[i] = group_.x[0];
      group_.w[i] = 0;
    }
    count_ = count;
    return true;
  }

  void store_codes(uint8_t* codes, int channel, int64_t begin, const Fit& fit) const {
    const float s = half_to_float(fit.scale), m = half_to_float(fit.minimum);
    const float inverse = s == 0 ? 0 : 1 / s;
    alignas(16) float q[kMaxGroup];
    for (int i = 0; i < group_.size; i += 4) {
      const Vec4 x = load(group_.x + i) - splat(m);
      store(q + i, round_nearest(min(max(x * splat(inverse), splat(low_)), splat(high_))));
    }
    for (int i = count_; i < group_.size; ++i) q[i] = 0;
    for (int i = 0; i < group_.size; ++i)
      put_code(codes, job_.bits, channel, begin + i, static_cast<int>(q[i]) + offset_);
  }

  const QuantizeJob& job_;
  const int64_t k_pad_;
  const int offset_;        // of stored codes
  const float low_, high_;  // range of codes before it
  Group group_;
  int count_ = 0;
};

[[noreturn]] void refuse(const Trouble& t, const std::string& name, int64_t first_row, int bits) {
  const std::string where = "tensor " + name + " holds " + std::to_string(t.value) + " at row " +
                            std::to_string(first_row + t.row);
  if (!t.finite) {
    throw Error("checkpoint_invalid", where + ", column " + std::to_string(t.column) +
                                          ": the file is damaged or the training diverged.");
  }
  throw Error("checkpoint_invalid", where + ", which " + std::to_string(bits) +
                                        "-bit codes with an fp16 scale cannot hold; exclude it "
                                        "from quantization.");
}

}  // namespace

void quantize(const QuantizeJob& job, const std::string& name, int64_t first_row) {
  const int64_t blocks = (job.n + 15) / 16;
  const int count =
      static_cast<int>(std::clamp<int64_t>(job.threads, 1, std::max<int64_t>(blocks, 1)));
  std::vector<Worker> workers(static_cast<size_t>(count), Worker(job));
  std::atomic<int64_t> next{0};
  std::atomic<bool> stop{false};
  // Blocks are handed out in order and every taken block is finished, so the lowest bad block is
  // always among the reported ones.
  const auto run = [&](Worker& w) {
    while (!stop) {
      const int64_t b = next.fetch_add(1);
      if (b >= blocks) return;
      if (!w.block(b)) {
        stop = true;
        return;
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < count; ++i) {
    try {
      threads.emplace_back(run, std::ref(workers[static_cast<size_t>(i)]));
    } catch (const std::system_error&) {
      break;  // fewer threads, same result
    }
  }
  run(workers[0]);
  for (auto& t : threads) t.join();
  const Trouble* first = nullptr;
  for (const Worker& w : workers) {
    if (w.trouble.row >= 0 && (!first || w.trouble.row < first->row)) first = &w.trouble;
  }
  if (first) refuse(*first, name, first_row, job.bits);
}

}  // namespace ei

// Passes over a vocabulary row, from which native/sampling builds greedy and random choice.
#include "kernels/vecmath.h"

namespace ei::EI_NS {
namespace {

float reduce_max(const float* x, int n) {
  VF top[4];
  for (VF& t : top) t = vset(-INFINITY);
  int i = 0;
  for (; i + 4 * kW <= n; i += 4 * kW)
    for (int j = 0; j < 4; ++j) top[j] = vmax(vload(x + i + j * kW), top[j]);  // NaN never wins
  VF all = vmax(vmax(top[0], top[1]), vmax(top[2], top[3]));
  for (; i + kW <= n; i += kW) all = vmax(vload(x + i), all);
  float max = vreduce_max(all);
  for (; i < n; ++i) max = x[i] > max ? x[i] : max;
  return max;
}

int argmax(const float* x, int n) {
  const float max = reduce_max(x, n);
  const VF m = vset(max);
  int i = 0;
  for (; i + 4 * kW <= n; i += 4 * kW) {
    uint32_t found = 0;
    for (int j = 0; j < 4; ++j) found |= vbits(veq(vload(x + i + j * kW), m));
    if (found != 0) break;
  }
  for (; i < n; ++i)
    if (x[i] == max) return i;
  return 0;  // only NaN
}

// Weights of one vector and of a tail, in f64 sums.
#if EI_LEVEL >= 3
struct Sum {
  __m512d lo = _mm512_setzero_pd(), hi = _mm512_setzero_pd();
  void add(VF v) {
    lo = _mm512_add_pd(lo, _mm512_cvtps_pd(_mm512_castps512_ps256(v)));
    hi = _mm512_add_pd(hi, _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)));
  }
  double total() const { return _mm512_reduce_add_pd(_mm512_add_pd(lo, hi)); }
};
#elif EI_LEVEL >= 1
struct Sum {
  __m256d lo = _mm256_setzero_pd(), hi = _mm256_setzero_pd();
  void add(VF v) {
    lo = _mm256_add_pd(lo, _mm256_cvtps_pd(_mm256_castps256_ps128(v)));
    hi = _mm256_add_pd(hi, _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)));
  }
  double total() const {
    double s[4];
    _mm256_storeu_pd(s, _mm256_add_pd(lo, hi));
    return (s[0] + s[2]) + (s[1] + s[3]);
  }
};
#else
struct Sum {
  double sum = 0.0;
  void add(VF v) { sum += static_cast<double>(v); }
  double total() const { return sum; }
};
#endif

inline VF weight(VF x, VF max, VF inv_temperature) { return vexp((x - max) * inv_temperature); }

double exp_sum(const float* x, int n, float max, float inv_temperature) {
  const VF m = vset(max), t = vset(inv_temperature);
  Sum sum;
  int i = 0;
  for (; i + kW <= n; i += kW) sum.add(weight(vload(x + i), m, t));
  if (i < n) {
    float rest[kW] = {};
    vstore_n(rest, weight(vload_n(x + i, n - i), m, t), n - i);
    sum.add(vload(rest));
  }
  return sum.total();
}

void exp_row(const float* x, int n, float max, float inv_temperature, float* y) {
  const VF m = vset(max), t = vset(inv_temperature);
  int i = 0;
  for (; i + kW <= n; i += kW) vstore(y + i, weight(vload(x + i), m, t));
  if (i < n) vstore_n(y + i, weight(vload_n(x + i, n - i), m, t), n - i);
}

// Returns how many there are, which may exceed capacity; the first `capacity` ids are written.
int collect_above(const float* x, int n, float threshold, int32_t* ids, int capacity) {
  const VF t = vset(threshold);
  int count = 0, i = 0;
  for (; i + kW <= n; i += kW) {
    uint32_t found = vbits(vge(vload(x + i), t));
    if (count + kW > capacity) {
      for (; found != 0; found &= found - 1, ++count)
        if (count < capacity) ids[count] = i + __builtin_ctz(found);
      continue;
    }
    for (; found != 0; found &= found - 1) ids[count++] = i + __builtin_ctz(found);
  }
  for (; i < n; ++i)
    if (x[i] >= threshold) {
      if (count < capacity) ids[count] = i;
      ++count;
    }
  return count;
}

bool all_finite(const float* x, int n) {
  const VF inf = vset(INFINITY);
  constexpr uint32_t kAll = kW == 16 ? 0xffffu : kW == 8 ? 0xffu : 1u;
  int i = 0;
  for (; i + 4 * kW <= n; i += 4 * kW) {
    uint32_t good = kAll;
    for (int j = 0; j < 4; ++j) good &= vbits(vlt(vload(x + i + j * kW), inf));
    if (good != kAll) return false;
  }
  for (; i < n; ++i)
    if (!(x[i] < INFINITY)) return false;
  return true;
}

}  // namespace

void register_sampling(KernelTable& t) {
  t.argmax = argmax;
  t.reduce_max = reduce_max;
  t.exp_sum = exp_sum;
  t.exp_row = exp_row;
  t.collect_above = collect_above;
  t.all_finite = all_finite;
}

}  // namespace ei::EI_NS

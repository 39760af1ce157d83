// The query vectors of one prefill call, and the caller's scratch that holds what belongs to them.
#pragma once
#include "kernels/attention_block.h"

namespace ei::EI_NS {
namespace {

inline int clamp(int x, int lo, int hi) { return x < lo ? lo : x > hi ? hi : x; }
inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Parts of the caller's scratch, each on a 64-byte line; with base null it only counts.
struct Scratch {
  float* base;
  int64_t used = 0;
  float* take(int64_t floats) {
    float* part = base == nullptr ? nullptr : base + used;
    used += round_up(floats, 16);
    return part;
  }
};

// Blocks of the pool of which all scores come before the softmax and all values after it, so that
// accumulators are loaded and stored once a span. Spans start at multiples of their length,
// whatever a call's rows see.
constexpr int kSpan = EI_LEVEL >= 5 ? 1 : 8;
constexpr int kSpanTokens = kSpan * kKvBlock;
constexpr int kStep = 2 * kW;  // tokens of scores or dims of values that a tile keeps in registers

struct Vectors {
  int count, padded;     // rows * group_heads; rounded up to 16
  int group_heads, dim;  // vector i is head i % group_heads of row i / group_heads
  float* scores;         // [padded][kSpanTokens], then weights
  float* sum;            // [padded][8]: sums of weights, not yet folded
  float* max;            // [padded], in powers of 2
  float* keep;           // [padded]: what remains of sum and accumulator when the maximum rises
  int32_t *lo, *hi;      // [padded]: the tokens of the span at hand that a vector sees
};

inline Vectors place_vectors(int rows, int group_heads, int dim, Scratch& s) {
  Vectors v;
  v.count = rows * group_heads;
  v.padded = static_cast<int>(round_up(v.count, 16));
  v.group_heads = group_heads;
  v.dim = dim;
  const int64_t n = v.padded;
  v.scores = s.take(n * kSpanTokens);
  v.sum = s.take(n * 8);
  v.max = s.take(n);
  v.keep = s.take(n);
  v.lo = reinterpret_cast<int32_t*>(s.take(n));
  v.hi = reinterpret_cast<int32_t*>(s.take(n));
  return v;
}

// The first n of 16 or 8 elements, for any n; zeros after them.
template <KvType T>
inline VF load_or_zero(const KvElement<T>* p, int n) {
  if (n >= kW) return vload_kv<T>(p);
  return n > 0 ? vload_kv_n<T>(p, n) : vset(0.0f);
}

// Whether vectors [first, first + count) see anything of the span, and the range that they do.
inline bool seen_range(const Vectors& v, int first, int count, int* lo, int* hi) {
  *lo = kSpanTokens;
  *hi = 0;
  for (int i = first; i < first + count; ++i) {
    if (v.lo[i] >= v.hi[i]) continue;
    *lo = v.lo[i] < *lo ? v.lo[i] : *lo;
    *hi = v.hi[i] > *hi ? v.hi[i] : *hi;
  }
  return *lo < *hi;
}

}  // namespace
}  // namespace ei::EI_NS

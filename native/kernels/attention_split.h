// Decode: one query row over one split of its tokens. Bound by the bandwidth of the KV pool, so
// every key and value is loaded once for all the heads that share it, straight from its stored
// form.
#pragma once
#include "kernels/attention_block.h"

namespace ei::EI_NS {
namespace {

// Heads whose accumulators, two vectors each, fit the registers together with two vectors of keys.
constexpr int kHeadChunk = EI_LEVEL >= 3 ? 8 : 4;

// Few heads leave few chains of dependent sums: those take several sums over interleaved dims, and
// more vectors of values at a time.
template <int G>
constexpr int kChains = G == 1   ? 4
                        : G <= 3 ? 2
                                 : 1;

template <KvType T>
struct BlockPointers {
  const KvElement<T>*keys, *values;            // of the block at hand
  const KvElement<T>*next_keys, *next_values;  // of the next, which only software can foresee
  const float *key_scales, *value_scales;      // of the block at hand; null for 16-bit types
};

template <KvType T>
constexpr int kLineElements = 64 / static_cast<int>(sizeof(KvElement<T>));

// Into the second level: the first has too few buffers for what is underway from memory.
inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

// p[g][t] = scale * q[g] . keys[.][t]
template <KvType T, int G>
inline void dot_keys(const BlockPointers<T>& b, int dim, const float* q, float scale,
                     float (*p)[kKvBlock]) {
  constexpr int kParts = kKvBlock / (2 * kW);
  constexpr int U = kChains<G>;
  for (int part = 0; part < kParts; ++part) {
    const KvElement<T>* keys = b.keys + part * 2 * kW;
    VF s[U][G][2];
    for (int u = 0; u < U; ++u)
      for (int g = 0; g < G; ++g) s[u][g][0] = s[u][g][1] = vset(0.0f);
    int d = 0;
    for (; d + U <= dim; d += U)
      for (int u = 0; u < U; ++u) {
        const VF k0 = vload_kv<T>(keys + (d + u) * kKvBlock);
        const VF k1 = vload_kv<T>(keys + (d + u) * kKvBlock + kW);
        if ((d + u) % (kParts * kLineElements<T> / kKvBlock) == part)  // each line once
          prefetch(b.next_keys + (d + u) * kKvBlock);
        for (int g = 0; g < G; ++g) {
          const VF x = vset(q[g * dim + d + u]);
          s[u][g][0] = vfma(x, k0, s[u][g][0]);
          s[u][g][1] = vfma(x, k1, s[u][g][1]);
        }
      }
    for (; d < dim; ++d)
      for (int g = 0; g < G; ++g) {
        const VF x = vset(q[g * dim + d]);
        s[0][g][0] = vfma(x, vload_kv<T>(keys + d * kKvBlock), s[0][g][0]);
        s[0][g][1] = vfma(x, vload_kv<T>(keys + d * kKvBlock + kW), s[0][g][1]);
      }
    for (int half = U / 2; half > 0; half /= 2)
      for (int u = 0; u < half; ++u)
        for (int g = 0; g < G; ++g)
          for (int j = 0; j < 2; ++j) s[u][g][j] = s[u][g][j] + s[u + half][g][j];
    for (int g = 0; g < G; ++g)
      for (int j = 0; j < 2; ++j) vstore(p[g] + (part * 2 + j) * kW, s[0][g][j] * vset(scale));
  }
}

// acc[g][d..] = acc[g][d..]*keep[g] + weights of G heads over tokens [lo, hi), NV vectors of dims.
template <KvType T, int G, int NV>
inline void add_values(const BlockPointers<T>& b, int dim, int d, int lo, int hi,
                       const float (*p)[kKvBlock], const float* keep, float* acc) {
  VF sum[G][NV];
  for (int g = 0; g < G; ++g)
    for (int j = 0; j < NV; ++j)
      sum[g][j] = vload(acc + static_cast<int64_t>(g) * dim + d + j * kW) * vset(keep[g]);
  const int64_t first = static_cast<int64_t>(lo) * dim + d;
  const KvElement<T>*v = b.values + first, *next = b.next_values + first;
  for (int t = lo; t < hi; ++t, v += dim, next += dim) {
    VF x[NV];
    for (int j = 0; j < NV; ++j) x[j] = vload_kv<T>(v + j * kW);
    for (int j = 0; j < NV * kW; j += kLineElements<T>) prefetch(next + j);
    for (int g = 0; g < G; ++g) {
      const VF w = vset(p[g][t]);
      for (int j = 0; j < NV; ++j) sum[g][j] = vfma(w, x[j], sum[g][j]);
    }
  }
  for (int g = 0; g < G; ++g)
    for (int j = 0; j < NV; ++j)
      vstore(acc + static_cast<int64_t>(g) * dim + d + j * kW, sum[g][j]);
}

template <KvType T, int G>
inline void add_values_tail(const KvElement<T>* values, int dim, int d, int lo, int hi,
                            const float (*p)[kKvBlock], const float* keep, float* acc) {
  const int n = dim - d;
  for (int g = 0; g < G; ++g) {
    float* at = acc + static_cast<int64_t>(g) * dim + d;
    VF sum = vload_n(at, n) * vset(keep[g]);
    for (int t = lo; t < hi; ++t)
      sum = vfma(vset(p[g][t]), vload_kv_n<T>(values + static_cast<int64_t>(t) * dim + d, n), sum);
    vstore_n(at, sum, n);
  }
}

// Scores to weights exp(s - base) in place, times the value scales; returns the sum without them.
inline float weigh_scores(float* s, float base, const float* value_scales) {
  VF e[kScoreVectors], scaled[kScoreVectors];
  for (int j = 0; j < kScoreVectors; ++j) scaled[j] = e[j] = vexp(vload(s + j * kW) - vset(base));
  scale_weights(scaled, value_scales);
  for (int j = 0; j < kScoreVectors; ++j) vstore(s + j * kW, scaled[j]);
  return fold8(sum_to_8(e));
}

template <KvType T, int G>
void split_block(const AttentionArgs& a, const BlockPointers<T>& b, const float* q, int lo, int hi,
                 float* m, float* l, float* acc) {
  const int dim = a.kv->head_dim;
  float p[G][kKvBlock];
  dot_keys<T, G>(b, dim, q, a.scale, p);
  float base[G], keep[kHeadChunk] = {};
  for (int g = 0; g < G; ++g) {
    const float top = vreduce_max(finish_scores(p[g], b.key_scales, a.softcap, 1.0f, lo, hi));
    const float max = top > m[g] ? top : m[g];
    base[g] = softmax_base(max);
    keep[g] = m[g] - base[g];
    m[g] = max;
  }
  static_assert(kHeadChunk <= kW, "one vector holds what the heads keep");
  vstore_n(keep, vexp(vload_n(keep, kHeadChunk)), kHeadChunk);
  for (int g = 0; g < G; ++g) l[g] = l[g] * keep[g] + weigh_scores(p[g], base[g], b.value_scales);
  constexpr int NV = 2 * kChains<G>;
  int d = 0;
  for (; d + NV * kW <= dim; d += NV * kW) add_values<T, G, NV>(b, dim, d, lo, hi, p, keep, acc);
  for (; d + kW <= dim; d += kW) add_values<T, G, 1>(b, dim, d, lo, hi, p, keep, acc);
  if (d < dim) add_values_tail<T, G>(b.values, dim, d, lo, hi, p, keep, acc);
}

template <KvType T>
void split_heads(const AttentionArgs& a, const BlockPointers<T>& b, int heads, const float* q,
                 int lo, int hi, float* m, float* l, float* acc) {
  switch (heads) {
    case 1:
      return split_block<T, 1>(a, b, q, lo, hi, m, l, acc);
    case 2:
      return split_block<T, 2>(a, b, q, lo, hi, m, l, acc);
    case 3:
      return split_block<T, 3>(a, b, q, lo, hi, m, l, acc);
    case 4:
      return split_block<T, 4>(a, b, q, lo, hi, m, l, acc);
#if EI_LEVEL >= 3
    case 5:
      return split_block<T, 5>(a, b, q, lo, hi, m, l, acc);
    case 6:
      return split_block<T, 6>(a, b, q, lo, hi, m, l, acc);
    case 7:
      return split_block<T, 7>(a, b, q, lo, hi, m, l, acc);
    case 8:
      return split_block<T, 8>(a, b, q, lo, hi, m, l, acc);
#endif
  }
}

template <KvType T>
void split(const AttentionArgs& a, const float* q, int begin, int end, float* m, float* l,
           float* acc) {
  const int64_t dim = a.kv->head_dim;
  for (int g = 0; g < a.group_heads; ++g) {
    m[g] = -INFINITY;
    l[g] = 0.0f;
  }
  memset(acc, 0, static_cast<size_t>(a.group_heads * dim) * sizeof(float));
  for (int t = begin; t < end;) {
    const int index = t / kKvBlock;
    const int start = index * kKvBlock;
    const int hi = end - start < kKvBlock ? end - start : kKvBlock;
    const int32_t block = a.blocks[index];
    const bool last = start + kKvBlock >= end, known = a.next_block >= 0;
    const int32_t next = !last ? a.blocks[index + 1] : known ? a.next_block : block;
    const int32_t next_head = last && known ? a.next_kv_head : a.kv_head;
    const BlockPointers<T> b{block_keys<T>(*a.kv, block, a.kv_head),
                             block_values<T>(*a.kv, block, a.kv_head),
                             block_keys<T>(*a.kv, next, next_head),
                             block_values<T>(*a.kv, next, next_head),
                             block_key_scales<T>(*a.kv, block, a.kv_head),
                             block_value_scales<T>(*a.kv, block, a.kv_head)};
    for (int g = 0; g < a.group_heads; g += kHeadChunk) {
      const int heads = a.group_heads - g < kHeadChunk ? a.group_heads - g : kHeadChunk;
      split_heads<T>(a, b, heads, q + g * dim, t - start, hi, m + g, l + g, acc + g * dim);
    }
    t = start + hi;
  }
}

void attention_split(const AttentionArgs& a, const float* q, int begin, int end, float* m, float* l,
                     float* acc) {
  switch (a.kv->type) {
    case KvType::kF16:
      return split<KvType::kF16>(a, q, begin, end, m, l, acc);
    case KvType::kBf16:
      return split<KvType::kBf16>(a, q, begin, end, m, l, acc);
    case KvType::kI8:
      return split<KvType::kI8>(a, q, begin, end, m, l, acc);
  }
}

}  // namespace
}  // namespace ei::EI_NS

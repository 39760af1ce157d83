// Decode: one query row over one split of its tokens. Bound by the bandwidth of the KV pool, so
// every key and value is loaded once for all the heads that share it, straight from its 16-bit
// form.
#pragma once
#include "kernels/attention_block.h"

namespace ei::EI_NS {
namespace {

#if EI_LEVEL == 0

template <KvType T>
void split(const AttentionArgs& a, const float* q, int begin, int end, float* m, float* l,
           float* acc) {
  const int dim = a.kv->head_dim;
  for (int g = 0; g < a.group_heads; ++g) {
    const float* qg = q + static_cast<int64_t>(g) * dim;
    float* out = acc + static_cast<int64_t>(g) * dim;
    float max = -INFINITY, sum = 0.0f;
    for (int d = 0; d < dim; ++d) out[d] = 0.0f;
    for (int t = begin; t < end;) {
      const int block_start = t / kKvBlock * kKvBlock;
      const int lo = t - block_start;
      const int hi = end - block_start < kKvBlock ? end - block_start : kKvBlock;
      const int32_t block = a.blocks[block_start / kKvBlock];
      const uint16_t* keys = block_keys(*a.kv, block, a.kv_head);
      const uint16_t* values = block_values(*a.kv, block, a.kv_head);
      float s[kKvBlock] = {};
      for (int d = 0; d < dim; ++d)
        for (int i = 0; i < kKvBlock; ++i) s[i] += qg[d] * kv_to_float<T>(keys[d * kKvBlock + i]);
      float top = max;
      for (int i = lo; i < hi; ++i) {
        s[i] *= a.scale;
        if (a.softcap > 0.0f) s[i] = a.softcap * tanhf(s[i] / a.softcap);
        top = s[i] > top ? s[i] : top;
      }
      const float base = softmax_base(top);
      const float keep = expf(max - base);
      sum *= keep;
      for (int d = 0; d < dim; ++d) out[d] *= keep;
      for (int i = lo; i < hi; ++i) {
        const float w = expf(s[i] - base);
        sum += w;
        const uint16_t* v = values + static_cast<int64_t>(i) * dim;
        for (int d = 0; d < dim; ++d) out[d] += w * kv_to_float<T>(v[d]);
      }
      max = top;
      t = block_start + hi;
    }
    m[g] = max;
    l[g] = sum;
  }
}

#else

// Heads whose accumulators, two vectors each, fit the registers together with two vectors of keys.
constexpr int kHeadChunk = EI_LEVEL >= 3 ? 8 : 4;

// acc[g][d..] = acc[g][d..]*keep[g] + weights of G heads over tokens [lo, hi), NV vectors of dims.
template <KvType T, int G, int NV>
inline void add_values(const uint16_t* values, int dim, int lo, int hi, const float (*p)[kKvBlock],
                       const float* keep, float* acc) {
  VF sum[G][NV];
  for (int g = 0; g < G; ++g)
    for (int j = 0; j < NV; ++j)
      sum[g][j] = vload(acc + static_cast<int64_t>(g) * dim + j * kW) * vset(keep[g]);
  const uint16_t* v = values + static_cast<int64_t>(lo) * dim;
  for (int t = lo; t < hi; ++t, v += dim) {
    VF x[NV];
    for (int j = 0; j < NV; ++j) x[j] = vload_kv<T>(v + j * kW);
    for (int g = 0; g < G; ++g) {
      const VF w = vset(p[g][t]);
      for (int j = 0; j < NV; ++j) sum[g][j] = vfma(w, x[j], sum[g][j]);
    }
  }
  for (int g = 0; g < G; ++g)
    for (int j = 0; j < NV; ++j) vstore(acc + static_cast<int64_t>(g) * dim + j * kW, sum[g][j]);
}

template <KvType T, int G>
inline void add_values_tail(const uint16_t* values, int dim, int n, int lo, int hi,
                            const float (*p)[kKvBlock], const float* keep, float* acc) {
  for (int g = 0; g < G; ++g) {
    float* at = acc + static_cast<int64_t>(g) * dim;
    VF sum = vload_n(at, n) * vset(keep[g]);
    for (int t = lo; t < hi; ++t)
      sum = vfma(vset(p[g][t]), vload_kv_n<T>(values + static_cast<int64_t>(t) * dim, n), sum);
    vstore_n(at, sum, n);
  }
}

template <KvType T, int G>
void split_block(const AttentionArgs& a, int32_t block, int32_t next, const float* q, int lo,
                 int hi, float* m, float* l, float* acc) {
  const int dim = a.kv->head_dim;
  const uint16_t* keys = block_keys(*a.kv, block, a.kv_head);
  const uint16_t* values = block_values(*a.kv, block, a.kv_head);
  const char* next_keys = reinterpret_cast<const char*>(block_keys(*a.kv, next, a.kv_head));
  const char* next_values = reinterpret_cast<const char*>(block_values(*a.kv, next, a.kv_head));
  float p[G][kKvBlock];
  for (int part = 0; part < kKvBlock; part += 2 * kW) {
    VF s[G][2];
    for (int g = 0; g < G; ++g) s[g][0] = s[g][1] = vset(0.0f);
    for (int d = 0; d < dim; ++d) {
      const VF k0 = vload_kv<T>(keys + d * kKvBlock + part);
      const VF k1 = vload_kv<T>(keys + d * kKvBlock + part + kW);
      if (part == 0) {  // the next block is elsewhere: the hardware cannot foresee it
        _mm_prefetch(next_keys + d * 64, _MM_HINT_T0);
        _mm_prefetch(next_values + d * 64, _MM_HINT_T0);
      }
      for (int g = 0; g < G; ++g) {
        const VF x = vset(q[g * dim + d]);
        s[g][0] = vfma(x, k0, s[g][0]);
        s[g][1] = vfma(x, k1, s[g][1]);
      }
    }
    for (int g = 0; g < G; ++g) {
      vstore(p[g] + part, s[g][0]);
      vstore(p[g] + part + kW, s[g][1]);
    }
  }
  float keep[G];
  for (int g = 0; g < G; ++g) {
    const float top = vreduce_max(finish_scores(p[g], a.scale, a.softcap, lo, hi));
    const float max = top > m[g] ? top : m[g];
    const float base = softmax_base(max);
    const float sum = fold8(weigh_scores(p[g], base));
    keep[g] = vfirst(vexp(vset(m[g] - base)));
    l[g] = l[g] * keep[g] + sum;
    m[g] = max;
  }
  int d = 0;
  for (; d + 2 * kW <= dim; d += 2 * kW)
    add_values<T, G, 2>(values + d, dim, lo, hi, p, keep, acc + d);
  for (; d + kW <= dim; d += kW) add_values<T, G, 1>(values + d, dim, lo, hi, p, keep, acc + d);
  if (d < dim) add_values_tail<T, G>(values + d, dim, dim - d, lo, hi, p, keep, acc + d);
}

template <KvType T>
void split_heads(const AttentionArgs& a, int heads, int32_t block, int32_t next, const float* q,
                 int lo, int hi, float* m, float* l, float* acc) {
  switch (heads) {
    case 1:
      return split_block<T, 1>(a, block, next, q, lo, hi, m, l, acc);
    case 2:
      return split_block<T, 2>(a, block, next, q, lo, hi, m, l, acc);
    case 3:
      return split_block<T, 3>(a, block, next, q, lo, hi, m, l, acc);
    case 4:
      return split_block<T, 4>(a, block, next, q, lo, hi, m, l, acc);
#if EI_LEVEL >= 3
    case 5:
      return split_block<T, 5>(a, block, next, q, lo, hi, m, l, acc);
    case 6:
      return split_block<T, 6>(a, block, next, q, lo, hi, m, l, acc);
    case 7:
      return split_block<T, 7>(a, block, next, q, lo, hi, m, l, acc);
    case 8:
      return split_block<T, 8>(a, block, next, q, lo, hi, m, l, acc);
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
    const int32_t next = a.blocks[start + kKvBlock < end ? index + 1 : index];
    for (int g = 0; g < a.group_heads; g += kHeadChunk) {
      const int heads = a.group_heads - g < kHeadChunk ? a.group_heads - g : kHeadChunk;
      split_heads<T>(a, heads, a.blocks[index], next, q + g * dim, t - start, hi, m + g, l + g,
                     acc + g * dim);
    }
    t = start + hi;
  }
}

#endif

void attention_split(const AttentionArgs& a, const float* q, int begin, int end, float* m, float* l,
                     float* acc) {
  if (a.kv->type == KvType::kF16) {
    split<KvType::kF16>(a, q, begin, end, m, l, acc);
  } else {
    split<KvType::kBf16>(a, q, begin, end, m, l, acc);
  }
}

void attention_merge(const float* m, const float* l, int64_t m_stride, const float* acc,
                     int64_t acc_stride, int splits, int head_dim, float* out) {
  float max = -INFINITY;
  for (int s = 0; s < splits; ++s) max = m[s * m_stride] > max ? m[s * m_stride] : max;
  const float base = softmax_base(max);
  float total = 0.0f;
  for (int s = 0; s < splits; ++s) {
    const float w = vfirst(vexp(vset(m[s * m_stride] - base)));
    total += w * l[s * m_stride];
  }
  const float inv = total == 0.0f ? 0.0f : 1.0f / total;  // a NaN total passes through
  for (int s = 0; s < splits; ++s) {
    const VF w = vset(vfirst(vexp(vset(m[s * m_stride] - base))) * inv);
    const float* x = acc + s * acc_stride;
    int d = 0;
    for (; d + kW <= head_dim; d += kW) {
      const VF v = w * vload(x + d);
      vstore(out + d, s == 0 ? v : vload(out + d) + v);
    }
    if (d < head_dim) {
      const int n = head_dim - d;
      const VF v = w * vload_n(x + d, n);
      vstore_n(out + d, s == 0 ? v : vload_n(out + d, n) + v, n);
    }
  }
  if (splits <= 0)
    for (int d = 0; d < head_dim; ++d) out[d] = 0.0f;
}

}  // namespace
}  // namespace ei::EI_NS

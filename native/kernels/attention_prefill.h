// Prefill: many query rows of one sequence against its blocks. A block is widened to f32 once for
// all rows; then tiles of query vectors multiply it from registers, as in a matrix product. Every
// query vector keeps its own maximum, sum and accumulator, and sees the same operations in the same
// order whatever shares its tile. (Exception: a NaN or infinite value that any row of the call sees
// makes 0*NaN in the tiles that skip it; such a sequence is lost anyway.)
#pragma once
#include "kernels/attention_split.h"

namespace ei::EI_NS {
namespace {

#if EI_LEVEL == 0

int64_t prefill_scratch_floats(int, int, int) { return 0; }

void attention_prefill(const AttentionArgs& a, const float* q, int64_t q_stride, int rows,
                       const int32_t* begin, const int32_t* end, float*, float* out,
                       int64_t out_stride) {
  const int dim = a.kv->head_dim;
  AttentionArgs one = a;
  one.group_heads = 1;
  for (int r = 0; r < rows; ++r)
    for (int g = 0; g < a.group_heads; ++g) {
      float m, l;
      float* y = out + r * out_stride + static_cast<int64_t>(g) * dim;
      attention_split(one, q + r * q_stride + static_cast<int64_t>(g) * dim, begin[r], end[r], &m,
                      &l, y);
      const float inv = l == 0.0f ? 0.0f : 1.0f / l;
      for (int d = 0; d < dim; ++d) y[d] *= inv;
    }
}

#else

constexpr int kTile = EI_LEVEL >= 3 ? 12 : 6;  // query vectors a tile: two vectors of sums each
constexpr int kTilePad = 16;
constexpr int kStep = 2 * kW;

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Scratch, in floats, every part on a 64-byte line.
struct Prefill {
  int vectors;       // rows * group_heads
  int dim, dim_pad;  // dim_pad: a whole number of register steps
  float* q;          // tiles of [dim][tile rows]
  float* acc;        // [vectors][dim_pad]
  float* sum;        // [vectors][8]
  float* max;        // [vectors]
  float* keys;       // [dim][32]
  float* values;     // [32][dim_pad]
  float* scores;     // [kTile][32]
};

inline int64_t layout(Prefill& p, int rows, int group_heads, int dim, float* base) {
  p.vectors = rows * group_heads;
  p.dim = dim;
  p.dim_pad = static_cast<int>(round_up(dim, kStep));
  int64_t at = 0;
  const auto take = [&](int64_t floats) {
    float* part = base == nullptr ? nullptr : base + at;
    at += round_up(floats, 16);
    return part;
  };
  const int64_t n = p.vectors;
  p.q = take(n * dim);
  p.acc = take(n * p.dim_pad);
  p.sum = take(n * 8);
  p.max = take(n);
  p.keys = take(static_cast<int64_t>(dim) * kKvBlock);
  p.values = take(static_cast<int64_t>(kKvBlock) * p.dim_pad);
  p.scores = take(kTile * kKvBlock);
  return at;
}

int64_t prefill_scratch_floats(int rows, int group_heads, int head_dim) {
  Prefill p;
  return layout(p, rows, group_heads, head_dim, nullptr) + 16;  // slack to align the start
}

template <KvType T>
void widen(const Prefill& p, const uint16_t* keys, const uint16_t* values, int lo, int hi) {
  for (int64_t i = 0; i < static_cast<int64_t>(p.dim) * kKvBlock; i += kW)
    vstore(p.keys + i, vload_kv<T>(keys + i));
  for (int t = 0; t < kKvBlock; ++t) {
    float* y = p.values + static_cast<int64_t>(t) * p.dim_pad;
    if (t < lo || t >= hi) {  // may hold anything; its weight is 0, which 0*NaN would betray
      memset(y, 0, static_cast<size_t>(p.dim_pad) * sizeof(float));
      continue;
    }
    const uint16_t* x = values + static_cast<int64_t>(t) * p.dim;
    int d = 0;
    for (; d + kW <= p.dim; d += kW) vstore(y + d, vload_kv<T>(x + d));
    if (d < p.dim) {
      vstore(y + d, vload_kv_n<T>(x + d, p.dim - d));
      d += kW;
    }
    for (; d < p.dim_pad; d += kW) vstore(y + d, vset(0.0f));
  }
}

// scores[r][t] = q[.][r] . keys[.][t]
template <int R>
void score_tile(const float* q, const float* keys, int dim, float* scores) {
  for (int part = 0; part < kKvBlock; part += kStep) {
    VF s[R][2];
    for (int r = 0; r < R; ++r) s[r][0] = s[r][1] = vset(0.0f);
    const float* x = q;
    const float* k = keys + part;
    for (int d = 0; d < dim; ++d, x += R, k += kKvBlock) {
      const VF k0 = vload(k), k1 = vload(k + kW);
      for (int r = 0; r < R; ++r) {
        const VF b = vset(x[r]);
        s[r][0] = vfma(b, k0, s[r][0]);
        s[r][1] = vfma(b, k1, s[r][1]);
      }
    }
    for (int r = 0; r < R; ++r) {
      vstore(scores + r * kKvBlock + part, s[r][0]);
      vstore(scores + r * kKvBlock + part + kW, s[r][1]);
    }
  }
}

// acc[r] = acc[r]*keep[r] + weights[r] . values
template <int R>
void value_tile(const float* weights, const float* values, int dim_pad, const float* keep,
                float* acc) {
  for (int d = 0; d < dim_pad; d += kStep) {
    VF s[R][2];
    for (int r = 0; r < R; ++r) {
      const float* y = acc + static_cast<int64_t>(r) * dim_pad + d;
      s[r][0] = vload(y) * vset(keep[r]);
      s[r][1] = vload(y + kW) * vset(keep[r]);
    }
    const float* v = values + d;
    for (int t = 0; t < kKvBlock; ++t, v += dim_pad) {
      const VF v0 = vload(v), v1 = vload(v + kW);
      for (int r = 0; r < R; ++r) {
        const VF w = vset(weights[r * kKvBlock + t]);
        s[r][0] = vfma(w, v0, s[r][0]);
        s[r][1] = vfma(w, v1, s[r][1]);
      }
    }
    for (int r = 0; r < R; ++r) {
      float* y = acc + static_cast<int64_t>(r) * dim_pad + d;
      vstore(y, s[r][0]);
      vstore(y + kW, s[r][1]);
    }
  }
}

// One tile of R query vectors, starting at `first`, against the widened block. lo, hi: per vector,
// the tokens of this block that it sees.
template <int R>
void tile_block(const AttentionArgs& a, const Prefill& p, int first, const int* lo, const int* hi) {
  score_tile<R>(p.q + static_cast<int64_t>(first) * p.dim, p.keys, p.dim, p.scores);
  float keep[kTilePad] = {};
  for (int r = 0; r < R; ++r) {
    float* s = p.scores + r * kKvBlock;
    float* max = p.max + first + r;
    const float top = finish_scores(s, a.scale, a.softcap, lo[r], hi[r]);
    const float next = top > *max ? top : *max;
    keep[r] = *max - softmax_base(next);
    *max = next;
  }
  for (int r = 0; r < kTilePad; r += kW) vstore(keep + r, vexp(vload(keep + r)));
  for (int r = 0; r < R; ++r) {
    float sum8[8];
    weigh_scores(p.scores + r * kKvBlock, softmax_base(p.max[first + r]), sum8);
    float* sum = p.sum + static_cast<int64_t>(first + r) * 8;
    _mm256_storeu_ps(
        sum, _mm256_fmadd_ps(_mm256_loadu_ps(sum), _mm256_set1_ps(keep[r]), _mm256_loadu_ps(sum8)));
  }
  value_tile<R>(p.scores, p.values, p.dim_pad, keep,
                p.acc + static_cast<int64_t>(first) * p.dim_pad);
}

void tile_block_any(const AttentionArgs& a, const Prefill& p, int count, int first, const int* lo,
                    const int* hi) {
  switch (count) {
    case 1:
      return tile_block<1>(a, p, first, lo, hi);
    case 2:
      return tile_block<2>(a, p, first, lo, hi);
    case 3:
      return tile_block<3>(a, p, first, lo, hi);
    case 4:
      return tile_block<4>(a, p, first, lo, hi);
    case 5:
      return tile_block<5>(a, p, first, lo, hi);
    case 6:
      return tile_block<6>(a, p, first, lo, hi);
#if EI_LEVEL >= 3
    case 7:
      return tile_block<7>(a, p, first, lo, hi);
    case 8:
      return tile_block<8>(a, p, first, lo, hi);
    case 9:
      return tile_block<9>(a, p, first, lo, hi);
    case 10:
      return tile_block<10>(a, p, first, lo, hi);
    case 11:
      return tile_block<11>(a, p, first, lo, hi);
    case 12:
      return tile_block<12>(a, p, first, lo, hi);
#endif
  }
}

inline int tile_rows(const Prefill& p, int first) {
  return p.vectors - first < kTile ? p.vectors - first : kTile;
}

void pack_queries(const AttentionArgs& a, const Prefill& p, const float* q, int64_t q_stride) {
  for (int first = 0; first < p.vectors; first += kTile) {
    const int count = tile_rows(p, first);
    float* y = p.q + static_cast<int64_t>(first) * p.dim;
    for (int r = 0; r < count; ++r) {
      const int row = (first + r) / a.group_heads, head = (first + r) % a.group_heads;
      const float* x = q + row * q_stride + static_cast<int64_t>(head) * p.dim;
      for (int d = 0; d < p.dim; ++d) y[d * count + r] = x[d];
    }
  }
}

inline int clamp(int x, int lo, int hi) { return x < lo ? lo : x > hi ? hi : x; }

void attention_prefill(const AttentionArgs& a, const float* q, int64_t q_stride, int rows,
                       const int32_t* begin, const int32_t* end, float* scratch, float* out,
                       int64_t out_stride) {
  Prefill p;
  const auto address = reinterpret_cast<uintptr_t>(scratch);
  layout(p, rows, a.group_heads, a.kv->head_dim,
         reinterpret_cast<float*>((address + 63) & ~static_cast<uintptr_t>(63)));
  pack_queries(a, p, q, q_stride);
  memset(p.acc, 0, static_cast<size_t>(p.vectors) * p.dim_pad * sizeof(float));
  memset(p.sum, 0, static_cast<size_t>(p.vectors) * 8 * sizeof(float));
  for (int i = 0; i < p.vectors; ++i) p.max[i] = -INFINITY;

  int first_token = INT32_MAX, last_token = 0;
  for (int r = 0; r < rows; ++r) {
    if (begin[r] >= end[r]) continue;
    first_token = begin[r] < first_token ? begin[r] : first_token;
    last_token = end[r] > last_token ? end[r] : last_token;
  }
  for (int b = first_token / kKvBlock; b * kKvBlock < last_token; ++b) {
    const int start = b * kKvBlock;
    int lo_any = kKvBlock, hi_any = 0;  // what any row sees of this block
    for (int r = 0; r < rows; ++r) {
      const int lo = clamp(begin[r] - start, 0, kKvBlock), hi = clamp(end[r] - start, 0, kKvBlock);
      if (lo >= hi) continue;
      lo_any = lo < lo_any ? lo : lo_any;
      hi_any = hi > hi_any ? hi : hi_any;
    }
    if (lo_any >= hi_any) continue;
    const uint16_t* keys = block_keys(*a.kv, a.blocks[b], a.kv_head);
    const uint16_t* values = block_values(*a.kv, a.blocks[b], a.kv_head);
    if (a.kv->type == KvType::kF16) {
      widen<KvType::kF16>(p, keys, values, lo_any, hi_any);
    } else {
      widen<KvType::kBf16>(p, keys, values, lo_any, hi_any);
    }
    for (int first = 0; first < p.vectors; first += kTile) {
      const int count = tile_rows(p, first);
      int lo[kTile], hi[kTile];
      bool seen = false;
      for (int i = 0; i < count; ++i) {
        const int row = (first + i) / a.group_heads;
        lo[i] = clamp(begin[row] - start, 0, kKvBlock);
        hi[i] = clamp(end[row] - start, 0, kKvBlock);
        seen |= lo[i] < hi[i];
      }
      if (seen) tile_block_any(a, p, count, first, lo, hi);
    }
  }

  for (int i = 0; i < p.vectors; ++i) {
    const float* sum = p.sum + static_cast<int64_t>(i) * 8;
    float total = 0.0f;
    for (int j = 0; j < 4; ++j) total += sum[j] + sum[j + 4];
    const float inv = total == 0.0f ? 0.0f : 1.0f / total;
    const float* x = p.acc + static_cast<int64_t>(i) * p.dim_pad;
    float* y =
        out + i / a.group_heads * out_stride + static_cast<int64_t>(i % a.group_heads) * p.dim;
    // + 0 makes one zero of -0 and 0, the only trace that tokens of weight 0 could leave
    for (int d = 0; d < p.dim; ++d) y[d] = x[d] * inv + 0.0f;
  }
}

#endif

}  // namespace
}  // namespace ei::EI_NS

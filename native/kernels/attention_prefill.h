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
constexpr int kStep = 2 * kW;

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Scratch, every part on a 64-byte line.
struct Prefill {
  int vectors;       // rows * group_heads
  int dim, dim_pad;  // dim_pad: a whole number of register steps
  float* q;          // tiles of [dim][tile rows]
  float* acc;        // [vectors][dim_pad]
  float* sum;        // [vectors][8]
  float* max;        // [vectors], as the rest padded to 16
  float* keep;       // [vectors]: what remains of sum and acc when the maximum rises
  int32_t* lo;       // [vectors]: the tokens of the block at hand that a vector sees
  int32_t* hi;
  float* keys;    // [dim][32]
  float* values;  // [32][dim_pad]
  float* scores;  // [vectors][32]
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
  const int64_t n = round_up(p.vectors, 16);
  p.q = take(n * dim);
  p.acc = take(n * p.dim_pad);
  p.sum = take(n * 8);
  p.max = take(n);
  p.keep = take(n);
  p.lo = reinterpret_cast<int32_t*>(take(n));
  p.hi = reinterpret_cast<int32_t*>(take(n));
  p.keys = take(static_cast<int64_t>(dim) * kKvBlock);
  p.values = take(static_cast<int64_t>(kKvBlock) * p.dim_pad);
  p.scores = take(n * kKvBlock);
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
  for (int t = lo; t < hi; ++t) {
    const uint16_t* x = values + static_cast<int64_t>(t) * p.dim;
    float* y = p.values + static_cast<int64_t>(t) * p.dim_pad;
    int d = 0;
    for (; d + kW <= p.dim; d += kW) vstore(y + d, vload_kv<T>(x + d));
    if (d < p.dim) {
      vstore(y + d, vload_kv_n<T>(x + d, p.dim - d));
      d += kW;
    }
    for (; d < p.dim_pad; d += kW) vstore(y + d, vset(0.0f));
  }
}

// scores[r][t] = q[.][r] . keys[.][t] of R vectors from `first`, for the parts that hold [lo, hi).
template <int R>
void score_tile(const Prefill& p, int first, int lo, int hi) {
  for (int part = lo / kStep * kStep; part < hi; part += kStep) {
    VF s[R][2];
    for (int r = 0; r < R; ++r) s[r][0] = s[r][1] = vset(0.0f);
    const float* x = p.q + static_cast<int64_t>(first) * p.dim;
    const float* k = p.keys + part;
    for (int d = 0; d < p.dim; ++d, x += R, k += kKvBlock) {
      const VF k0 = vload(k), k1 = vload(k + kW);
      for (int r = 0; r < R; ++r) {
        const VF b = vset(x[r]);
        s[r][0] = vfma(b, k0, s[r][0]);
        s[r][1] = vfma(b, k1, s[r][1]);
      }
    }
    float* y = p.scores + static_cast<int64_t>(first) * kKvBlock + part;
    for (int r = 0; r < R; ++r) {
      vstore(y + r * kKvBlock, s[r][0]);
      vstore(y + r * kKvBlock + kW, s[r][1]);
    }
  }
}

// acc[r] = acc[r]*keep[r] + weights[r] . values over tokens [lo, hi), outside which weights are 0.
template <int R>
void value_tile(const Prefill& p, int first, int lo, int hi) {
  const float* weights = p.scores + static_cast<int64_t>(first) * kKvBlock;
  for (int d = 0; d < p.dim_pad; d += kStep) {
    float* y = p.acc + static_cast<int64_t>(first) * p.dim_pad + d;
    VF s[R][2];
    for (int r = 0; r < R; ++r) {
      const VF keep = vset(p.keep[first + r]);
      s[r][0] = vload(y + static_cast<int64_t>(r) * p.dim_pad) * keep;
      s[r][1] = vload(y + static_cast<int64_t>(r) * p.dim_pad + kW) * keep;
    }
    const float* v = p.values + static_cast<int64_t>(lo) * p.dim_pad + d;
    for (int t = lo; t < hi; ++t, v += p.dim_pad) {
      const VF v0 = vload(v), v1 = vload(v + kW);
      for (int r = 0; r < R; ++r) {
        const VF w = vset(weights[r * kKvBlock + t]);
        s[r][0] = vfma(w, v0, s[r][0]);
        s[r][1] = vfma(w, v1, s[r][1]);
      }
    }
    for (int r = 0; r < R; ++r) {
      vstore(y + static_cast<int64_t>(r) * p.dim_pad, s[r][0]);
      vstore(y + static_cast<int64_t>(r) * p.dim_pad + kW, s[r][1]);
    }
  }
}

template <template <int> class Tile>
void dispatch(const Prefill& p, int count, int first, int lo, int hi) {
  switch (count) {
    case 1:
      return Tile<1>::run(p, first, lo, hi);
    case 2:
      return Tile<2>::run(p, first, lo, hi);
    case 3:
      return Tile<3>::run(p, first, lo, hi);
    case 4:
      return Tile<4>::run(p, first, lo, hi);
    case 5:
      return Tile<5>::run(p, first, lo, hi);
    case 6:
      return Tile<6>::run(p, first, lo, hi);
#if EI_LEVEL >= 3
    case 7:
      return Tile<7>::run(p, first, lo, hi);
    case 8:
      return Tile<8>::run(p, first, lo, hi);
    case 9:
      return Tile<9>::run(p, first, lo, hi);
    case 10:
      return Tile<10>::run(p, first, lo, hi);
    case 11:
      return Tile<11>::run(p, first, lo, hi);
    case 12:
      return Tile<12>::run(p, first, lo, hi);
#endif
  }
}

template <int R>
struct ScoreTile {
  static void run(const Prefill& p, int first, int lo, int hi) { score_tile<R>(p, first, lo, hi); }
};

template <int R>
struct ValueTile {
  static void run(const Prefill& p, int first, int lo, int hi) { value_tile<R>(p, first, lo, hi); }
};

// Calls Tile for every tile of which some vector sees some token of the block.
template <template <int> class Tile>
void for_tiles(const Prefill& p) {
  for (int first = 0; first < p.vectors; first += kTile) {
    const int count = p.vectors - first < kTile ? p.vectors - first : kTile;
    int lo = kKvBlock, hi = 0;
    for (int i = first; i < first + count; ++i) {
      if (p.lo[i] >= p.hi[i]) continue;
      lo = p.lo[i] < lo ? p.lo[i] : lo;
      hi = p.hi[i] > hi ? p.hi[i] : hi;
    }
    if (lo < hi) dispatch<Tile>(p, count, first, lo, hi);
  }
}

// The online softmax of every vector: scores become weights exp(score - maximum), keep what is left
// of earlier sums. A vector that sees nothing gets weights 0 and keep 1.
void softmax_step(const AttentionArgs& a, const Prefill& p) {
  for (int i = 0; i < p.vectors; i += 4) {  // four at a time share the reduction of their maxima
    VF top[4];
    for (int r = 0; r < 4; ++r)
      top[r] = finish_scores(p.scores + static_cast<int64_t>(i + r) * kKvBlock, a.scale, a.softcap,
                             p.lo[i + r], p.hi[i + r]);
    const __m128 before = _mm_load_ps(p.max + i);
    const __m128 after = _mm_max_ps(vreduce_max4(top), before);
    _mm_store_ps(p.max + i, after);
    _mm_store_ps(p.keep + i, _mm_sub_ps(before, softmax_base4(after)));
  }
  for (int i = 0; i < p.vectors; i += kW) vstore(p.keep + i, vexp(vload(p.keep + i)));
  for (int i = 0; i < p.vectors; ++i) {
    const __m256 added =
        weigh_scores(p.scores + static_cast<int64_t>(i) * kKvBlock, softmax_base(p.max[i]));
    float* sum = p.sum + static_cast<int64_t>(i) * 8;
    _mm256_store_ps(sum, _mm256_fmadd_ps(_mm256_load_ps(sum), _mm256_set1_ps(p.keep[i]), added));
  }
}

void pack_queries(const AttentionArgs& a, const Prefill& p, const float* q, int64_t q_stride) {
  for (int first = 0; first < p.vectors; first += kTile) {
    const int count = p.vectors - first < kTile ? p.vectors - first : kTile;
    const float* x[kTile];
    for (int r = 0; r < count; ++r)
      x[r] = q + (first + r) / a.group_heads * q_stride +
             static_cast<int64_t>((first + r) % a.group_heads) * p.dim;
    float* y = p.q + static_cast<int64_t>(first) * p.dim;
    for (int d = 0; d < p.dim; ++d, y += count)
      for (int r = 0; r < count; ++r) y[r] = x[r][d];
  }
}

void divide_by_sums(const AttentionArgs& a, const Prefill& p, float* out, int64_t out_stride) {
  for (int i = 0; i < p.vectors; ++i) {
    const float total = fold8(_mm256_load_ps(p.sum + static_cast<int64_t>(i) * 8));
    const VF inv = vset(total == 0.0f ? 0.0f : 1.0f / total);
    const float* x = p.acc + static_cast<int64_t>(i) * p.dim_pad;
    float* y =
        out + i / a.group_heads * out_stride + static_cast<int64_t>(i % a.group_heads) * p.dim;
    // + 0 makes one zero of -0 and 0, the only trace that tokens of weight 0 could leave
    int d = 0;
    for (; d + kW <= p.dim; d += kW) vstore(y + d, vload(x + d) * inv + vset(0.0f));
    if (d < p.dim) vstore_n(y + d, vload(x + d) * inv + vset(0.0f), p.dim - d);
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
  const int padded = static_cast<int>(round_up(p.vectors, 16));
  for (int i = 0; i < padded; ++i) {
    p.max[i] = -INFINITY;
    p.lo[i] = p.hi[i] = 0;
  }

  int first_token = INT32_MAX, last_token = 0;
  for (int r = 0; r < rows; ++r) {
    if (begin[r] >= end[r]) continue;
    first_token = begin[r] < first_token ? begin[r] : first_token;
    last_token = end[r] > last_token ? end[r] : last_token;
  }
  for (int b = first_token / kKvBlock; b * kKvBlock < last_token; ++b) {
    const int start = b * kKvBlock;
    int lo_any = kKvBlock, hi_any = 0;  // what any row sees of this block
    for (int r = 0, i = 0; r < rows; ++r) {
      const int lo = clamp(begin[r] - start, 0, kKvBlock), hi = clamp(end[r] - start, 0, kKvBlock);
      for (int g = 0; g < a.group_heads; ++g, ++i) {
        p.lo[i] = lo;
        p.hi[i] = hi;
      }
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
    for_tiles<ScoreTile>(p);
    softmax_step(a, p);
    for_tiles<ValueTile>(p);
  }
  divide_by_sums(a, p, out, out_stride);
}

#endif

}  // namespace
}  // namespace ei::EI_NS

// The matrix products of prefill from registers: a block is widened once for all query vectors, and
// tiles of them multiply it. Scores are f32; how weights meet values is the level's affair.
#pragma once
#if EI_LEVEL >= 4
#include "kernels/attention_values_bf16.h"
#else
#include "kernels/attention_values_fma.h"
#endif

namespace ei::EI_NS {
namespace {

constexpr int kTile = EI_LEVEL >= 3 ? 12 : 6;  // query vectors a tile: two vectors of sums each

struct Tiles {
  int dim_pad;    // a whole number of register steps
  float* q;       // tiles of [dim][tile vectors]
  float* acc;     // [vectors][dim_pad]
  float* keys;    // of one block: [dim][32]
  float* values;  // of the span: slices of kStep dims, [kSpanTokens/kValueTokens][kStep]
};

inline Tiles place_tiles(const Vectors& v, Scratch& s) {
  Tiles t;
  t.dim_pad = static_cast<int>(round_up(v.dim, kStep));
  t.q = s.take(static_cast<int64_t>(v.count) * v.dim);
  t.acc = s.take(static_cast<int64_t>(v.count) * t.dim_pad);
  t.keys = s.take(static_cast<int64_t>(v.dim) * kKvBlock);
  t.values = s.take(static_cast<int64_t>(kSpanTokens / kValueTokens) * t.dim_pad);
  return t;
}

inline int tile_count(const Vectors& v, int first) {
  return v.count - first < kTile ? v.count - first : kTile;
}

void start_tiles(const Vectors& v, const Tiles& t, const float* q, int64_t q_stride, float scale) {
  memset(t.acc, 0, static_cast<size_t>(v.count) * t.dim_pad * sizeof(float));
  for (int first = 0; first < v.count; first += kTile) {
    const int count = tile_count(v, first);
    const float* x[kTile];
    for (int r = 0; r < count; ++r)
      x[r] = q + (first + r) / v.group_heads * q_stride +
             static_cast<int64_t>((first + r) % v.group_heads) * v.dim;
    float* y = t.q + static_cast<int64_t>(first) * v.dim;
    for (int d = 0; d < v.dim; ++d, y += count)
      for (int r = 0; r < count; ++r) y[r] = x[r][d] * scale;
  }
}

inline void end_tiles() {}

inline const float* accumulator(const Vectors&, const Tiles& t, int i, int d) {
  return t.acc + static_cast<int64_t>(i) * t.dim_pad + d;
}

inline void store_weights(const Vectors& v, const Tiles&, int i, int block, const VF* e) {
  store_weights(v.scores + static_cast<int64_t>(i) * kSpanTokens, block, e);
}

template <KvType T>
void load_values(const Vectors& v, const Tiles& t, int block, const KvElement<T>* values, int lo,
                 int hi) {
  load_values<T>(values, v.dim, block, lo, hi, t.values);
}

// A block between those that somebody sees: weight 0 would not hide a NaN.
inline void clear_values(const Tiles& t, int block) {
  constexpr int64_t kFloats = kKvBlock / kValueTokens * kStep;
  for (int64_t slice = 0; slice < t.dim_pad / kStep; ++slice)
    memset(t.values + (slice * kSpan + block) * kFloats, 0, kFloats * sizeof(float));
}

template <KvType T>
void load_keys(const Vectors& v, const Tiles& t, const KvElement<T>* keys) {
  for (int64_t i = 0; i < static_cast<int64_t>(v.dim) * kKvBlock; i += kW)
    vstore(t.keys + i, vload_kv<T>(keys + i));
}

// scores[r][token] = q[r] . keys[token] of R vectors and one block, for the parts that hold tokens
// [lo, hi) of the span.
template <int R>
void score_tile(const Vectors& v, const Tiles& t, int first, int lo, int hi, int block) {
  lo = clamp(lo - block * kKvBlock, 0, kKvBlock);
  hi = clamp(hi - block * kKvBlock, 0, kKvBlock);
  for (int part = lo / kStep * kStep; part < hi; part += kStep) {
    VF s[R][2];
    for (int r = 0; r < R; ++r) s[r][0] = s[r][1] = vset(0.0f);
    const float* x = t.q + static_cast<int64_t>(first) * v.dim;
    const float* k = t.keys + part;
    for (int d = 0; d < v.dim; ++d, x += R, k += kKvBlock) {
      const VF k0 = vload(k), k1 = vload(k + kW);
      for (int r = 0; r < R; ++r) {
        const VF b = vset(x[r]);
        s[r][0] = vfma(b, k0, s[r][0]);
        s[r][1] = vfma(b, k1, s[r][1]);
      }
    }
    float* y = v.scores + static_cast<int64_t>(first) * kSpanTokens + block * kKvBlock + part;
    for (int r = 0; r < R; ++r) {
      vstore(y + r * kSpanTokens, s[r][0]);
      vstore(y + r * kSpanTokens + kW, s[r][1]);
    }
  }
}

// acc[r] = acc[r]*keep[r] + weights[r] . values over tokens [lo, hi), outside which weights are 0,
// in the dims of one slice of the values.
template <int R>
void value_tile(const Vectors& v, const Tiles& t, int first, int lo, int hi, int slice) {
  const float* weights = v.scores + static_cast<int64_t>(first) * kSpanTokens;
  const int64_t stride = t.dim_pad;
  float* y = t.acc + first * stride + slice * kStep;
  VF s[R][2];
  for (int r = 0; r < R; ++r) {
    const VF keep = vset(v.keep[first + r]);
    s[r][0] = vload(y + r * stride) * keep;
    s[r][1] = vload(y + r * stride + kW) * keep;
  }
  const int begin = lo / kValueTokens, end = (hi + kValueTokens - 1) / kValueTokens;
  const float* x =
      t.values + (static_cast<int64_t>(slice) * (kSpanTokens / kValueTokens) + begin) * kStep;
  for (int i = begin; i < end; ++i, x += kStep) {
    const VF x0 = vload(x), x1 = vload(x + kW);
    for (int r = 0; r < R; ++r) {
      const float w = weights[r * kSpanTokens + i];
      s[r][0] = add_product(s[r][0], w, x0);
      s[r][1] = add_product(s[r][1], w, x1);
    }
  }
  for (int r = 0; r < R; ++r) {
    vstore(y + r * stride, s[r][0]);
    vstore(y + r * stride + kW, s[r][1]);
  }
}

using TileFunction = void (*)(const Vectors&, const Tiles&, int, int, int, int);

#if EI_LEVEL >= 3
constexpr TileFunction kScoreTiles[kTile] = {
    score_tile<1>, score_tile<2>, score_tile<3>, score_tile<4>,  score_tile<5>,  score_tile<6>,
    score_tile<7>, score_tile<8>, score_tile<9>, score_tile<10>, score_tile<11>, score_tile<12>};
constexpr TileFunction kValueTiles[kTile] = {
    value_tile<1>, value_tile<2>, value_tile<3>, value_tile<4>,  value_tile<5>,  value_tile<6>,
    value_tile<7>, value_tile<8>, value_tile<9>, value_tile<10>, value_tile<11>, value_tile<12>};
#else
constexpr TileFunction kScoreTiles[kTile] = {score_tile<1>, score_tile<2>, score_tile<3>,
                                             score_tile<4>, score_tile<5>, score_tile<6>};
constexpr TileFunction kValueTiles[kTile] = {value_tile<1>, value_tile<2>, value_tile<3>,
                                             value_tile<4>, value_tile<5>, value_tile<6>};
#endif

// Every tile asks for its share of what load_keys and load_values read next. (Prefetches alone in a
// function of their own are no effect to GCC 12, which drops its calls.)
template <KvType T>
void score_block(const Vectors& v, const Tiles& t, int block, const KvElement<T>* next_keys,
                 const KvElement<T>* values) {
  const int64_t elements = static_cast<int64_t>(v.dim) * kKvBlock;
  constexpr int64_t kLine = 64 / sizeof(KvElement<T>);
  const int64_t share = round_up(elements * kTile / v.count, kLine);
  for (int first = 0; first < v.count; first += kTile) {
    const int64_t at = first / kTile * share;
    for (int64_t i = at; i < at + share && i < elements; i += kLine) {
      _mm_prefetch(reinterpret_cast<const char*>(next_keys + i), _MM_HINT_T1);
      _mm_prefetch(reinterpret_cast<const char*>(values + i), _MM_HINT_T1);
    }
    const int count = tile_count(v, first);
    int lo, hi;
    if (seen_range(v, first, count, &lo, &hi)) kScoreTiles[count - 1](v, t, first, lo, hi, block);
  }
}

template <KvType T>
void value_span(const Vectors& v, const Tiles& t) {
  for (int slice = 0; slice < t.dim_pad / kStep; ++slice)
    for (int first = 0; first < v.count; first += kTile) {
      const int count = tile_count(v, first);
      int lo, hi;
      if (seen_range(v, first, count, &lo, &hi)) kValueTiles[count - 1](v, t, first, lo, hi, slice);
    }
}

}  // namespace
}  // namespace ei::EI_NS

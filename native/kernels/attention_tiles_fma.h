// The matrix products of prefill with fma: a block is widened to f32 once for all query vectors,
// and tiles of them multiply it from registers.
#pragma once
#include "kernels/attention_vectors.h"

namespace ei::EI_NS {
namespace {

constexpr int kTile = EI_LEVEL >= 3 ? 12 : 6;  // query vectors a tile: two vectors of sums each
constexpr int kStep = 2 * kW;

struct Tiles {
  int dim_pad;    // a whole number of register steps
  float* q;       // tiles of [dim][tile vectors]
  float* acc;     // [vectors][dim_pad]
  float* keys;    // [dim][32]
  float* values;  // [32][dim_pad]
};

inline Tiles place_tiles(const Vectors& v, Scratch& s) {
  Tiles t;
  t.dim_pad = static_cast<int>(round_up(v.dim, kStep));
  t.q = s.take(static_cast<int64_t>(v.count) * v.dim);
  t.acc = s.take(static_cast<int64_t>(v.count) * t.dim_pad);
  t.keys = s.take(static_cast<int64_t>(v.dim) * kKvBlock);
  t.values = s.take(static_cast<int64_t>(kKvBlock) * t.dim_pad);
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

inline void store_weights(const Vectors& v, const Tiles&, int i, const VF* e) {
  for (int j = 0; j < kScoreVectors; ++j)
    vstore(v.scores + static_cast<int64_t>(i) * kKvBlock + j * kW, e[j]);
}

// Values outside [lo, hi) may be anything; nothing reads their rows of t.values.
template <KvType T>
void load_block(const Vectors& v, const Tiles& t, const KvElement<T>* keys,
                const KvElement<T>* values, int lo, int hi) {
  for (int64_t i = 0; i < static_cast<int64_t>(v.dim) * kKvBlock; i += kW)
    vstore(t.keys + i, vload_kv<T>(keys + i));
  for (int token = lo; token < hi; ++token) {
    const KvElement<T>* x = values + static_cast<int64_t>(token) * v.dim;
    float* y = t.values + static_cast<int64_t>(token) * t.dim_pad;
    int d = 0;
    for (; d + kW <= v.dim; d += kW) vstore(y + d, vload_kv<T>(x + d));
    if (d < v.dim) {
      vstore(y + d, vload_kv_n<T>(x + d, v.dim - d));
      d += kW;
    }
    for (; d < t.dim_pad; d += kW) vstore(y + d, vset(0.0f));
  }
}

// scores[r][token] = q[r] . keys[token] of R vectors, for the parts that hold tokens [lo, hi).
template <int R>
void score_tile(const Vectors& v, const Tiles& t, int first, int lo, int hi) {
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
    float* y = v.scores + static_cast<int64_t>(first) * kKvBlock + part;
    for (int r = 0; r < R; ++r) {
      vstore(y + r * kKvBlock, s[r][0]);
      vstore(y + r * kKvBlock + kW, s[r][1]);
    }
  }
}

// acc[r] = acc[r]*keep[r] + weights[r] . values over tokens [lo, hi), outside which weights are 0.
template <int R>
void value_tile(const Vectors& v, const Tiles& t, int first, int lo, int hi) {
  const float* weights = v.scores + static_cast<int64_t>(first) * kKvBlock;
  for (int d = 0; d < t.dim_pad; d += kStep) {
    float* y = t.acc + static_cast<int64_t>(first) * t.dim_pad + d;
    VF s[R][2];
    for (int r = 0; r < R; ++r) {
      const VF keep = vset(v.keep[first + r]);
      s[r][0] = vload(y + static_cast<int64_t>(r) * t.dim_pad) * keep;
      s[r][1] = vload(y + static_cast<int64_t>(r) * t.dim_pad + kW) * keep;
    }
    const float* x = t.values + static_cast<int64_t>(lo) * t.dim_pad + d;
    for (int token = lo; token < hi; ++token, x += t.dim_pad) {
      const VF x0 = vload(x), x1 = vload(x + kW);
      for (int r = 0; r < R; ++r) {
        const VF w = vset(weights[r * kKvBlock + token]);
        s[r][0] = vfma(w, x0, s[r][0]);
        s[r][1] = vfma(w, x1, s[r][1]);
      }
    }
    for (int r = 0; r < R; ++r) {
      vstore(y + static_cast<int64_t>(r) * t.dim_pad, s[r][0]);
      vstore(y + static_cast<int64_t>(r) * t.dim_pad + kW, s[r][1]);
    }
  }
}

using TileFunction = void (*)(const Vectors&, const Tiles&, int, int, int);

// Calls functions[n-1] for every tile of n vectors of which some sees some token of the block.
inline void for_tiles(const Vectors& v, const Tiles& t, const TileFunction* functions) {
  for (int first = 0; first < v.count; first += kTile) {
    const int count = tile_count(v, first);
    int lo, hi;
    if (seen_range(v, first, count, &lo, &hi)) functions[count - 1](v, t, first, lo, hi);
  }
}

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

template <KvType T>
void score_block(const Vectors& v, const Tiles& t) {
  for_tiles(v, t, kScoreTiles);
}

template <KvType T>
void value_block(const Vectors& v, const Tiles& t) {
  for_tiles(v, t, kValueTiles);
}

}  // namespace
}  // namespace ei::EI_NS

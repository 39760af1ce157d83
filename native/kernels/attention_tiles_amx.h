// The matrix products of prefill with AMX. A bf16 has 8 significant bits, so every operand is the
// sum of two (keys and values exactly, if they are f16; queries and weights to 16 bits; int8 codes
// need one), and a product is high*low + high*high + low*high: close to f32 at a fraction of its
// cost.
#pragma once
#include "kernels/amx_tiles.h"
#include "kernels/attention_vectors.h"
#include "kernels/bf16_pairs.h"

namespace ei::EI_NS {
namespace {

static_assert(kSpan == 1, "tiles hold the keys, weights and values of one block");

// A tile is 16 rows of 64 bytes: as left operand 16 vectors by 32 values of k, as right operand 16
// pairs of k by 16 columns, as sum 16 by 16 f32. High and low tile lie next to each other.
constexpr int kTileFloats = 256;
constexpr int kPair = 2 * kTileFloats;

struct Tiles {
  int steps;       // of 32 dims
  float* q;        // [vectors/16][steps] left pairs
  float* weights;  // [vectors/16] left pairs over the 32 tokens
  float* keys;     // [steps][2 halves of the tokens] right pairs
  float* values;   // [steps][2 halves of the dims] right pairs over the 32 tokens
  float* acc;      // [vectors/16][steps][2 halves of the dims] sums
};

inline Tiles place_tiles(const Vectors& v, Scratch& s) {
  Tiles t;
  t.steps = static_cast<int>(round_up(v.dim, 32) / 32);
  const int64_t rows = v.padded / 16;
  t.q = s.take(rows * t.steps * kPair);
  t.weights = s.take(rows * kPair);
  t.keys = s.take(int64_t{2} * t.steps * kPair);
  t.values = s.take(int64_t{2} * t.steps * kPair);
  t.acc = s.take(rows * t.steps * 2 * kTileFloats);
  return t;
}

inline VF bf16_value(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// 32 values as two bf16 each, whose sum is the value to 17 bits.
inline void split_bf16(VF a, VF b, float* high, float* low) {
  const __m512i h = bf16_bits(a, b);
  _mm512_store_si512(high, h);
  _mm512_store_si512(low, bf16_bits(a - bf16_value(_mm512_castsi512_si256(h)),
                                    b - bf16_value(_mm512_extracti64x4_epi64(h, 1))));
}

void start_tiles(const Vectors& v, const Tiles& t, const float* q, int64_t q_stride, float scale) {
  configure_tiles();
  memset(t.acc, 0, static_cast<size_t>(v.padded) * t.steps * 32 * sizeof(float));
  const VF factor = vset(scale);
  for (int i = 0; i < v.padded; ++i) {
    const float* x =
        q + i / v.group_heads * q_stride + static_cast<int64_t>(i % v.group_heads) * v.dim;
    float* y = t.q + static_cast<int64_t>(i / 16) * t.steps * kPair + i % 16 * 16;
    for (int d = 0; d < t.steps * 32; d += 32, y += kPair) {
      VF part[2];
      for (int j = 0; j < 2; ++j) {
        const int left = i < v.count ? clamp(v.dim - d - j * 16, 0, 16) : 0;
        part[j] = (left > 0 ? vload_n(x + d + j * 16, left) : vset(0.0f)) * factor;
      }
      split_bf16(part[0], part[1], y, y + kTileFloats);
    }
  }
}

inline void end_tiles() { release_tiles(); }

inline const float* accumulator(const Vectors&, const Tiles& t, int i, int d) {
  return t.acc + (static_cast<int64_t>(i / 16) * t.steps * 2 + d / 16) * kTileFloats + i % 16 * 16;
}

inline void store_weights(const Vectors&, const Tiles& t, int i, int, const VF* e) {
  float* y = t.weights + static_cast<int64_t>(i / 16) * kPair + i % 16 * 16;
  split_bf16(e[0], e[1], y, y + kTileFloats);
}

// One row of a right operand: values a of an even k and b of the odd one after it, 16 columns.
template <KvType T>
inline void store_pairs(VF a, VF b, float* row) {
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const __m512i x = _mm512_castps_si512(a), y = _mm512_castps_si512(b);
  // (x >> 16) | (y & mask)
  _mm512_store_si512(row, _mm512_ternarylogic_epi32(_mm512_srli_epi32(x, 16), y, mask, 0xf8));
  if constexpr (T != KvType::kF16) return;  // no low part
  const __m512i xl = _mm512_castps_si512(a - _mm512_castsi512_ps(_mm512_and_si512(x, mask)));
  const __m512i yl = _mm512_castps_si512(b - _mm512_castsi512_ps(_mm512_and_si512(y, mask)));
  _mm512_store_si512(row + kTileFloats,
                     _mm512_ternarylogic_epi32(_mm512_srli_epi32(xl, 16), yl, mask, 0xf8));
}

template <KvType T>
void load_keys(const Vectors& v, const Tiles& t, const KvElement<T>* keys) {
  for (int d = 0; d < t.steps * 32; d += 2)
    for (int half = 0; half < 2; ++half) {
      const KvElement<T>* k = keys + static_cast<int64_t>(d) * kKvBlock + half * kW;
      store_pairs<T>(load_or_zero<T>(k, d < v.dim ? kW : 0),
                     load_or_zero<T>(k + kKvBlock, d + 1 < v.dim ? kW : 0),
                     t.keys + (d / 32 * 2 + half) * kPair + d % 32 / 2 * 16);
    }
}

// Values outside [lo, hi) may be anything and become 0, for their weight 0 would not hide a NaN.
template <KvType T>
void load_values(const Vectors& v, const Tiles& t, int, const KvElement<T>* values, int lo,
                 int hi) {
  for (int token = 0; token < kKvBlock; token += 2) {
    const KvElement<T>* x = values + static_cast<int64_t>(token) * v.dim;
    const int even = token >= lo && token < hi ? v.dim : 0;
    const int odd = token + 1 >= lo && token + 1 < hi ? v.dim : 0;
    for (int d = 0; d < t.steps * 32; d += kW)
      store_pairs<T>(load_or_zero<T>(x + d, even - d), load_or_zero<T>(x + v.dim + d, odd - d),
                     t.values + d / kW * kPair + token / 2 * 16);
  }
}

inline void clear_values(const Tiles&, int) {}  // a span of one block is seen or not there

// Sums 0..3 += left pairs a (R of them) times the right pairs b and b + kPair; lowest parts first.
template <KvType T, int R>
inline void multiply(const float* a, int64_t a_next, const float* b) {
  EI_TILE_LOAD(4, a, 64);
  if (R == 2) EI_TILE_LOAD(5, a + a_next, 64);
  if (T == KvType::kF16) {
    EI_TILE_LOAD(6, b + kTileFloats, 64);
    EI_TILE_LOAD(7, b + kPair + kTileFloats, 64);
    EI_TILE_DPBF16(0, 4, 6);
    EI_TILE_DPBF16(1, 4, 7);
    if (R == 2) EI_TILE_DPBF16(2, 5, 6);
    if (R == 2) EI_TILE_DPBF16(3, 5, 7);
  }
  EI_TILE_LOAD(6, b, 64);
  EI_TILE_LOAD(7, b + kPair, 64);
  EI_TILE_DPBF16(0, 4, 6);
  EI_TILE_DPBF16(1, 4, 7);
  if (R == 2) EI_TILE_DPBF16(2, 5, 6);
  if (R == 2) EI_TILE_DPBF16(3, 5, 7);
  EI_TILE_LOAD(4, a + kTileFloats, 64);
  if (R == 2) EI_TILE_LOAD(5, a + a_next + kTileFloats, 64);
  EI_TILE_DPBF16(0, 4, 6);
  EI_TILE_DPBF16(1, 4, 7);
  if (R == 2) EI_TILE_DPBF16(2, 5, 6);
  if (R == 2) EI_TILE_DPBF16(3, 5, 7);
}

template <KvType T, int R>
inline void score_tiles(const Vectors& v, const Tiles& t, int tile) {
  EI_TILE_ZERO(0);
  EI_TILE_ZERO(1);
  EI_TILE_ZERO(2);
  EI_TILE_ZERO(3);
  const int64_t next = static_cast<int64_t>(t.steps) * kPair;
  const float* q = t.q + tile * next;
  for (int s = 0; s < t.steps; ++s) multiply<T, R>(q + s * kPair, next, t.keys + s * 2 * kPair);
  float* y = v.scores + static_cast<int64_t>(tile) * 16 * kKvBlock;
  EI_TILE_STORE(0, y, 4 * kKvBlock);
  EI_TILE_STORE(1, y + 16, 4 * kKvBlock);
  if (R == 2) EI_TILE_STORE(2, y + 16 * kKvBlock, 4 * kKvBlock);
  if (R == 2) EI_TILE_STORE(3, y + 16 * kKvBlock + 16, 4 * kKvBlock);
}

// acc = acc*keep, skipped where no maximum rose: times 1 changes nothing.
inline void rescale(const Vectors& v, const Tiles& t, int tile) {
  const float* keep = v.keep + tile * 16;
  if (_mm512_cmp_ps_mask(vload(keep), vset(1.0f), _CMP_NEQ_UQ) == 0) return;
  float* acc = t.acc + static_cast<int64_t>(tile) * t.steps * 2 * kTileFloats;
  for (int c = 0; c < t.steps * 2; ++c, acc += kTileFloats)
    for (int r = 0; r < 16; ++r) vstore(acc + r * 16, vload(acc + r * 16) * vset(keep[r]));
}

template <KvType T, int R>
inline void value_tiles(const Vectors& v, const Tiles& t, int tile) {
  for (int r = 0; r < R; ++r) rescale(v, t, tile + r);
  const int64_t next = static_cast<int64_t>(t.steps) * 2 * kTileFloats;
  const float* w = t.weights + static_cast<int64_t>(tile) * kPair;
  float* acc = t.acc + tile * next;
  for (int s = 0; s < t.steps; ++s, acc += 2 * kTileFloats) {
    EI_TILE_LOAD(0, acc, 64);
    EI_TILE_LOAD(1, acc + kTileFloats, 64);
    if (R == 2) EI_TILE_LOAD(2, acc + next, 64);
    if (R == 2) EI_TILE_LOAD(3, acc + next + kTileFloats, 64);
    multiply<T, R>(w, kPair, t.values + s * 2 * kPair);
    EI_TILE_STORE(0, acc, 64);
    EI_TILE_STORE(1, acc + kTileFloats, 64);
    if (R == 2) EI_TILE_STORE(2, acc + next, 64);
    if (R == 2) EI_TILE_STORE(3, acc + next + kTileFloats, 64);
  }
}

// Calls Op for runs of one or two neighbouring tiles of which some vector sees some token.
template <typename One, typename Two>
inline void for_tiles(const Vectors& v, One one, Two two) {
  const int tiles = v.padded / 16;
  int lo, hi;
  for (int tile = 0; tile < tiles;) {
    if (!seen_range(v, tile * 16, 16, &lo, &hi)) {
      ++tile;
    } else if (tile + 1 < tiles && seen_range(v, tile * 16 + 16, 16, &lo, &hi)) {
      two(tile);
      tile += 2;
    } else {
      one(tile++);
    }
  }
}

template <KvType T>
void score_block(const Vectors& v, const Tiles& t, int, const KvElement<T>*, const KvElement<T>*) {
  for_tiles(
      v, [&](int tile) { score_tiles<T, 1>(v, t, tile); },
      [&](int tile) { score_tiles<T, 2>(v, t, tile); });
}

template <KvType T>
void value_span(const Vectors& v, const Tiles& t) {
  for_tiles(
      v, [&](int tile) { value_tiles<T, 1>(v, t, tile); },
      [&](int tile) { value_tiles<T, 2>(v, t, tile); });
}

}  // namespace
}  // namespace ei::EI_NS

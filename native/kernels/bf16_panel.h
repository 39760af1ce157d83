// Packed weights to bf16 pairs of k: the operand order of vdpbf16ps and of an AMX tile.
#pragma once
#include <immintrin.h>

#include "kernels/bf16_pairs.h"
#include "kernels/linear_common.h"

namespace ei::EI_NS {
namespace {

inline __m512 load_half16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// a | (b & mask)
inline __m512i join_bits(__m512i a, __m512i b, __m512i mask) {
  return _mm512_ternarylogic_epi32(a, b, mask, 0xf8);
}

constexpr int kUnitsPerGroup = 4;        // a unit is 8 values of k of 16 channels
constexpr int64_t kCodePrefetch = 2048;  // bytes ahead in the code stream

// Unit u of a block: four lines, line p holds k = 8u + 2p and 8u + 2p + 1 of every channel.
template <int kBits, bool kMin>
inline void dequantize_unit(const Block& block, int u, __m512i* out) {
  const int64_t at = static_cast<int64_t>((u / kUnitsPerGroup) >> block.shift) * kBlockN;
  const uint8_t* line = block.codes + code_line(8 * u, kBits) * 64;
  const __m512 s = load_half16(block.scales + at);
  __m512 f[8];
  _mm_prefetch(reinterpret_cast<const char*>(line) + kCodePrefetch, _MM_HINT_T0);
  if (kBits == 4) {
    constexpr float kZero = kMin ? 0.0f : 8.0f;
    const __m512 values =
        _mm512_setr_ps(0 - kZero, 1 - kZero, 2 - kZero, 3 - kZero, 4 - kZero, 5 - kZero, 6 - kZero,
                       7 - kZero, 8 - kZero, 9 - kZero, 10 - kZero, 11 - kZero, 12 - kZero,
                       13 - kZero, 14 - kZero, 15 - kZero);
    const __m512i v = _mm512_loadu_si512(line);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      // the permutation reads only the low four bits of its index
      const int shift = j < 4 ? 8 * j : 8 * (j - 4) + 4;
      f[j] = _mm512_permutexvar_ps(_mm512_srli_epi32(v, shift), values);
    }
  } else {
    __m512i v[2];  // signed bytes, the first and the last four of the unit
    if (kBits == 6) {
      const uint8_t* above = block.codes + above_line(8 * u) * 64;
      _mm_prefetch(reinterpret_cast<const char*>(above) + kCodePrefetch, _MM_HINT_T0);
      const __m512i low = _mm512_set1_epi8(15), high = _mm512_set1_epi8(48);
      const __m512i q = _mm512_loadu_si512(line);
      // of the four pairs of bits in a byte, the lower two or the upper two are this unit's
      const __m512i p = _mm512_srl_epi16(_mm512_loadu_si512(above), _mm_cvtsi32_si128(u % 2 * 4));
      v[0] = join_bits(_mm512_and_si512(q, low), _mm512_slli_epi16(p, 4), high);
      v[1] =
          join_bits(_mm512_and_si512(_mm512_srli_epi16(q, 4), low), _mm512_slli_epi16(p, 2), high);
      if (!kMin)
        for (int i = 0; i < 2; ++i) v[i] = _mm512_sub_epi8(v[i], _mm512_set1_epi8(32));
    } else {
      _mm_prefetch(reinterpret_cast<const char*>(line) + kCodePrefetch + 64, _MM_HINT_T0);
      v[0] = _mm512_loadu_si512(line);
      v[1] = _mm512_loadu_si512(line + 64);
    }
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j)
      f[j] =
          _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(v[j / 4], 24 - 8 * (j % 4)), 24));
  }
  // s*q is exact in f32, so there is one rounding before that to bf16
  if (kMin) {
    const __m512 m = load_half16(block.minimums + at);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) f[j] = _mm512_fmadd_ps(f[j], s, m);
  } else {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) f[j] = _mm512_mul_ps(f[j], s);
  }
#pragma GCC unroll 4
  for (int p = 0; p < 4; ++p) _mm512_store_si512(out + p, pair_bf16(f[2 * p], f[2 * p + 1]));
}

inline void round_to_bf16(const float* x, int count, uint16_t* out) {
  if (count == 32) {
    const __m512 lo = _mm512_loadu_ps(x), hi = _mm512_loadu_ps(x + 16);
    _mm512_storeu_si512(out, bf16_bits(lo, hi));
  } else {
    for (int i = 0; i < count; ++i) out[i] = float_to_bf16(x[i]);
  }
}

}  // namespace
}  // namespace ei::EI_NS

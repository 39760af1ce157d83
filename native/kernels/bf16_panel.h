// Packed weights to bf16 pairs of k: the operand order of vdpbf16ps and of an AMX tile.
#pragma once
#include <immintrin.h>

#include "kernels/linear_common.h"

namespace ei::EI_NS {
namespace {

inline __m512 load_half16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// Even lanes of 32-bit words get the bf16 of a, odd ones that of b.
inline __m512i pair_bf16(__m512 a, __m512 b) {
  const __m512i packed = (__m512i)_mm512_cvtne2ps_pbh(b, a);  // low half a, high half b
  alignas(64) static constexpr uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                      21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                      11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), packed);
}

// One activation group (32 values of k) of one block: 16 lines, line p holds k = 2p, 2p+1 of every
// channel.
inline void dequantize_group(const Block& block, WeightType type, int g, __m512i* out) {
  const int64_t at = static_cast<int64_t>(g >> block.shift) * kBlockN;
  const __m512 s = load_half16(block.scales + at);
  const __m512 m = block.minimums ? load_half16(block.minimums + at) : _mm512_setzero_ps();
  if (type == WeightType::kQ4) {
    const uint8_t* line = block.codes + static_cast<int64_t>(g) * 256;
    const float zero = block.minimums ? 0.0f : 8.0f;
    const __m512 values = _mm512_sub_ps(
        _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_ps(zero));
    for (int i = 0; i < 4; ++i) {
      const __m512i v = _mm512_loadu_si512(line + 64 * i);
      __m512 f[8];
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        const int bits = j < 4 ? 8 * j : 8 * (j - 4) + 4;
        // the permutation reads only the low four bits of its index
        const __m512 q = _mm512_permutexvar_ps(_mm512_srli_epi32(v, bits), values);
        f[j] = _mm512_fmadd_ps(q, s, m);
      }
      for (int j = 0; j < 4; ++j)
        _mm512_store_si512(out + 4 * i + j, pair_bf16(f[2 * j], f[2 * j + 1]));
    }
  } else {
    const uint8_t* line = block.codes + static_cast<int64_t>(g) * 512;
    for (int i = 0; i < 8; ++i) {
      const __m512i v = _mm512_loadu_si512(line + 64 * i);
      __m512 f[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const __m512i q = _mm512_srai_epi32(_mm512_slli_epi32(v, 24 - 8 * j), 24);
        f[j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(q), s, m);
      }
      _mm512_store_si512(out + 2 * i, pair_bf16(f[0], f[1]));
      _mm512_store_si512(out + 2 * i + 1, pair_bf16(f[2], f[3]));
    }
  }
}

inline void round_to_bf16(const float* x, int count, uint16_t* out) {
  if (count == 32) {
    _mm512_storeu_si512(out,
                        (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x)));
  } else {
    for (int i = 0; i < count; ++i) out[i] = float_to_bf16(x[i]);
  }
}

}  // namespace
}  // namespace ei::EI_NS

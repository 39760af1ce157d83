// linear_int8 with 512-bit VNNI: a line is one operand of dpbusd.
#pragma once
#include <immintrin.h>

#include "kernels/linear_common.h"

namespace ei::EI_NS {
namespace {

constexpr int kTileRows = 6;
constexpr int kTileBlocks = 2;

inline __m512i broadcast4(const int8_t* p) {
  int32_t v;
  std::memcpy(&v, p, sizeof v);
  return _mm512_set1_epi32(v);
}

inline __m512 load_half16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// Step s of a group: 4 values of k of the 16 channels, as unsigned bytes. Codes of 8 bits have 128
// added.
template <int kBits>
inline __m512i unpack(const uint8_t* group, int s) {
  const __m512i low = _mm512_set1_epi8(15);
  const __m512i v = _mm512_loadu_si512(group + code_line(4 * s, kBits) * 64);
  if (kBits == 8) return _mm512_xor_si512(v, _mm512_set1_epi8(-128));
  const __m512i q = _mm512_and_si512(s % 2 == 0 ? v : _mm512_srli_epi16(v, 4), low);
  if (kBits == 4) return q;
  const __m512i p = _mm512_loadu_si512(group + above_line(4 * s) * 64);
  const __m512i above = s % 4 == 0   ? _mm512_slli_epi16(p, 4)
                        : s % 4 == 1 ? _mm512_slli_epi16(p, 2)
                        : s % 4 == 2 ? p
                                     : _mm512_srli_epi16(p, 2);
  return _mm512_ternarylogic_epi32(q, above, _mm512_set1_epi8(48), 0xf8);  // q | (above & 48)
}

// dot[b][i] += 4 values of k of the channels of block b times those of row i.
template <int B, int R>
inline void dot_rows(const __m512i* w, const int8_t* codes, int64_t k_stride, __m512i (*dot)[R]) {
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
    const __m512i a = broadcast4(codes + i * k_stride);
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) dot[b][i] = _mm512_dpbusd_epi32(dot[b][i], w[b], a);
  }
}

// See dot_tile of the scalar level. The rows are innermost: their chains of dpbusd overlap, and B
// blocks share the broadcasts.
template <int B, int R, int kBits, bool kMin>
void dot_tile(const Block& block, const int8_t* codes, int64_t k_stride, const float* scales,
              const int32_t* sums, int64_t g_stride, float (*acc)[B * kBlockN]) {
  __m512 v[B][R];
#pragma GCC unroll 4
  for (int b = 0; b < B; ++b)
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) v[b][i] = _mm512_setzero_ps();
  const uint8_t* line = block.codes;
  for (int g = 0; g < block.groups; ++g) {
    const int8_t* a = codes + g * kActGroup;
    const int64_t offset = line - block.codes;
    __m512i dot[B][R];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      __m512i first = _mm512_setzero_si512();
      if (kBits == 8 || !kMin)  // not by dpwssd: the multipliers have enough to do
        first = _mm512_sub_epi32(
            first, _mm512_slli_epi32(_mm512_set1_epi32(sums[i * g_stride + g]), kBits - 1));
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) dot[b][i] = first;
    }
#pragma GCC unroll 8
    for (int s = 0; s < 8; ++s) {
      __m512i w[B];
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) {
        const uint8_t* p = line + b * block.code_stride;
        const int next = s * kBits / 8;  // kBits lines in eight steps
        if (s == 0 || next != (s - 1) * kBits / 8) prefetch_codes(block, p + 64 * next, offset, B);
        w[b] = unpack<kBits>(p, s);
      }
      dot_rows<B, R>(w, a + 4 * s, k_stride, dot);
    }
    line += 64 * kBits;
    const int64_t at = static_cast<int64_t>(g >> block.shift) * kBlockN;
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) {
      const uint16_t* scale_row = block.scales + at + b * block.scale_stride;
      prefetch_scales(scale_row, B);
      const __m512 s_w = load_half16(scale_row);
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) {
        const float s_a = scales[i * g_stride + g];
        v[b][i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[b][i]),
                                  _mm512_mul_ps(s_w, _mm512_set1_ps(s_a)), v[b][i]);
        if (kMin) {
          const float sum = static_cast<float>(sums[i * g_stride + g]);
          v[b][i] = _mm512_fmadd_ps(load_half16(block.minimums + at + b * block.scale_stride),
                                    _mm512_set1_ps(s_a * sum), v[b][i]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int b = 0; b < B; ++b)
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) _mm512_store_ps(acc[i] + b * kBlockN, v[b][i]);
}

inline uint32_t max_abs_bits(const float* x) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i a = _mm512_and_si512(_mm512_loadu_si512(x), magnitude);
  const __m512i b = _mm512_and_si512(_mm512_loadu_si512(x + 16), magnitude);
  return static_cast<uint32_t>(_mm512_reduce_max_epi32(_mm512_max_epi32(a, b)));
}

inline int32_t quantize_group(const float* x, float inverse, int8_t* codes) {
  const __m512 scale = _mm512_set1_ps(inverse);
  const __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), scale));
  const __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), scale));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), _mm512_cvtsepi32_epi8(a));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + 16), _mm512_cvtsepi32_epi8(b));
  return _mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
}

}  // namespace
}  // namespace ei::EI_NS

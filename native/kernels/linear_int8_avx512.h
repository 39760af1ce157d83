// linear_int8 with 512-bit VNNI: a line is one operand of dpbusd.
#pragma once
#include <immintrin.h>

#include "kernels/linear_common.h"

namespace ei::EI_NS {
namespace {

constexpr int kTileRows = 8;
constexpr int64_t kPrefetchBytes = 2048;

inline __m512i broadcast4(const int8_t* p) {
  int32_t v;
  std::memcpy(&v, p, sizeof v);
  return _mm512_set1_epi32(v);
}

inline __m512 load_half16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// The eight dpbusd operands (4 values of k each) of one activation group, as unsigned bytes.
template <int kBits>
inline void unpack_group(const uint8_t* line, __m512i* w) {
  if (kBits == 4) {
    const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) {
      const __m512i v = _mm512_loadu_si512(line + 64 * s);
      w[2 * s] = _mm512_and_si512(v, low);
      w[2 * s + 1] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
    }
  } else {
    const __m512i flip = _mm512_set1_epi8(-128);
#pragma GCC unroll 8
    for (int s = 0; s < 8; ++s) w[s] = _mm512_xor_si512(_mm512_loadu_si512(line + 64 * s), flip);
  }
}

// See dot_tile of the scalar level.
template <int R, int kBits, bool kMin>
void dot_tile(const Block& block, const int8_t* codes, int64_t k_stride, const float* scales,
              const int32_t* sums, int64_t g_stride, float (*acc)[kBlockN]) {
  // dpwssd with (-bias, 0) word pairs: the sum fits its low word, so this is -bias*sum.
  const __m512i bias = _mm512_set1_epi32(kBits == 4 ? 0xfff8 : 0xff80);
  __m512 v[R];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) v[i] = _mm512_setzero_ps();
  const uint8_t* line = block.codes;
  for (int g = 0; g < block.groups; ++g) {
    const int64_t at = static_cast<int64_t>(g >> block.shift) * kBlockN;
    for (int s = 0; s < kBits; ++s)
      _mm_prefetch(reinterpret_cast<const char*>(line) + kPrefetchBytes + 64 * s, _MM_HINT_T0);
    __m512i w[8];
    unpack_group<kBits>(line, w);
    const __m512 s_w = load_half16(block.scales + at);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const int8_t* a = codes + i * k_stride + g * kActGroup;
      const int32_t sum = sums[i * g_stride + g];
      const float s_a = scales[i * g_stride + g];
      __m512i dot = _mm512_setzero_si512();
      if (kBits == 8 || !kMin) dot = _mm512_dpwssd_epi32(dot, bias, _mm512_set1_epi32(sum));
#pragma GCC unroll 8
      for (int s = 0; s < 8; ++s) dot = _mm512_dpbusd_epi32(dot, w[s], broadcast4(a + 4 * s));
      v[i] =
          _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(s_w, _mm512_set1_ps(s_a)), v[i]);
      if (kMin)
        v[i] = _mm512_fmadd_ps(load_half16(block.minimums + at),
                               _mm512_set1_ps(s_a * static_cast<float>(sum)), v[i]);
    }
    line += kActGroup * kBits * 2;
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) _mm512_store_ps(acc[i], v[i]);
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

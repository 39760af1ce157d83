// linear_int8 with 256-bit vectors: maddubs on plain AVX2, dpbusd with AVX-VNNI.
#pragma once
#include <immintrin.h>

#include "kernels/linear_common.h"

namespace ei::EI_NS {
namespace {

constexpr int kTileRows = 6;
constexpr int kTileBlocks = 2;

inline __m256i broadcast4(const int8_t* p) {
  int32_t v;
  std::memcpy(&v, p, sizeof v);
  return _mm256_set1_epi32(v);
}

// Keeps a running sum in its register: compilers reassociate integer sums into trees that spill.
inline void keep(__m256i& v) { __asm__("" : "+x"(v)); }

// Step s of a group of 4 or 6 bits: 4 values of k of 8 channels (half a line), as unsigned bytes.
template <int kBits>
inline __m256i unpack(const uint8_t* group, int s) {
  const __m256i low = _mm256_set1_epi8(15);
  const auto load = [](const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  };
  const __m256i v = load(group + code_line(4 * s, kBits) * 64);
  const __m256i q = _mm256_and_si256(s % 2 == 0 ? v : _mm256_srli_epi16(v, 4), low);
  if (kBits == 4) return q;
  const __m256i p = load(group + above_line(4 * s) * 64);
  const __m256i above = s % 4 == 0   ? _mm256_slli_epi16(p, 4)
                        : s % 4 == 1 ? _mm256_slli_epi16(p, 2)
                        : s % 4 == 2 ? p
                                     : _mm256_srli_epi16(p, 2);
  return _mm256_or_si256(q, _mm256_and_si256(above, _mm256_set1_epi8(48)));
}

// Exact integer dots of 32 values of k: 8 channels (half a line) against R rows.
template <int R, int kBits, bool kMin>
inline void group_dots(const uint8_t* line, const int8_t* codes, int64_t k_stride,
                       const int32_t* sums, int64_t g_stride, __m256i* dot) {
#if EI_LEVEL >= 2
  // dpwssd with (-bias, 0) word pairs: the sum fits its low word, so this is -bias*sum.
  const __m256i bias = _mm256_set1_epi32(0x10000 - (1 << (kBits - 1)));
  for (int i = 0; i < R; ++i) {
    dot[i] = _mm256_setzero_si256();
    if (kBits == 8 || !kMin)
      dot[i] = _mm256_dpwssd_avx_epi32(dot[i], bias, _mm256_set1_epi32(sums[i * g_stride]));
  }
  if constexpr (kBits < 8) {
#pragma GCC unroll 8
    for (int s = 0; s < 8; ++s) {
      const __m256i v = unpack<kBits>(line, s);
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i)
        dot[i] = _mm256_dpbusd_avx_epi32(dot[i], v, broadcast4(codes + i * k_stride + 4 * s));
    }
  } else {
    const __m256i flip = _mm256_set1_epi8(-128);
#pragma GCC unroll 8
    for (int s = 0; s < 8; ++s) {
      const __m256i v = _mm256_xor_si256(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line + 64 * s)), flip);
      for (int i = 0; i < R; ++i)
        dot[i] = _mm256_dpbusd_avx_epi32(dot[i], v, broadcast4(codes + i * k_stride + 4 * s));
    }
  }
#else
  const __m256i ones = _mm256_set1_epi16(1);
  for (int i = 0; i < R; ++i) dot[i] = _mm256_setzero_si256();
  if constexpr (kBits < 8) {
    // 16 bits hold eight sums of two products of at most 15*127, and two of those of 63*127
#pragma GCC unroll 4
    for (int s = 0; s < 8; s += 2) {
      const __m256i v = unpack<kBits>(line, s), next = unpack<kBits>(line, s + 1);
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) {
        const int8_t* a = codes + i * k_stride + 4 * s;
        const __m256i two = _mm256_add_epi16(_mm256_maddubs_epi16(v, broadcast4(a)),
                                             _mm256_maddubs_epi16(next, broadcast4(a + 4)));
        dot[i] = kBits == 4 ? _mm256_add_epi16(dot[i], two)
                            : _mm256_add_epi32(dot[i], _mm256_madd_epi16(two, ones));
        if (kBits == 6) keep(dot[i]);
      }
    }
    for (int i = 0; i < R; ++i) {
      if (kBits == 4) dot[i] = _mm256_madd_epi16(dot[i], ones);
      if (!kMin)
        dot[i] = _mm256_sub_epi32(
            dot[i], _mm256_slli_epi32(_mm256_set1_epi32(sums[i * g_stride]), kBits - 1));
    }
  } else {
    // |w| <= 128 is unsigned and its sign moves to the activation: 2*128*127 stays below 2^15.
    // (a ^ -1) - -1 is -a; some CPUs have vpsignb on the multipliers' ports only.
#pragma GCC unroll 8
    for (int s = 0; s < 8; ++s) {
      const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line + 64 * s));
      const __m256i magnitude = _mm256_abs_epi8(v);
      const __m256i negative = _mm256_cmpgt_epi8(_mm256_setzero_si256(), v);
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) {
        const __m256i a = _mm256_sub_epi8(
            _mm256_xor_si256(broadcast4(codes + i * k_stride + 4 * s), negative), negative);
        dot[i] =
            _mm256_add_epi32(dot[i], _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, a), ones));
        keep(dot[i]);
      }
    }
  }
#endif
}

inline __m256 load_half8(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// H halves of blocks side by side (8 channels each, from half `first` on, two to a block) against R
// rows; see dot_tile of the scalar level.
template <int R, int H, int B, int kBits, bool kMin>
inline void dot_halves(const Block& block, int first, const int8_t* codes, int64_t k_stride,
                       const float* scales, const int32_t* sums, int64_t g_stride,
                       float (*acc)[B * kBlockN]) {
  __m256 v[H][R];
  for (int h = 0; h < H; ++h)
    for (int i = 0; i < R; ++i) v[h][i] = _mm256_setzero_ps();
  for (int g = 0; g < block.groups; ++g) {
    const int64_t offset = g * code_lines(kActGroup, kBits) * 64;
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) {
      const int b = (first + h) / 2, half = (first + h) % 2;
      const uint8_t* line = block.codes + b * block.code_stride + offset;
      if (half == 0 || H == 1)
        for (int s = 0; s < kBits; ++s) prefetch_codes(block, line + 64 * s, offset, B);
      __m256i dot[R];
      group_dots<R, kBits, kMin>(line + 32 * half, codes + g * kActGroup, k_stride, sums + g,
                                 g_stride, dot);
      const int64_t at =
          b * block.scale_stride + static_cast<int64_t>(g >> block.shift) * kBlockN + 8 * half;
      if (half == 0 || H == 1) prefetch_scales(block.scales + at, B);
      const __m256 s_w = load_half8(block.scales + at);
      for (int i = 0; i < R; ++i) {
        const __m256 s_a = _mm256_set1_ps(scales[i * g_stride + g]);
        v[h][i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[i]), _mm256_mul_ps(s_w, s_a), v[h][i]);
        if (kMin) {
          const float sum = static_cast<float>(sums[i * g_stride + g]);
          v[h][i] = _mm256_fmadd_ps(load_half8(block.minimums + at),
                                    _mm256_set1_ps(scales[i * g_stride + g] * sum), v[h][i]);
        }
      }
    }
  }
  for (int h = 0; h < H; ++h)
    for (int i = 0; i < R; ++i) _mm256_storeu_ps(acc[i] + 8 * (first + h), v[h][i]);
}

#if EI_LEVEL == 1
// Sums of two products of 8-bit numbers, taken into a sum or (at the first step) begun with.
template <int kStep>
inline void take(__m256i& sum, __m256i products) {
  sum = kStep == 0 ? products : _mm256_add_epi16(sum, products);
  keep(sum);
}

// One step of a 4-bit group: 4 values of k of 16 channels against R rows.
template <int R, int kStep>
inline void step_dots(__m256i w0, __m256i w1, const int8_t* a, int64_t k_stride,
                      __m256i (*dot)[2]) {
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    const __m256i x = broadcast4(a + i * k_stride);
    take<kStep>(dot[i][0], _mm256_maddubs_epi16(w0, x));
    take<kStep>(dot[i][1], _mm256_maddubs_epi16(w1, x));
  }
}

// A line of a 4-bit group: its low nibbles, then its high ones.
template <int R, int kLine>
inline void line_dots(const uint8_t* line, const int8_t* a, int64_t k_stride, __m256i (*dot)[2]) {
  const __m256i low = _mm256_set1_epi8(15);
  const auto* p = reinterpret_cast<const __m256i*>(line + 64 * kLine);
  step_dots<R, 2 * kLine>(_mm256_and_si256(_mm256_loadu_si256(p), low),
                          _mm256_and_si256(_mm256_loadu_si256(p + 1), low), a + 8 * kLine, k_stride,
                          dot);
  step_dots<R, 2 * kLine + 1>(
      _mm256_and_si256(_mm256_srli_epi16(_mm256_loadu_si256(p), 4), low),
      _mm256_and_si256(_mm256_srli_epi16(_mm256_loadu_si256(p + 1), 4), low), a + 8 * kLine + 4,
      k_stride, dot);
}

// Several rows against one 4-bit block. The sixteen registers hold the integer sums of all rows, so
// that a broadcast serves both halves of a line; the float sums wait in the cache meanwhile.
template <int R, bool kMin>
inline void dot_rows(const Block& block, const int8_t* codes, int64_t k_stride, const float* scales,
                     const int32_t* sums, int64_t g_stride, float* acc, int64_t acc_stride) {
  for (int i = 0; i < R; ++i)
    for (int c = 0; c < kBlockN; ++c) acc[i * acc_stride + c] = 0.0f;
  for (int g = 0; g < block.groups; ++g) {
    const uint8_t* line = block.codes + g * code_lines(kActGroup, 4) * 64;
    const int8_t* a = codes + g * kActGroup;
    __m256i dot[R][2];
    line_dots<R, 0>(line, a, k_stride, dot);
    line_dots<R, 1>(line, a, k_stride, dot);
    line_dots<R, 2>(line, a, k_stride, dot);
    line_dots<R, 3>(line, a, k_stride, dot);
    const int64_t at = static_cast<int64_t>(g >> block.shift) * kBlockN;
    const __m256 s_w[2] = {load_half8(block.scales + at), load_half8(block.scales + at + 8)};
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const float s_a = scales[i * g_stride + g];
      const int32_t sum = sums[i * g_stride + g];
      float* y = acc + i * acc_stride;
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        // eight sums of two products of at most 15*127 stay below 2^15
        __m256i d = _mm256_madd_epi16(dot[i][h], _mm256_set1_epi16(1));
        if (!kMin) d = _mm256_sub_epi32(d, _mm256_set1_epi32(8 * sum));
        __m256 v =
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(d), _mm256_mul_ps(s_w[h], _mm256_set1_ps(s_a)),
                            _mm256_loadu_ps(y + 8 * h));
        if (kMin)
          v = _mm256_fmadd_ps(load_half8(block.minimums + at + 8 * h),
                              _mm256_set1_ps(s_a * static_cast<float>(sum)), v);
        _mm256_storeu_ps(y + 8 * h, v);
      }
    }
    if (!block.cached) {
#pragma GCC unroll 4
      for (int s = 0; s < 4; ++s) prefetch_near(line, kNearBytes + 64 * s);
    }
  }
}
#endif

template <int B, int R, int kBits, bool kMin>
void dot_tile(const Block& block, const int8_t* codes, int64_t k_stride, const float* scales,
              const int32_t* sums, int64_t g_stride, float (*acc)[B * kBlockN]) {
#if EI_LEVEL == 1
  if constexpr (kBits == 4 && R > 1) {
    for (int b = 0; b < B; ++b) {
      Block one = block;
      one.codes += b * block.code_stride;
      one.scales += b * block.scale_stride;
      if (kMin) one.minimums += b * block.scale_stride;
      dot_rows<R, kMin>(one, codes, k_stride, scales, sums, g_stride, acc[0] + b * kBlockN,
                        B * kBlockN);
    }
    return;
  }
#endif
  // as many halves at once as sixteen registers hold; the others find the codes in the cache
  constexpr int H = R == 1 ? 2 * B : R == 2 ? 2 : 1;
  for (int first = 0; first < 2 * B; first += H)
    dot_halves<R, H, B, kBits, kMin>(block, first, codes, k_stride, scales, sums, g_stride, acc);
}

inline uint32_t max_abs_bits(const float* x) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i m = _mm256_setzero_si256();
  for (int i = 0; i < kActGroup; i += 8)
    m = _mm256_max_epi32(
        m,
        _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i)), magnitude));
  __m128i h = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
  h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
  h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(h));
}

inline int32_t quantize_group(const float* x, float inverse, int8_t* codes) {
  const __m256 scale = _mm256_set1_ps(inverse);
  __m256i q[4];
  for (int i = 0; i < 4; ++i)
    q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), scale));
  const __m256i a = _mm256_packs_epi32(q[0], q[1]), b = _mm256_packs_epi32(q[2], q[3]);
  // the packs interleave 128-bit lanes: dwords come out as 0 4 1 5 2 6 3 7 of the order wanted
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), bytes);
  const __m256i s = _mm256_madd_epi16(_mm256_add_epi16(a, b), _mm256_set1_epi16(1));
  __m128i h = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
  h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
  h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1));
  return _mm_cvtsi128_si32(h);
}

}  // namespace
}  // namespace ei::EI_NS

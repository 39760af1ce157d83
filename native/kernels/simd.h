// One vector of f32 per ISA level: 16 lanes (avx512), 8 (avx2), 1 (scalar). Kernels written on it
// compute the same bits at avx2 and avx512: the same operations in the same order, lane by lane.
// All of it is internal to the including file; * + - / on VF are the compiler's own.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels.h"

#if EI_LEVEL > 0
#include <immintrin.h>
#endif

#include "common/half.h"

namespace ei::EI_NS {
namespace {

// What the pool keeps of a key or value: 16-bit floats, or codes beside a scale.
template <KvType T>
struct KvStorage {
  using Element = uint16_t;
};
template <>
struct KvStorage<KvType::kI8> {
  using Element = int8_t;
};
template <KvType T>
using KvElement = typename KvStorage<T>::Element;

template <KvType T>
inline float kv_to_float(KvElement<T> h) {
  if constexpr (T == KvType::kI8) return static_cast<float>(h);
  return T == KvType::kF16 ? half_to_float(h) : bf16_to_float(h);
}

template <KvType T>
inline uint16_t float_to_kv(float f) {  // 16-bit types
  return T == KvType::kF16 ? float_to_half(f) : float_to_bf16(f);
}

// --- vectors. vmax(a, b) is b where a is NaN; *_n functions touch only the first n lanes. ---
#if EI_LEVEL >= 3

constexpr int kW = 16;
using VF = __m512;
using VMask = __mmask16;

inline __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
inline VF vload(const float* p) { return _mm512_loadu_ps(p); }
inline VF vload_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
inline void vstore(float* p, VF a) { _mm512_storeu_ps(p, a); }
inline void vstore_n(float* p, VF a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a); }
inline VF vset(float x) { return _mm512_set1_ps(x); }
inline float vfirst(VF a) { return _mm512_cvtss_f32(a); }
inline VF vfma(VF a, VF b, VF c) { return _mm512_fmadd_ps(a, b, c); }    // a*b + c
inline VF vfnma(VF a, VF b, VF c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a*b
inline VF vfms(VF a, VF b, VF c) { return _mm512_fmsub_ps(a, b, c); }    // a*b - c
inline VF vmax(VF a, VF b) { return _mm512_max_ps(a, b); }
inline VF vmin(VF a, VF b) { return _mm512_min_ps(a, b); }
inline VF vabs(VF a) { return _mm512_abs_ps(a); }
inline VF vcopysign(VF magnitude, VF sign) {
  return _mm512_or_ps(magnitude, _mm512_and_ps(sign, _mm512_set1_ps(-0.0f)));
}
inline VF vround(VF a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline VF vldexp(VF a, VF n) { return _mm512_scalef_ps(a, n); }  // a * 2^n, n integral
inline VMask vlt(VF a, VF b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
inline VMask vge(VF a, VF b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
inline VMask veq(VF a, VF b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
inline uint32_t vbits(VMask m) { return m; }
inline VF vselect(VMask m, VF yes, VF no) { return _mm512_mask_blend_ps(m, no, yes); }
inline VMask vlanes_between(int lo, int hi) {  // lanes lo <= i < hi, for any integers
  const __m512i i = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_cmpge_epi32_mask(i, _mm512_set1_epi32(lo)) &
         _mm512_cmplt_epi32_mask(i, _mm512_set1_epi32(hi));
}

inline __m256 half_sum(VF a) {
  return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}
inline __m256 half_max(VF a) {
  return _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}

template <KvType T>
inline VF vload_kv(const KvElement<T>* p) {
  if constexpr (T == KvType::kI8)
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  if constexpr (T == KvType::kF16) return _mm512_cvtph_ps(h);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

inline __m256i vto_f16(VF a) { return _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT); }
inline void vstore_f16(uint16_t* p, VF a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), vto_f16(a));
}

#elif EI_LEVEL >= 1

constexpr int kW = 8;
using VF = __m256;
using VMask = __m256;

inline __m256i first_lanes(int n) {
  const __m256i i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), i);
}
inline VF vload(const float* p) { return _mm256_loadu_ps(p); }
inline VF vload_n(const float* p, int n) { return _mm256_maskload_ps(p, first_lanes(n)); }
inline void vstore(float* p, VF a) { _mm256_storeu_ps(p, a); }
inline void vstore_n(float* p, VF a, int n) { _mm256_maskstore_ps(p, first_lanes(n), a); }
inline VF vset(float x) { return _mm256_set1_ps(x); }
inline float vfirst(VF a) { return _mm256_cvtss_f32(a); }
inline VF vfma(VF a, VF b, VF c) { return _mm256_fmadd_ps(a, b, c); }
inline VF vfnma(VF a, VF b, VF c) { return _mm256_fnmadd_ps(a, b, c); }
inline VF vfms(VF a, VF b, VF c) { return _mm256_fmsub_ps(a, b, c); }
inline VF vmax(VF a, VF b) { return _mm256_max_ps(a, b); }
inline VF vmin(VF a, VF b) { return _mm256_min_ps(a, b); }
inline VF vabs(VF a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline VF vcopysign(VF magnitude, VF sign) {
  return _mm256_or_ps(magnitude, _mm256_and_ps(sign, _mm256_set1_ps(-0.0f)));
}
inline VF vround(VF a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// n from -125 up; n = 128 is in range because a doubles first.
inline VF vldexp(VF a, VF n) {
  const __m256i i = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(126));
  return (a + a) * _mm256_castsi256_ps(_mm256_slli_epi32(i, 23));
}
inline VMask vlt(VF a, VF b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
inline VMask vge(VF a, VF b) { return _mm256_cmp_ps(a, b, _CMP_GE_OQ); }
inline VMask veq(VF a, VF b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
inline uint32_t vbits(VMask m) { return static_cast<uint32_t>(_mm256_movemask_ps(m)); }
inline VF vselect(VMask m, VF yes, VF no) { return _mm256_blendv_ps(no, yes, m); }
inline VMask vlanes_between(int lo, int hi) {
  const __m256i i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(lo), i);
  return _mm256_castsi256_ps(
      _mm256_andnot_si256(below, _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), i)));
}

inline __m256 half_sum(VF a) { return a; }
inline __m256 half_max(VF a) { return a; }

template <KvType T>
inline VF vload_kv(const KvElement<T>* p) {
  if constexpr (T == KvType::kI8)
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  if constexpr (T == KvType::kF16) return _mm256_cvtph_ps(h);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

inline void vstore_f16(uint16_t* p, VF a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

#else

constexpr int kW = 1;
using VF = float;
using VMask = bool;

inline VF vload(const float* p) { return *p; }
inline VF vload_n(const float* p, int n) { return n > 0 ? *p : 0.0f; }
inline void vstore(float* p, VF a) { *p = a; }
inline void vstore_n(float* p, VF a, int n) {
  if (n > 0) *p = a;
}
inline VF vset(float x) { return x; }
inline float vfirst(VF a) { return a; }
inline VF vmax(VF a, VF b) { return a > b ? a : b; }
inline VF vmin(VF a, VF b) { return a < b ? a : b; }
inline VMask vlt(VF a, VF b) { return a < b; }
inline VMask vge(VF a, VF b) { return a >= b; }
inline VMask veq(VF a, VF b) { return a == b; }
inline uint32_t vbits(VMask m) { return m; }
inline VF vselect(VMask m, VF yes, VF no) { return m ? yes : no; }

#endif

#if EI_LEVEL >= 1
template <KvType T>
inline VF vload_kv_n(const KvElement<T>* p, int n) {
  KvElement<T> lanes[kW] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return vload_kv<T>(lanes);
}

inline float vreduce_max(VF a) {
  const __m256 h = half_max(a);
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

// The maxima of four vectors, in order.
inline __m128 vreduce_max4(const VF* a) {
  __m256 h[4];
  for (int i = 0; i < 4; ++i) h[i] = half_max(a[i]);
  const __m256 x = _mm256_max_ps(_mm256_unpacklo_ps(h[0], h[1]), _mm256_unpackhi_ps(h[0], h[1]));
  const __m256 y = _mm256_max_ps(_mm256_unpacklo_ps(h[2], h[3]), _mm256_unpackhi_ps(h[2], h[3]));
  const __m256 z = _mm256_max_ps(_mm256_shuffle_ps(x, y, 0x44), _mm256_shuffle_ps(x, y, 0xee));
  return _mm_max_ps(_mm256_castps256_ps128(z), _mm256_extractf128_ps(z, 1));
}
#else
inline float vreduce_max(VF a) { return a; }
#endif

// Sums over a row go to 32 lanes (element i to lane i % 32) and then down a tree, at every level,
// so that norms have the same bits everywhere.
constexpr int kLanes = 32;
constexpr int kLaneVectors = kLanes / kW;

inline float reduce_lanes(const VF* acc) {
  float lanes[kLanes];
  for (int j = 0; j < kLaneVectors; ++j) vstore(lanes + j * kW, acc[j]);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

}  // namespace
}  // namespace ei::EI_NS

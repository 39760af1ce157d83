// Four floats: SSE2, which every x86-64 has, or plain C++. Both give the same bits.
#pragma once
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace ei {
namespace {

#if defined(__SSE2__)

struct Vec4 {
  __m128 v;
};
inline Vec4 load(const float* p) { return {_mm_load_ps(p)}; }
inline void store(float* p, Vec4 a) { _mm_store_ps(p, a.v); }
inline Vec4 splat(float x) { return {_mm_set1_ps(x)}; }
inline Vec4 operator+(Vec4 a, Vec4 b) { return {_mm_add_ps(a.v, b.v)}; }
inline Vec4 operator-(Vec4 a, Vec4 b) { return {_mm_sub_ps(a.v, b.v)}; }
inline Vec4 operator*(Vec4 a, Vec4 b) { return {_mm_mul_ps(a.v, b.v)}; }
inline Vec4 min(Vec4 a, Vec4 b) { return {_mm_min_ps(a.v, b.v)}; }
inline Vec4 max(Vec4 a, Vec4 b) { return {_mm_max_ps(a.v, b.v)}; }

#else

struct Vec4 {
  float v[4];
};
template <typename F>
inline Vec4 each(F f) {
  return {{f(0), f(1), f(2), f(3)}};
}
inline Vec4 load(const float* p) {
  return each([&](int i) { return p[i]; });
}
inline void store(float* p, Vec4 a) {
  for (int i = 0; i < 4; ++i) p[i] = a.v[i];
}
inline Vec4 splat(float x) { return {{x, x, x, x}}; }
inline Vec4 operator+(Vec4 a, Vec4 b) {
  return each([&](int i) { return a.v[i] + b.v[i]; });
}
inline Vec4 operator-(Vec4 a, Vec4 b) {
  return each([&](int i) { return a.v[i] - b.v[i]; });
}
inline Vec4 operator*(Vec4 a, Vec4 b) {
  return each([&](int i) { return a.v[i] * b.v[i]; });
}
inline Vec4 min(Vec4 a, Vec4 b) {
  return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec4 max(Vec4 a, Vec4 b) {
  return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}

#endif

// To the nearest integer, ties to even; for magnitudes under 2^22.
inline Vec4 round_nearest(Vec4 a) {
  const Vec4 magic = splat(12582912.f);
  return (a + magic) - magic;
}

inline float sum(Vec4 a) {
  alignas(16) float p[4];
  store(p, a);
  return (p[0] + p[2]) + (p[1] + p[3]);
}

}  // namespace
}  // namespace ei

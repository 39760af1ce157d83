// Linears over row-major f32, bf16 and f16 weights, f32 sums. Every (row, channel) has its own
// lanes and walks k in the same order whatever is computed beside it, so results do not depend on
// company.
#include "common/half.h"
#include "kernels/kernels.h"

namespace ei::EI_NS {
namespace {

#if EI_LEVEL >= 3
constexpr int kLanes = 16;
using Vec = __m512;
inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec madd(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline float sum(Vec v) { return _mm512_reduce_add_ps(v); }
inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline Vec widen_bf16(const uint16_t* p) {
  const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}
inline Vec widen_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
#elif EI_LEVEL >= 1
constexpr int kLanes = 8;
using Vec = __m256;
inline Vec zero() { return _mm256_setzero_ps(); }
inline Vec madd(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline float sum(Vec v) {
  __m128 h = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  h = _mm_add_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}
inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline Vec widen_bf16(const uint16_t* p) {
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}
inline Vec widen_f16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
#else
constexpr int kLanes = 8;
struct Vec {
  float f[kLanes];
};
inline Vec zero() { return Vec{}; }
inline Vec madd(Vec a, Vec b, Vec c) {
  for (int i = 0; i < kLanes; ++i) c.f[i] += a.f[i] * b.f[i];
  return c;
}
inline float sum(Vec v) {
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) v.f[i] += v.f[i + half];
  return v.f[0];
}
inline Vec load(const float* p) {
  Vec v;
  std::memcpy(v.f, p, sizeof v.f);
  return v;
}
inline Vec widen_bf16(const uint16_t* p) {
  uint16_t raw[kLanes];
  std::memcpy(raw, p, sizeof raw);
  Vec v;
  for (int i = 0; i < kLanes; ++i) v.f[i] = bf16_to_float(raw[i]);
  return v;
}
inline Vec widen_f16(const uint16_t* p) {
  uint16_t raw[kLanes];
  std::memcpy(raw, p, sizeof raw);
  Vec v;
  for (int i = 0; i < kLanes; ++i) v.f[i] = half_to_float(raw[i]);
  return v;
}
#endif

// Weights come straight from a file and may be unaligned: they are only read through these.
struct F32 {
  static constexpr int kBytes = 4;
  static Vec load16(const char* p) { return load(reinterpret_cast<const float*>(p)); }
};
struct Bf16 {
  static constexpr int kBytes = 2;
  static Vec load16(const char* p) { return widen_bf16(reinterpret_cast<const uint16_t*>(p)); }
};
struct F16 {
  static constexpr int kBytes = 2;
  static Vec load16(const char* p) { return widen_f16(reinterpret_cast<const uint16_t*>(p)); }
};

// The last count (< kLanes) values, zeros behind them.
template <class T>
inline Vec load_tail(const char* p, int count) {
  alignas(64) char padded[kLanes * T::kBytes] = {};
  std::memcpy(padded, p, static_cast<size_t>(count) * T::kBytes);
  return T::load16(padded);
}

// y of R rows and C channels.
template <class T, int R, int C>
void tile(const char* w, int64_t w_stride, int k, const float* x, int64_t x_stride, float* y,
          int64_t y_stride, const float* bias, bool accumulate) {
  Vec acc[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) acc[r][c] = zero();
  int i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    Vec wv[C];
    for (int c = 0; c < C; ++c) wv[c] = T::load16(w + c * w_stride + int64_t{i} * T::kBytes);
    for (int r = 0; r < R; ++r) {
      const Vec xv = load(x + r * x_stride + i);
      for (int c = 0; c < C; ++c) acc[r][c] = madd(xv, wv[c], acc[r][c]);
    }
  }
  if (i < k) {
    Vec wv[C];
    for (int c = 0; c < C; ++c)
      wv[c] = load_tail<T>(w + c * w_stride + int64_t{i} * T::kBytes, k - i);
    for (int r = 0; r < R; ++r) {
      const Vec xv = load_tail<F32>(reinterpret_cast<const char*>(x + r * x_stride + i), k - i);
      for (int c = 0; c < C; ++c) acc[r][c] = madd(xv, wv[c], acc[r][c]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) {
      float v = sum(acc[r][c]);
      if (bias) v += bias[c];
      float* out = y + r * y_stride + c;
      *out = accumulate ? v + *out : v;
    }
}

constexpr int kChannels = EI_LEVEL >= 3 ? 4 : 2;

template <class T>
void linear_rows(const Matrix& w, const float* x, int64_t x_stride, int rows, int n_begin,
                 int n_end, float* y, int64_t y_stride, const Epilogue& e) {
  const int64_t w_stride = int64_t{w.k} * T::kBytes;
  const char* weights = static_cast<const char*>(w.codes);
  int n = n_begin;
  // a few channels at a time stay in the cache for all rows
  for (; n + kChannels <= n_end; n += kChannels) {
    const float* bias = e.bias ? e.bias + n : nullptr;
    int r = 0;
    for (; r + 4 <= rows; r += 4)
      tile<T, 4, kChannels>(weights + n * w_stride, w_stride, w.k, x + r * x_stride, x_stride,
                            y + r * y_stride + n, y_stride, bias, e.accumulate);
    for (; r < rows; ++r)
      tile<T, 1, kChannels>(weights + n * w_stride, w_stride, w.k, x + r * x_stride, x_stride,
                            y + r * y_stride + n, y_stride, bias, e.accumulate);
  }
  for (; n < n_end; ++n)
    for (int r = 0; r < rows; ++r)
      tile<T, 1, 1>(weights + n * w_stride, w_stride, w.k, x + r * x_stride, x_stride,
                    y + r * y_stride + n, y_stride, e.bias ? e.bias + n : nullptr, e.accumulate);
}

void linear_float(const Matrix& w, const float* x, int64_t x_stride, int rows, int n_begin,
                  int n_end, float* y, int64_t y_stride, const Epilogue& e) {
  if (n_end > w.n) n_end = w.n;
  if (w.type == WeightType::kF32)
    linear_rows<F32>(w, x, x_stride, rows, n_begin, n_end, y, y_stride, e);
  else if (w.type == WeightType::kBf16)
    linear_rows<Bf16>(w, x, x_stride, rows, n_begin, n_end, y, y_stride, e);
  else
    linear_rows<F16>(w, x, x_stride, rows, n_begin, n_end, y, y_stride, e);
}

}  // namespace

void register_linear_float(KernelTable& t) { t.linear_float = linear_float; }

}  // namespace ei::EI_NS

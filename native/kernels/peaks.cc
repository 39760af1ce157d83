// What the machine can do at most: a plain streaming read, and multiply-accumulates whose operands
// never leave the registers or tiles. Measurements are quoted against these.
#include "kernels/kernels.h"

#if EI_LEVEL >= 1
#include <immintrin.h>
#endif
#if EI_LEVEL >= 5
#include "kernels/amx_tiles.h"
#endif

namespace ei::EI_NS {
namespace {

// Keeps the compiler from taking the products of unchanging operands out of the loop.
#define EI_OPAQUE(v) __asm__ volatile("" : "+v"(v))

// Accumulators are emptied after this many steps: their sums stay exact, in f32 too.
constexpr int64_t kExactSteps = 1 << 16;
constexpr int kChains = 12;  // independent accumulators: enough for latency 6 at two a cycle

#if EI_LEVEL >= 3
uint64_t stream_read(const void* data, int64_t bytes) {
  const auto* p = static_cast<const __m512i*>(data);
  __m512i sum[4] = {};
  for (int64_t i = 0; i < bytes / 64; i += 4)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sum[j] = _mm512_add_epi64(sum[j], _mm512_load_si512(p + i + j));
  sum[0] = _mm512_add_epi64(_mm512_add_epi64(sum[0], sum[1]), _mm512_add_epi64(sum[2], sum[3]));
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(sum[0]));
}
#elif EI_LEVEL >= 1
uint64_t stream_read(const void* data, int64_t bytes) {
  const auto* p = static_cast<const __m256i*>(data);
  __m256i sum[8] = {};
  for (int64_t i = 0; i < bytes / 32; i += 8)
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) sum[j] = _mm256_add_epi64(sum[j], _mm256_load_si256(p + i + j));
  for (int j = 1; j < 8; ++j) sum[0] = _mm256_add_epi64(sum[0], sum[j]);
  alignas(32) uint64_t parts[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(parts), sum[0]);
  return parts[0] + parts[1] + parts[2] + parts[3];
}
#else
uint64_t stream_read(const void* data, int64_t bytes) {
  const auto* p = static_cast<const uint64_t*>(data);
  uint64_t sum[4] = {};
  for (int64_t i = 0; i < bytes / 8; i += 4)
    for (int j = 0; j < 4; ++j) sum[j] += p[i + j];
  return sum[0] + sum[1] + sum[2] + sum[3];
}
#endif

#if EI_LEVEL >= 5

constexpr int kLanes = 16 * 16;

int64_t lanes_sum(const int32_t* c) {
  int64_t sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += c[i];
  return sum;
}
int64_t lanes_sum(const float* c) {
  int64_t sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += static_cast<int64_t>(c[i]);
  return sum;
}

// Four accumulators, two operands of ones either side, as in the linear's 2x2 blocking.
#define EI_TILE_PEAK(T, product)                                            \
  int64_t total = 0;                                                        \
  T c[4][kLanes];                                                           \
  configure_tiles();                                                        \
  EI_TILE_LOAD(4, ones, 64);                                                \
  EI_TILE_LOAD(5, ones, 64);                                                \
  EI_TILE_LOAD(6, ones, 64);                                                \
  EI_TILE_LOAD(7, ones, 64);                                                \
  for (int64_t left = steps; left > 0; left -= kExactSteps) {               \
    EI_TILE_ZERO(0);                                                        \
    EI_TILE_ZERO(1);                                                        \
    EI_TILE_ZERO(2);                                                        \
    EI_TILE_ZERO(3);                                                        \
    for (int64_t i = left < kExactSteps ? left : kExactSteps; i > 0; --i) { \
      product(0, 4, 6);                                                     \
      product(1, 4, 7);                                                     \
      product(2, 5, 6);                                                     \
      product(3, 5, 7);                                                     \
    }                                                                       \
    EI_TILE_STORE(0, c[0], 64);                                             \
    EI_TILE_STORE(1, c[1], 64);                                             \
    EI_TILE_STORE(2, c[2], 64);                                             \
    EI_TILE_STORE(3, c[3], 64);                                             \
    for (int t = 0; t < 4; ++t) total += lanes_sum(c[t]);                   \
  }                                                                         \
  release_tiles();                                                          \
  return total

int64_t peak_int8(int64_t steps) {
  alignas(64) int8_t ones[1024];
  for (int8_t& v : ones) v = 1;
  EI_TILE_PEAK(int32_t, EI_TILE_DPBSSD);
}

int64_t peak_bf16(int64_t steps) {
  alignas(64) uint16_t ones[512];
  for (uint16_t& v : ones) v = 0x3f80;
  EI_TILE_PEAK(float, EI_TILE_DPBF16);
}

#elif EI_LEVEL >= 1

#if EI_LEVEL >= 3
using Int = __m512i;
inline Int int_ones() { return _mm512_set1_epi8(1); }
inline Int int_zero() { return _mm512_setzero_si512(); }
inline Int int_product(Int sum, Int a, Int b) { return _mm512_dpbusd_epi32(sum, a, b); }
inline int64_t int_lanes(Int v) { return _mm512_reduce_add_epi32(v); }
#else
using Int = __m256i;
inline Int int_ones() { return _mm256_set1_epi8(1); }
inline Int int_zero() { return _mm256_setzero_si256(); }
inline Int int_product(Int sum, Int a, Int b) {
#if EI_LEVEL >= 2
  return _mm256_dpbusd_avx_epi32(sum, a, b);
#else
  const Int pairs = _mm256_maddubs_epi16(a, b);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}
inline int64_t int_lanes(Int v) {
  alignas(32) int32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<Int*>(lanes), v);
  int64_t sum = 0;
  for (const int32_t lane : lanes) sum += lane;
  return sum;
}
#endif

int64_t peak_int8(int64_t steps) {
  const Int b = int_ones();
  Int a = int_ones();
  int64_t total = 0;
  for (int64_t left = steps; left > 0; left -= kExactSteps) {
    Int sum[kChains];
#pragma GCC unroll 12
    for (Int& s : sum) s = int_zero();
    for (int64_t i = left < kExactSteps ? left : kExactSteps; i > 0; --i)
#pragma GCC unroll 12
      for (Int& s : sum) {
        EI_OPAQUE(a);
        s = int_product(s, a, b);
      }
    for (const Int& s : sum) total += int_lanes(s);
  }
  return total;
}

#if EI_LEVEL == 4
int64_t peak_bf16(int64_t steps) {
  auto a = (__m512bh)_mm512_set1_epi16(0x3f80);
  const __m512bh b = a;
  int64_t total = 0;
  for (int64_t left = steps; left > 0; left -= kExactSteps) {
    __m512 sum[kChains];
#pragma GCC unroll 12
    for (__m512& s : sum) s = _mm512_setzero_ps();
    for (int64_t i = left < kExactSteps ? left : kExactSteps; i > 0; --i)
#pragma GCC unroll 12
      for (__m512& s : sum) {
        EI_OPAQUE(a);
        s = _mm512_dpbf16_ps(s, a, b);
      }
    for (const __m512& s : sum) total += static_cast<int64_t>(_mm512_reduce_add_ps(s));
  }
  return total;
}
#endif

#endif

}  // namespace

void register_peaks(KernelTable& t) {
  t.stream_read = stream_read;
#if EI_LEVEL >= 1
  t.peak_int8 = peak_int8;
#endif
#if EI_LEVEL >= 4
  t.peak_bf16 = peak_bf16;
#endif
}

}  // namespace ei::EI_NS

// The AMX instructions of amx_tiles.h in AVX512, for tests on a CPU without AMX (make test-amx).
// A tile that is used unconfigured ends the process, as it does on the real unit. Unlike that one,
// sums keep denormals.
#pragma once
#include <immintrin.h>

#include <cstdint>

#define EI_TILE_LOAD(t, base, stride) load_tile(t, base, stride)
#define EI_TILE_STREAM(t, base, stride) load_tile(t, base, stride)
#define EI_TILE_STORE(t, base, stride) store_tile(t, base, stride)
#define EI_TILE_ZERO(t) zero_tile(t)
#define EI_TILE_DPBF16(c, a, b) multiply_bf16_tiles(c, a, b)
#define EI_TILE_DPBSSD(c, a, b) multiply_int8_tiles(c, a, b)

namespace ei::EI_NS {
namespace {

struct TileUnit {
  bool configured;
  __m512i rows[8][16];
};
thread_local TileUnit tile_unit;

inline __m512i* tile_rows(int t) {
  if (!tile_unit.configured) __builtin_trap();
  return tile_unit.rows[t];
}

inline void zero_tile(int t) {
  __m512i* rows = tile_rows(t);
  for (int r = 0; r < 16; ++r) rows[r] = _mm512_setzero_si512();
}

inline void configure_tiles() {
  tile_unit.configured = true;
  for (int t = 0; t < 8; ++t) zero_tile(t);
}

inline void release_tiles() { tile_unit.configured = false; }

// stride in bytes
inline void load_tile(int t, const void* base, int64_t stride) {
  __m512i* rows = tile_rows(t);
  for (int r = 0; r < 16; ++r)
    rows[r] = _mm512_loadu_si512(static_cast<const char*>(base) + r * stride);
}

inline void store_tile(int t, void* base, int64_t stride) {
  const __m512i* rows = tile_rows(t);
  for (int r = 0; r < 16; ++r) _mm512_storeu_si512(static_cast<char*>(base) + r * stride, rows[r]);
}

// c += a * b with pairs of k: even and odd k are summed apart (Intel SDM, TDPBF16PS).
inline void multiply_bf16_tiles(int c, int a, int b) {
  const auto even = [](__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); };
  const auto odd = [](__m512i pairs) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  };
  __m512i* sums = tile_rows(c);
  for (int r = 0; r < 16; ++r) {
    alignas(64) int32_t left[16];
    _mm512_store_si512(left, tile_rows(a)[r]);
    __m512 x = _mm512_setzero_ps(), y = _mm512_setzero_ps();
    for (int k = 0; k < 16; ++k) {
      const __m512i pair = _mm512_set1_epi32(left[k]), right = tile_rows(b)[k];
      x = _mm512_fmadd_ps(even(pair), even(right), x);
      y = _mm512_fmadd_ps(odd(pair), odd(right), y);
    }
    sums[r] = _mm512_castps_si512(_mm512_castsi512_ps(sums[r]) + (x + y));
  }
}

// c += a * b with fours of k, both signed.
inline void multiply_int8_tiles(int c, int a, int b) {
  alignas(64) int32_t sums[16][16];
  alignas(64) int8_t left[16][64], right[16][64];
  for (int r = 0; r < 16; ++r) {
    _mm512_store_si512(sums[r], tile_rows(c)[r]);
    _mm512_store_si512(left[r], tile_rows(a)[r]);
    _mm512_store_si512(right[r], tile_rows(b)[r]);
  }
  for (int r = 0; r < 16; ++r)
    for (int k = 0; k < 64; ++k)
      for (int n = 0; n < 16; ++n) sums[r][n] += left[r][k] * right[k / 4][n * 4 + k % 4];
  for (int r = 0; r < 16; ++r) tile_rows(c)[r] = _mm512_load_si512(sums[r]);
}

}  // namespace
}  // namespace ei::EI_NS

// f32 to bf16 and to pairs of bf16, the operands of vdpbf16ps and of an AMX tile.
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

namespace ei::EI_NS {
namespace {

// 16 values of a, then 16 of b, to nearest even.
inline __m512i bf16_bits(__m512 a, __m512 b) {
  const __m512bh h = _mm512_cvtne2ps_pbh(b, a);
  __m512i bits;
  memcpy(&bits, &h, sizeof bits);
  return bits;
}

// 32-bit words of two bf16: that of a in the low half, that of b in the high one.
inline __m512i pair_bf16(__m512 a, __m512 b) {
  alignas(64) static constexpr uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                      21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                      11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), bf16_bits(a, b));
}

}  // namespace
}  // namespace ei::EI_NS

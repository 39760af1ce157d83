// 16-bit floats as bits. Internal to the including file, so that no ISA level's code can stand in
// for another's; files of a level above scalar have EI_LEVEL set and convert in hardware.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(EI_LEVEL) && EI_LEVEL >= 1
#include <immintrin.h>
#endif

namespace ei {
namespace {

inline float float_from_bits(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

inline uint32_t bits_from_float(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  return bits;
}

// IEEE binary16 to binary32, exact; signalling NaNs become quiet, as F16C makes them.
inline float half_to_float(uint16_t h) {
#if defined(EI_LEVEL) && EI_LEVEL >= 1
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
#else
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu;
  const uint32_t mantissa = h & 0x3ffu;
  if (exponent == 0) {  // zero or denormal: mantissa * 2^-24 is exact in binary32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return float_from_bits(bits_from_float(magnitude) | sign);
  }
  if (exponent == 31)
    return float_from_bits(sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0u));
  return float_from_bits(sign | ((exponent + 112) << 23) | (mantissa << 13));
#endif
}

// Rounds to nearest even; infinity beyond the range.
inline uint16_t float_to_half(float value) {
#if defined(EI_LEVEL) && EI_LEVEL >= 1
  return static_cast<uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT));
#else
  const uint32_t bits = bits_from_float(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude >= 0x7f800000) return sign | (magnitude > 0x7f800000 ? 0x7e00 : 0x7c00);
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520 and above round to infinity
  if (magnitude < 0x38800000) {                       // below 2^-14: subnormal steps of 2^-24
    // adding 0.5 puts the fp16 step at the last bit of the f32, which rounds to nearest even
    const float shifted = float_from_bits(magnitude) + 0.5f;
    return sign | (bits_from_float(shifted) - 0x3f000000);
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return sign | ((rounded - 0x38000000) >> 13);
#endif
}

inline float bf16_to_float(uint16_t b) { return float_from_bits(static_cast<uint32_t>(b) << 16); }

// Round to nearest even; NaN stays NaN.
inline uint16_t float_to_bf16(float f) {
  const uint32_t bits = bits_from_float(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace
}  // namespace ei

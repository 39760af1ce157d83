// fp16 as bits, in baseline code: the quantizer is compiled once, for every x86-64.
#pragma once
#include <cstdint>
#include <cstring>

namespace ei {
namespace {

inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Rounds to nearest even; infinity beyond the range.
inline uint16_t to_half(float value) {
  const uint32_t bits = float_to_bits(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude >= 0x7f800000) return sign | (magnitude > 0x7f800000 ? 0x7e00 : 0x7c00);
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520 and above round to infinity
  if (magnitude < 0x38800000) {                       // below 2^-14: subnormal steps of 2^-24
    // adding 0.5 puts the fp16 step at the last bit of the f32, which rounds to nearest even
    const float shifted = bits_to_float(magnitude) + 0.5f;
    return sign | (float_to_bits(shifted) - 0x3f000000);
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return sign | ((rounded - 0x38000000) >> 13);
}

inline float from_half(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fff) << 13;
  if (magnitude >= 0x0f800000) return bits_to_float(sign | magnitude | 0x7f800000);
  return bits_to_float(sign | float_to_bits(bits_to_float(magnitude) * 0x1p112f));
}

}  // namespace
}  // namespace ei

// Where codes lie in the lines of a packed block (docs/edge/architecture.md).
#pragma once
#include <cstdint>
#include <cstring>

#include "kernels/kernels.h"

namespace ei {
namespace {

// Puts the stored code of channel `channel` (0..15), value k into a block's lines.
inline void put_code(uint8_t* codes, int bits, int channel, int64_t k, int code) {
  const int64_t at = 4 * channel + k % 4;
  uint8_t& byte = codes[code_line(k, bits) * 64 + at];
  if (bits == 8) {
    byte = static_cast<uint8_t>(code);
    return;
  }
  byte = k % 8 < 4 ? (byte & 0xf0) | (code & 15) : (byte & 0x0f) | (code & 15) << 4;
  if (bits == 4) return;
  uint8_t& four = codes[above_line(k) * 64 + at];
  const int shift = static_cast<int>(k / 4 % 4 * 2);
  four = (four & ~(3 << shift)) | code >> 4 << shift;
}

// One code of 4 or 6 bits, or the 8-bit code 0, everywhere in `lines` lines.
inline void fill_codes(uint8_t* codes, int bits, int64_t lines, int code) {
  std::memset(codes, (code & 15) * 0x11, static_cast<size_t>(lines) * 64);
  for (int64_t line = 2; bits == 6 && line < lines; line += 3)
    std::memset(codes + line * 64, (code >> 4) * 0x55, 64);
}

}  // namespace
}  // namespace ei

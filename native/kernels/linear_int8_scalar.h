// The reference for linear_int8: portable C++, one fma a group.
#pragma once
#include <cmath>

#include "kernels/linear_common.h"

namespace ei::EI_NS {
namespace {

constexpr int kTileRows = 4;
constexpr int kTileBlocks = 1;

// The codes of a group as [channel][k]: once for all rows, and in the order of the sums.
template <int kBits>
inline void unpack(const uint8_t* group, int16_t (*w)[kActGroup]) {
  for (int s = 0; s < 8; ++s) {
    const uint8_t* line = group + code_line(4 * s, kBits) * 64;
    const uint8_t* above = group + above_line(4 * s) * 64;
    int16_t q[64];
    for (int i = 0; i < 64; ++i)
      q[i] = kBits == 8 ? static_cast<int8_t>(line[i]) : line[i] >> s % 2 * 4 & 15;
    if (kBits == 6)
      for (int i = 0; i < 64; ++i) q[i] |= (above[i] >> s % 4 * 2 & 3) << 4;
    for (int c = 0; c < kBlockN; ++c) std::memcpy(&w[c][4 * s], q + 4 * c, 4 * sizeof q[0]);
  }
}

// acc[i][c] = dot of row i (codes + i*k_stride, scales and sums + i*g_stride) and channel c.
template <int B, int R, int kBits, bool kMin>
void dot_tile(const Block& block, const int8_t* codes, int64_t k_stride, const float* scales,
              const int32_t* sums, int64_t g_stride, float (*acc)[B * kBlockN]) {
  static_assert(B == 1);
  for (int i = 0; i < R; ++i)
    for (int c = 0; c < kBlockN; ++c) acc[i][c] = 0.0f;
  for (int g = 0; g < block.groups; ++g) {
    int16_t w[kBlockN][kActGroup];
    unpack<kBits>(block.codes + g * code_lines(kActGroup, kBits) * 64, w);
    const int64_t at = static_cast<int64_t>(g >> block.shift) * kBlockN;
    for (int i = 0; i < R; ++i) {
      int16_t a[kActGroup];
      for (int k = 0; k < kActGroup; ++k) a[k] = codes[i * k_stride + g * kActGroup + k];
      const float s_a = scales[i * g_stride + g];
      const int32_t sum = sums[i * g_stride + g];
      for (int c = 0; c < kBlockN; ++c) {
        int32_t dot = kMin ? 0 : -code_offset(kBits) * sum;
        for (int k = 0; k < kActGroup; ++k) dot += int32_t{w[c][k]} * a[k];
        const float s_w = half_to_float(block.scales[at + c]);
        float v = std::fmaf(static_cast<float>(dot), s_w * s_a, acc[i][c]);
        if (kMin)
          v = std::fmaf(half_to_float(block.minimums[at + c]), s_a * static_cast<float>(sum), v);
        acc[i][c] = v;
      }
    }
  }
}

inline uint32_t max_abs_bits(const float* x) {
  uint32_t largest = 0;
  for (int i = 0; i < kActGroup; ++i) {
    const uint32_t bits = bits_from_float(x[i]) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

// codes = round to nearest even of x*inverse; returns their sum. |x*inverse| < 127.5.
inline int32_t quantize_group(const float* x, float inverse, int8_t* codes) {
  int32_t sum = 0;
  for (int i = 0; i < kActGroup; ++i) {
    const int32_t q = static_cast<int32_t>(std::lrint(x[i] * inverse));
    codes[i] = static_cast<int8_t>(q);
    sum += q;
  }
  return sum;
}

}  // namespace
}  // namespace ei::EI_NS

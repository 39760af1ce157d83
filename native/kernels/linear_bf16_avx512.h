// linear_bf16 with vdpbf16ps: registers of 16 channels, rows broadcast pair by pair.
#pragma once
#include "kernels/bf16_panel.h"

namespace ei::EI_NS {
namespace {

inline int64_t bf16_scratch_bytes(int k_pad) { return static_cast<int64_t>(k_pad) * kBlockN * 2; }

template <int R>
void tile_rows(const __m512i* panel, int steps, const uint16_t* x, int channels, const float* bias,
               bool accumulate, float* y, int64_t y_stride) {
  __m512 acc[R];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) acc[i] = _mm512_setzero_ps();
  for (int s = 0; s < steps; ++s) {
    for (int p = 0; p < 16; ++p) {
      const __m512bh b = (__m512bh)_mm512_load_si512(panel + s * 16 + p);
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) {
        int32_t pair;
        std::memcpy(&pair, x + (static_cast<int64_t>(s) * 16 + i) * 32 + 2 * p, sizeof pair);
        acc[i] = _mm512_dpbf16_ps(acc[i], (__m512bh)_mm512_set1_epi32(pair), b);
      }
    }
  }
  alignas(64) float out[kBlockN];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
    _mm512_store_ps(out, acc[i]);
    store_channels(out, channels, bias, accumulate, y + i * y_stride);
  }
}

inline void linear_bf16(const Matrix& w, const uint16_t* x, int rows, int block_begin,
                        int block_end, void* scratch, float* y, int64_t y_stride,
                        const Epilogue& e) {
  __m512i* panel = static_cast<__m512i*>(scratch);
  const int steps = (w.k + 31) / 32;
  for (int b = block_begin; b < block_end; ++b) {
    const int first = b * kBlockN;
    const int channels = w.n - first < kBlockN ? w.n - first : kBlockN;
    if (channels <= 0) return;
    const Block block = block_of(w, b);
    for_form(w, [&]<int kBits, bool kMin>() {
      for (int u = 0; u < steps * kUnitsPerGroup; ++u)
        dequantize_unit<kBits, kMin>(block, u, panel + 4 * u);
    });
    const float* bias = e.bias ? e.bias + first : nullptr;
    for (int r = 0; r < rows;) {
      const uint16_t* tile = x + (static_cast<int64_t>(r / 16) * steps * 16 + r % 16) * 32;
      float* out = y + r * y_stride + first;
      if (r % 16 == 0 && r + 16 <= rows) {
        tile_rows<16>(panel, steps, tile, channels, bias, e.accumulate, out, y_stride);
        r += 16;
      } else if (r + 4 <= rows) {
        tile_rows<4>(panel, steps, tile, channels, bias, e.accumulate, out, y_stride);
        r += 4;
      } else {
        tile_rows<1>(panel, steps, tile, channels, bias, e.accumulate, out, y_stride);
        r += 1;
      }
    }
  }
}

}  // namespace
}  // namespace ei::EI_NS

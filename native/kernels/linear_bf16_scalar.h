// The reference for linear_bf16: the same roundings, one product at a time.
#pragma once
#include "kernels/linear_common.h"

namespace ei::EI_NS {
namespace {

inline void round_to_bf16(const float* x, int count, uint16_t* out) {
  for (int i = 0; i < count; ++i) out[i] = float_to_bf16(x[i]);
}

inline int64_t bf16_scratch_bytes(int k_pad) {
  return static_cast<int64_t>(k_pad) * kBlockN * kPanelBlocks * 2;
}

// panel[k][c] of one block, as floats that bf16 can represent.
template <int kBits, bool kMin>
inline void dequantize_block(const Block& block, int k_pad, uint16_t* panel) {
  constexpr int kZero = kMin ? 0 : code_offset(kBits);
  for (int k = 0; k < k_pad; ++k) {
    const int64_t row = static_cast<int64_t>((k / kActGroup) >> block.shift) * kBlockN;
    for (int c = 0; c < kBlockN; ++c) {
      const int q = code_at<kBits>(block.codes, c, k) - kZero;
      float v = half_to_float(block.scales[row + c]) * static_cast<float>(q);
      if (kMin) v += half_to_float(block.minimums[row + c]);
      panel[static_cast<int64_t>(k) * kBlockN + c] = float_to_bf16(v);
    }
  }
}

inline void linear_bf16(const Matrix& w, const uint16_t* x, int rows, int block_begin,
                        int block_end, void* scratch, float* y, int64_t y_stride,
                        const Epilogue& e) {
  uint16_t* panel = static_cast<uint16_t*>(scratch);
  const int steps = (w.k + 31) / 32;
  for (int b = block_begin; b < block_end; ++b) {
    const int first = b * kBlockN;
    const int channels = w.n - first < kBlockN ? w.n - first : kBlockN;
    if (channels <= 0) return;
    for_form(w, [&]<int kBits, bool kMin>() {
      dequantize_block<kBits, kMin>(block_of(w, b), w.k_pad, panel);
    });
    for (int r = 0; r < rows; ++r) {
      float acc[kBlockN] = {};
      for (int k = 0; k < steps * 32; ++k) {
        const float a = bf16_to_float(
            x[(static_cast<int64_t>(r / 16 * steps + k / 32) * 16 + r % 16) * 32 + k % 32]);
        const uint16_t* line = panel + static_cast<int64_t>(k) * kBlockN;
        for (int c = 0; c < kBlockN; ++c) acc[c] += a * bf16_to_float(line[c]);
      }
      store_channels(acc, channels, e.bias ? e.bias + first : nullptr, e.accumulate,
                     y + r * y_stride + first);
    }
  }
}

}  // namespace
}  // namespace ei::EI_NS

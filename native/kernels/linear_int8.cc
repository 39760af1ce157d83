// Packed linears over int8 activations: the decode path at every level, and the prompt path where
// there is no bf16 matrix hardware. Integer dots are exact and each group adds with one fma, so
// every level computes the same bits; a row's result never depends on the rows beside it.
#include "kernels/kernels.h"
#include "kernels/linear_common.h"

#if EI_LEVEL >= 3
#include "kernels/linear_int8_avx512.h"
#elif EI_LEVEL >= 1
#include "kernels/linear_int8_avx2.h"
#else
#include "kernels/linear_int8_scalar.h"
#endif

namespace ei::EI_NS {
namespace {

// Where a tile's results go: the channels of its blocks, from the first of them on.
struct Output {
  float* y;
  int64_t stride;
  int channels;
  const float* bias;
  bool accumulate;
};

// Rows [r, r+R) times B blocks.
template <int B, int R, int kBits, bool kMin>
void row_tile(const Block& block, const QuantRows& x, int r, const Output& o) {
  alignas(64) float acc[R][B * kBlockN];
  float* y = o.y + r * o.stride;
  if (R > 1)  // the rows of y lie in pages of their own: fetch the lines while the sums run
    for (int i = 0; i < R; ++i)
      for (int c = 0; c < o.channels; c += kBlockN) __builtin_prefetch(y + i * o.stride + c, 1);
  const int64_t groups = x.k_pad / kActGroup;
  dot_tile<B, R, kBits, kMin>(block, x.codes + static_cast<int64_t>(r) * x.k_pad, x.k_pad,
                              x.scales + r * groups, x.sums + r * groups, groups, acc);
  for (int i = 0; i < R; ++i)
    store_channels(acc[i], o.channels, o.bias, o.accumulate, y + i * o.stride);
}

template <int B, int kBits, bool kMin>
void all_rows(Block block, const QuantRows& x, const Output& o) {
  int r = 0;
  for (; r + kTileRows <= x.rows; r += kTileRows) {
    row_tile<B, kTileRows, kBits, kMin>(block, x, r, o);
    block.cached = true;
  }
  for (; r + 4 <= x.rows; r += 4) row_tile<B, 4, kBits, kMin>(block, x, r, o);
  for (; r + 2 <= x.rows; r += 2) row_tile<B, 2, kBits, kMin>(block, x, r, o);
  if (r < x.rows) row_tile<B, 1, kBits, kMin>(block, x, r, o);
}

template <int kBits, bool kMin>
void linear_packed(const Matrix& w, const QuantRows& x, int block_begin, int block_end, float* y,
                   int64_t y_stride, const Epilogue& e) {
  for (int b = block_begin; b < block_end;) {
    const int first = b * kBlockN;
    // A single row waits for memory, which one stream of codes gets faster than two side by side.
    const int blocks = x.rows > 1 && b + kTileBlocks <= block_end ? kTileBlocks : 1;
    const int channels = w.n - first < blocks * kBlockN ? w.n - first : blocks * kBlockN;
    if (channels <= 0) return;
    const Output o{y + first, y_stride, channels, e.bias ? e.bias + first : nullptr, e.accumulate};
    if (blocks == 1)
      all_rows<1, kBits, kMin>(block_of(w, b), x, o);
    else
      all_rows<kTileBlocks, kBits, kMin>(block_of(w, b), x, o);
    b += blocks;
  }
}

void linear_int8(const Matrix& w, const QuantRows& x, int block_begin, int block_end, float* y,
                 int64_t y_stride, const Epilogue& e) {
  for_form(w, [&]<int kBits, bool kMin>() {
    linear_packed<kBits, kMin>(w, x, block_begin, block_end, y, y_stride, e);
  });
}

// Zero groups, and groups whose reciprocal would overflow (|x| below 4e-37), become scale 0. Inf
// and NaN become a NaN scale over zero codes, so that they reach the output instead of undefined
// casts.
void quantize_rows(const float* x, int64_t x_stride, int rows, int k, int k_pad, int8_t* codes,
                   float* scales, int32_t* sums) {
  const int groups = k_pad / kActGroup;
  for (int r = 0; r < rows; ++r) {
    for (int g = 0; g < groups; ++g) {
      const int left = k - g * kActGroup;
      const int count = left < 0 ? 0 : left < kActGroup ? left : kActGroup;
      const float* src = x + r * x_stride + g * kActGroup;
      float padded[kActGroup];
      if (count < kActGroup) {
        for (int i = 0; i < kActGroup; ++i) padded[i] = i < count ? src[i] : 0.0f;
        src = padded;
      }
      int8_t* out = codes + static_cast<int64_t>(r) * k_pad + g * kActGroup;
      const int64_t at = static_cast<int64_t>(r) * groups + g;
      const uint32_t largest = max_abs_bits(src);  // as integers: NaN > inf > any finite value
      const float amax = float_from_bits(largest);
      const float inverse = 127.0f / amax;
      if (largest >= 0x7f800000u || bits_from_float(inverse) >= 0x7f800000u) {
        std::memset(out, 0, kActGroup);
        scales[at] = largest >= 0x7f800000u ? float_from_bits(0x7fc00000u) : 0.0f;
        sums[at] = 0;
      } else {
        scales[at] = amax / 127.0f;
        sums[at] = quantize_group(src, inverse, out);
      }
    }
  }
}

// Channel c of a block: k values, times scale.
template <int kBits, bool kMin>
void dequantize_channel(const Block& block, int c, int k, float scale, float* out) {
  constexpr int kZero = kMin ? 0 : code_offset(kBits);
  for (int g = 0; g * kActGroup < k; ++g) {
    const int64_t at = static_cast<int64_t>(g >> block.shift) * kBlockN + c;
    const float s = half_to_float(block.scales[at]);
    const float m = kMin ? half_to_float(block.minimums[at]) : 0.0f;
    const uint8_t* codes = block.codes + g * code_lines(kActGroup, kBits) * 64;
    float v[kActGroup];
#pragma GCC unroll 32
    for (int j = 0; j < kActGroup; ++j)
      v[j] = (s * static_cast<float>(code_at<kBits>(codes, c, j) - kZero) + m) * scale;
    const int left = k - g * kActGroup;
    std::memcpy(out + g * kActGroup, v,
                sizeof(float) * static_cast<size_t>(left < kActGroup ? left : kActGroup));
  }
}

void dequantize_rows(const Matrix& w, const int32_t* ids, int count, float scale, float* y,
                     int64_t y_stride) {
  for (int i = 0; i < count; ++i) {
    const int64_t id = ids[i];
    float* out = y + i * y_stride;
    if (bits_of(w.type) != 0) {
      const Block block = block_of(w, static_cast<int>(id / kBlockN));
      for_form(w, [&]<int kBits, bool kMin>() {
        dequantize_channel<kBits, kMin>(block, static_cast<int>(id % kBlockN), w.k, scale, out);
      });
    } else if (w.type == WeightType::kF32) {
      const char* src = static_cast<const char*>(w.codes) + id * w.k * 4;
      for (int k = 0; k < w.k; ++k) {
        float v;
        std::memcpy(&v, src + static_cast<int64_t>(k) * 4, sizeof v);
        out[k] = v * scale;
      }
    } else {
      const char* src = static_cast<const char*>(w.codes) + id * w.k * 2;
      const bool half = w.type == WeightType::kF16;
      for (int k = 0; k < w.k; ++k) {
        uint16_t v;
        std::memcpy(&v, src + static_cast<int64_t>(k) * 2, sizeof v);
        out[k] = (half ? half_to_float(v) : bf16_to_float(v)) * scale;
      }
    }
  }
}

}  // namespace

void register_linear_int8(KernelTable& t) {
  t.quantize_rows = quantize_rows;
  t.linear_int8 = linear_int8;
  t.dequantize_rows = dequantize_rows;
}

}  // namespace ei::EI_NS

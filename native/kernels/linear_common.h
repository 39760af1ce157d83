// What the linear kernels share: addressing of a packed block, and the epilogue.
#pragma once
#include <cstdint>

#include "common/half.h"
#include "kernels/kernels.h"

namespace ei::EI_NS {
namespace {

// One block of 16 output channels of a packed matrix.
struct Block {
  const uint8_t* codes;
  const uint16_t* scales;    // [k_pad/group][16]
  const uint16_t* minimums;  // the same shape, or null
  int64_t code_stride;       // bytes from a block's codes to the next one's
  int64_t scale_stride;      // scales from a block to the next one
  int groups;                // activation groups (of 32) in k_pad
  int shift;                 // activation group g uses scales row g >> shift
  bool cached = false;       // other rows were here before: prefetching would only cost
};

inline Block block_of(const Matrix& w, int b) {
  const int64_t k = w.k_pad;
  const int64_t code_bytes = code_lines(k, bits_of(w.type)) * 64;
  const int64_t scale_row = k / w.group * kBlockN;
  return {static_cast<const uint8_t*>(w.codes) + b * code_bytes,
          w.scales + b * scale_row,
          w.minimums ? w.minimums + b * scale_row : nullptr,
          code_bytes,
          scale_row,
          w.k_pad / kActGroup,
          w.group == 128  ? 2
          : w.group == 64 ? 1
                          : 0};
}

// The stored code of channel c, value k of a block.
template <int kBits>
inline int code_at(const uint8_t* codes, int c, int k) {
  const int byte = 4 * c + k % 4;
  const uint8_t* line = codes + code_line(k, kBits) * 64;
  if (kBits == 8) return static_cast<int8_t>(line[byte]);
  const int low = k % 8 < 4 ? line[byte] & 15 : line[byte] >> 4;
  if (kBits == 4) return low;
  const int above = codes[above_line(k) * 64 + byte];
  return low | (above >> (k / 4 % 4 * 2) & 3) << 4;
}

// Calls f<bits, with a minimum>() for a packed matrix.
template <class F>
inline void for_form(const Matrix& w, const F& f) {
  if (w.type == WeightType::kQ4)
    w.minimums ? f.template operator()<4, true>() : f.template operator()<4, false>();
  else if (w.type == WeightType::kQ6)
    w.minimums ? f.template operator()<6, true>() : f.template operator()<6, false>();
  else
    w.minimums ? f.template operator()<8, true>() : f.template operator()<8, false>();
}

// A single row keeps up with memory, and wants its codes in the first level; with several rows the
// activations fill that, and it takes from the second what it needs in time.
constexpr int64_t kNearBytes = 5120;
constexpr int64_t kFarBytes = 16384;
constexpr int64_t kScaleBytes = 4096;

inline void prefetch_near(const void* p, int64_t ahead) {
  __builtin_prefetch(static_cast<const char*>(p) + ahead, 0, 3);
}
inline void prefetch_far(const void* p, int64_t ahead) {
  __builtin_prefetch(static_cast<const char*>(p) + ahead, 0, 2);
}

// The line that follows this one, at `offset` in its block's codes, when `blocks` blocks are read
// side by side: behind the end of the block its stream goes on `blocks` blocks further.
inline void prefetch_codes(const Block& block, const uint8_t* line, int64_t offset, int blocks) {
  if (blocks == 1) return prefetch_near(line, kNearBytes);
  const bool within = offset + kFarBytes < block.code_stride;
  prefetch_far(line, kFarBytes + (within ? 0 : (blocks - 1) * block.code_stride));
}

// The same for a row of scales. Those of a single row are foreseen by the hardware, and asking for
// them as well costs more than it brings.
inline void prefetch_scales(const uint16_t* row, int blocks) {
  if (blocks > 1) prefetch_far(row, kScaleBytes);
}

// y[0..count) = acc (+ bias) (+ y), in this order.
inline void store_channels(const float* acc, int count, const float* bias, bool accumulate,
                           float* y) {
  for (int c = 0; c < count; ++c) {
    float v = acc[c];
    if (bias) v += bias[c];
    if (accumulate) v += y[c];
    y[c] = v;
  }
}

}  // namespace
}  // namespace ei::EI_NS

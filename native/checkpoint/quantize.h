// The weight quantizer: float rows in, the packed layout of docs/edge/architecture.md out. Baseline
// instructions and a fixed order of sums: the same bits on every machine, for any thread count.
#pragma once
#include <cstdint>
#include <string>

namespace ei {

enum class SourceType : int32_t { kF32 = 0, kF16 = 1, kBf16 = 2 };

struct QuantizeJob {
  const void* data;    // row-major [n, k]
  int64_t row_stride;  // bytes from row to row
  SourceType type;
  int64_t n;
  int64_t k;
  int bits;                 // 4, 6 or 8
  int group;                // 32, 64 or 128
  bool minimum;             // 4 and 6 bits: s*q + m instead of s*(q-8) or s*(q-32)
  const float* importance;  // f32 [k], the weight of an input channel's squared error; null: ones
  uint8_t* codes;           // [ceil(n/16)][code_lines(k_pad, bits)][64]
  uint16_t* scales;         // fp16 [ceil(n/16)][k_pad/group][16]
  uint16_t* minimums;       // like scales; null without a minimum
  int threads;
};

// Throws Error("checkpoint_invalid") naming `name`, row (from first_row) and column for NaN,
// infinity, or values whose scale or minimum fp16 cannot hold.
void quantize(const QuantizeJob& job, const std::string& name, int64_t first_row);

}  // namespace ei

// Weights and values of prefill as pairs of bf16, one of an even token and one of the odd token
// after it: vdpbf16ps takes two tokens where fma takes one. Both rounded to 8 bits move an output
// by at most 2^-7 of the values' size, the mean of many tokens by far less: no more than the int8
// activations do that it becomes next. Scores, whose errors an exponential would magnify, stay f32.
#pragma once
#include "kernels/attention_vectors.h"
#include "kernels/bf16_pairs.h"

namespace ei::EI_NS {
namespace {

constexpr int kValueTokens = 2;  // tokens that one product takes

inline VF add_product(VF sum, float weights, VF values) {
  const __m512i w = _mm512_castps_si512(vset(weights)), x = _mm512_castps_si512(values);
  return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x);
}

// Weights of one block into the row of scores that they come from: half as wide, so that a block
// reaches only scores that were read.
inline void store_weights(float* scores, int block, const VF* e) {
  _mm512_store_si512(scores + block * kKvBlock / 2, bf16_bits(e[0], e[1]));
}

// Tokens [lo, hi) of a block to slices of [kSpanTokens/2][kStep] pairs; a token outside that shares
// a pair becomes 0, for its weight 0 would not hide a NaN.
template <KvType T>
void load_values(const KvElement<T>* values, int dim, int block, int lo, int hi, float* slices) {
  for (int token = lo & ~1; token < hi; token += 2) {
    const KvElement<T>* x = values + static_cast<int64_t>(token) * dim;
    float* y = slices + static_cast<int64_t>(block * kKvBlock + token) / 2 * kStep;
    const int even = token >= lo ? dim : 0, odd = token + 1 < hi ? dim : 0;
    for (int d = 0; d < dim; d += kStep, y += kSpanTokens / 2 * kStep)
      for (int j = 0; j < kStep; j += kW)
        _mm512_store_si512(y + j, pair_bf16(load_or_zero<T>(x + d + j, even - d - j),
                                            load_or_zero<T>(x + dim + d + j, odd - d - j)));
  }
}

}  // namespace
}  // namespace ei::EI_NS

// Weights and values of prefill as f32.
#pragma once
#include "kernels/attention_vectors.h"

namespace ei::EI_NS {
namespace {

constexpr int kValueTokens = 1;  // tokens that one product takes

inline VF add_product(VF sum, float weight, VF values) { return vfma(vset(weight), values, sum); }

// Weights of one block into the row of scores that they come from.
inline void store_weights(float* scores, int block, const VF* e) {
  for (int j = 0; j < kScoreVectors; ++j) vstore(scores + block * kKvBlock + j * kW, e[j]);
}

// Tokens [lo, hi) of a block to slices of [kSpanTokens][kStep]; the others may be anything and
// nothing reads their rows.
template <KvType T>
void load_values(const KvElement<T>* values, int dim, int block, int lo, int hi, float* slices) {
  for (int token = lo; token < hi; ++token) {
    const KvElement<T>* x = values + static_cast<int64_t>(token) * dim;
    float* y = slices + static_cast<int64_t>(block * kKvBlock + token) * kStep;
    for (int d = 0; d < dim; d += kStep, y += kSpanTokens * kStep)
      for (int j = 0; j < kStep; j += kW) vstore(y + j, load_or_zero<T>(x + d + j, dim - d - j));
  }
}

}  // namespace
}  // namespace ei::EI_NS

// What the attention kernels share: where a block's keys and values are, and the softmax of one
// vector of 32 scores.
#pragma once
#include "kernels/vecmath.h"

namespace ei::EI_NS {
namespace {

inline const uint16_t* block_keys(const KvLayer& kv, int32_t block, int kv_head) {
  return kv.base + static_cast<int64_t>(block) * kv.block_stride +
         static_cast<int64_t>(kv_head) * kv.head_dim * kKvBlock;
}
inline const uint16_t* block_values(const KvLayer& kv, int32_t block, int kv_head) {
  return block_keys(kv, block, kv.kv_heads + kv_head);
}

// What exponents are taken against: the running maximum, or 0 while no token has been seen, so that
// exp(-inf - base) is 0 and never NaN.
inline float softmax_base(float max) { return max == -INFINITY ? 0.0f : max; }

#if EI_LEVEL >= 1

constexpr int kScoreVectors = kKvBlock / kW;

inline __m128 softmax_base4(__m128 max) {
  return _mm_andnot_ps(_mm_cmpeq_ps(max, _mm_set1_ps(-INFINITY)), max);
}

// Softcap (0: none) with its result times `unit`, then -inf outside [lo, hi), over 32 scores in
// place. Returns the largest of each lane.
inline VF finish_scores(float* s, float softcap, float unit, int lo, int hi) {
  VF v[kScoreVectors];
  for (int j = 0; j < kScoreVectors; ++j) v[j] = vload(s + j * kW);
  if (softcap > 0.0f)
    for (int j = 0; j < kScoreVectors; ++j)
      v[j] = vset(softcap * unit) * vtanh(v[j] / vset(softcap));
  if (lo > 0 || hi < kKvBlock)
    for (int j = 0; j < kScoreVectors; ++j)
      v[j] = vselect(vlanes_between(lo - j * kW, hi - j * kW), v[j], vset(-INFINITY));
  VF top = v[0];
  for (int j = 1; j < kScoreVectors; ++j) top = vmax(top, v[j]);
  for (int j = 0; j < kScoreVectors; ++j) vstore(s + j * kW, v[j]);
  return top;
}

// The sum of kScoreVectors vectors, folded to 8 lanes; overwrites them.
inline __m256 sum_to_8(VF* e) {
  for (int half = kScoreVectors / 2; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) e[j] = e[j] + e[j + half];
  return half_sum(e[0]);
}

inline float fold8(__m256 sum) {
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

#endif

}  // namespace
}  // namespace ei::EI_NS

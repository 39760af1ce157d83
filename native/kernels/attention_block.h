// What the attention kernels share: where a block's keys and values are, and the softmax of one
// vector of 32 scores.
#pragma once
#include "kernels/vecmath.h"

namespace ei::EI_NS {
namespace {

template <KvType T>
inline KvElement<T>* block_keys(const KvLayer& kv, int32_t block, int kv_head) {
  return reinterpret_cast<KvElement<T>*>(kv.base + static_cast<int64_t>(block) * kv.block_stride) +
         static_cast<int64_t>(kv_head) * kv.head_dim * kKvBlock;
}
template <KvType T>
inline KvElement<T>* block_values(const KvLayer& kv, int32_t block, int kv_head) {
  return block_keys<T>(kv, block, kv.kv_heads + kv_head);
}

// Scales of 32 tokens; null for types without.
template <KvType T>
inline float* block_key_scales(const KvLayer& kv, int32_t block, int kv_head) {
  if constexpr (T != KvType::kI8) return nullptr;
  return reinterpret_cast<float*>(block_keys<T>(kv, block, 2 * kv.kv_heads)) + kv_head * kKvBlock;
}
template <KvType T>
inline float* block_value_scales(const KvLayer& kv, int32_t block, int kv_head) {
  return block_key_scales<T>(kv, block, kv.kv_heads + kv_head);
}

// What exponents are taken against: the running maximum, or 0 while no token has been seen, so that
// exp(-inf - base) is 0 and never NaN.
inline float softmax_base(float max) { return max == -INFINITY ? 0.0f : max; }

#if EI_LEVEL >= 1

constexpr int kScoreVectors = kKvBlock / kW;

inline __m128 softmax_base4(__m128 max) {
  return _mm_andnot_ps(_mm_cmpeq_ps(max, _mm_set1_ps(-INFINITY)), max);
}

// Times the tokens' key scales (null: none), softcap (0: none) with its result times `unit`, then
// -inf outside [lo, hi), over 32 scores in place. Returns the largest of each lane.
inline VF finish_scores(float* s, const float* key_scales, float softcap, float unit, int lo,
                        int hi) {
  VF v[kScoreVectors];
  for (int j = 0; j < kScoreVectors; ++j) v[j] = vload(s + j * kW);
  if (key_scales != nullptr)
    for (int j = 0; j < kScoreVectors; ++j) v[j] = v[j] * vload(key_scales + j * kW);
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

// Weights times the tokens' value scales (null: none). Weight 0 stays 0 whatever the scale of a
// token that nobody sees.
inline void scale_weights(VF* e, const float* value_scales) {
  if (value_scales == nullptr) return;
  for (int j = 0; j < kScoreVectors; ++j)
    e[j] = vselect(veq(e[j], vset(0.0f)), e[j], e[j] * vload(value_scales + j * kW));
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

// The plain reference: one head, one token, one dim after the other, libm.
#pragma once
#include "kernels/attention_block.h"

namespace ei::EI_NS {
namespace {

template <KvType T>
void split(const AttentionArgs& a, const float* q, int begin, int end, float* m, float* l,
           float* acc) {
  const int dim = a.kv->head_dim;
  for (int g = 0; g < a.group_heads; ++g) {
    const float* qg = q + static_cast<int64_t>(g) * dim;
    float* out = acc + static_cast<int64_t>(g) * dim;
    float max = -INFINITY, sum = 0.0f;
    for (int d = 0; d < dim; ++d) out[d] = 0.0f;
    for (int t = begin; t < end;) {
      const int block_start = t / kKvBlock * kKvBlock;
      const int lo = t - block_start;
      const int hi = end - block_start < kKvBlock ? end - block_start : kKvBlock;
      const int32_t block = a.blocks[block_start / kKvBlock];
      const KvElement<T>* keys = block_keys<T>(*a.kv, block, a.kv_head);
      const KvElement<T>* values = block_values<T>(*a.kv, block, a.kv_head);
      const float* key_scales = block_key_scales<T>(*a.kv, block, a.kv_head);
      const float* value_scales = block_value_scales<T>(*a.kv, block, a.kv_head);
      float s[kKvBlock] = {};
      for (int d = 0; d < dim; ++d)
        for (int i = 0; i < kKvBlock; ++i) s[i] += qg[d] * kv_to_float<T>(keys[d * kKvBlock + i]);
      float top = max;
      for (int i = lo; i < hi; ++i) {
        s[i] *= key_scales != nullptr ? a.scale * key_scales[i] : a.scale;
        if (a.softcap > 0.0f) s[i] = a.softcap * tanhf(s[i] / a.softcap);
        top = s[i] > top ? s[i] : top;
      }
      const float base = softmax_base(top);
      const float keep = expf(max - base);
      sum *= keep;
      for (int d = 0; d < dim; ++d) out[d] *= keep;
      for (int i = lo; i < hi; ++i) {
        const float w = expf(s[i] - base);
        sum += w;
        const float weight = value_scales != nullptr && w != 0.0f ? w * value_scales[i] : w;
        const KvElement<T>* v = values + static_cast<int64_t>(i) * dim;
        for (int d = 0; d < dim; ++d) out[d] += weight * kv_to_float<T>(v[d]);
      }
      max = top;
      t = block_start + hi;
    }
    m[g] = max;
    l[g] = sum;
  }
}

void attention_split(const AttentionArgs& a, const float* q, int begin, int end, float* m, float* l,
                     float* acc) {
  switch (a.kv->type) {
    case KvType::kF16:
      return split<KvType::kF16>(a, q, begin, end, m, l, acc);
    case KvType::kBf16:
      return split<KvType::kBf16>(a, q, begin, end, m, l, acc);
    case KvType::kI8:
      return split<KvType::kI8>(a, q, begin, end, m, l, acc);
  }
}

int64_t prefill_scratch_floats(int, int, int) { return 0; }

void attention_prefill(const AttentionArgs& a, const float* q, int64_t q_stride, int rows,
                       const int32_t* begin, const int32_t* end, float*, float* out,
                       int64_t out_stride) {
  const int dim = a.kv->head_dim;
  AttentionArgs one = a;
  one.group_heads = 1;
  for (int r = 0; r < rows; ++r)
    for (int g = 0; g < a.group_heads; ++g) {
      float m, l;
      float* y = out + r * out_stride + static_cast<int64_t>(g) * dim;
      attention_split(one, q + r * q_stride + static_cast<int64_t>(g) * dim, begin[r], end[r], &m,
                      &l, y);
      const float inv = l == 0.0f ? 0.0f : 1.0f / l;
      for (int d = 0; d < dim; ++d) y[d] *= inv;
    }
}

}  // namespace
}  // namespace ei::EI_NS

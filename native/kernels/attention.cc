// Attention over the paged pool: storing keys and values, decode (attention_split, attention_merge)
// and prefill (attention_prefill).
#if EI_LEVEL == 0
#include "kernels/attention_scalar.h"
#else
#include "kernels/attention_prefill.h"
#if EI_LEVEL < 4  // the levels above take all but prefill from avx512
#include "kernels/attention_split.h"
#endif
#endif

namespace ei::EI_NS {
#if EI_LEVEL < 4
namespace {

// n values to 16 bits.
template <KvType T>
inline void narrow(const float* x, int n, uint16_t* y) {
  int i = 0;
#if EI_LEVEL >= 1
  if constexpr (T == KvType::kF16)
    for (; i + kW <= n; i += kW) vstore_f16(y + i, vload(x + i));
#endif
  for (; i < n; ++i) y[i] = float_to_kv<T>(x[i]);
}

// n values of one head of one token, times `factor` where they become codes.
template <KvType T>
inline void convert(const float* x, int n, float factor, KvElement<T>* y) {
  if constexpr (T == KvType::kI8) {
    for (int i = 0; i < n; ++i)
      y[i] = factor == 0.0f ? 0 : static_cast<int8_t>(nearbyintf(x[i] * factor));
  } else {
    narrow<T>(x, n, y);
  }
}

// The scale of one head's codes, and what a value is multiplied with to become one. A head of zeros
// (or so small that the reciprocal overflows) has scale 0; infinity and NaN become a NaN scale over
// zero codes, so that they are loud and no cast is undefined.
inline float code_scale(const float* x, int dim, float* factor) {
  uint32_t largest = 0;  // as integers: NaN > inf > any finite value
  for (int d = 0; d < dim; ++d) {
    const uint32_t bits = bits_from_float(x[d]) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  *factor = 0.0f;
  if (largest >= 0x7f800000u) return float_from_bits(0x7fc00000u);
  const float inverse = 127.0f / float_from_bits(largest);
  if (bits_from_float(inverse) >= 0x7f800000u) return 0.0f;
  *factor = inverse;
  return float_from_bits(largest) / 127.0f;
}

// One head's keys, transposed: a line of the block takes one element of all tokens at once.
template <KvType T>
void store_keys(const float* k, int64_t stride, const float* factors, int tokens, int dim,
                KvElement<T>* y) {
  constexpr int kPart = 64;
  KvElement<T> part[kKvBlock][kPart];
  for (int d0 = 0; d0 < dim; d0 += kPart) {
    const int n = dim - d0 < kPart ? dim - d0 : kPart;
    for (int i = 0; i < tokens; ++i) convert<T>(k + i * stride + d0, n, factors[i], part[i]);
    for (int d = 0; d < n; ++d)
      for (int i = 0; i < tokens; ++i) y[(d0 + d) * kKvBlock + i] = part[i][d];
  }
}

template <KvType T>
void store(const KvLayer& kv, int head_begin, int head_end, int32_t block, int slot, int tokens,
           const float* k, int64_t k_stride, const float* v, int64_t v_stride) {
  const int dim = kv.head_dim;
  for (int h = head_begin; h < head_end; ++h, k += dim, v += dim) {
    float key_factors[kKvBlock] = {}, value_factors[kKvBlock] = {};
    if constexpr (T == KvType::kI8) {
      float* key_scales = block_key_scales<T>(kv, block, h) + slot;
      float* value_scales = block_value_scales<T>(kv, block, h) + slot;
      for (int i = 0; i < tokens; ++i) {
        key_scales[i] = code_scale(k + i * k_stride, dim, key_factors + i);
        value_scales[i] = code_scale(v + i * v_stride, dim, value_factors + i);
      }
    }
    store_keys<T>(k, k_stride, key_factors, tokens, dim, block_keys<T>(kv, block, h) + slot);
    KvElement<T>* values = block_values<T>(kv, block, h) + static_cast<int64_t>(slot) * dim;
    for (int i = 0; i < tokens; ++i)
      convert<T>(v + i * v_stride, dim, value_factors[i], values + static_cast<int64_t>(i) * dim);
  }
}

void kv_store(const KvLayer& kv, int head_begin, int head_end, int32_t block, int slot, int tokens,
              const float* k, int64_t k_stride, const float* v, int64_t v_stride) {
  k += static_cast<int64_t>(head_begin) * kv.head_dim;
  v += static_cast<int64_t>(head_begin) * kv.head_dim;
  switch (kv.type) {
    case KvType::kF16:
      return store<KvType::kF16>(kv, head_begin, head_end, block, slot, tokens, k, k_stride, v,
                                 v_stride);
    case KvType::kBf16:
      return store<KvType::kBf16>(kv, head_begin, head_end, block, slot, tokens, k, k_stride, v,
                                  v_stride);
    case KvType::kI8:
      return store<KvType::kI8>(kv, head_begin, head_end, block, slot, tokens, k, k_stride, v,
                                v_stride);
  }
}

void attention_merge(const float* m, const float* l, int64_t m_stride, const float* acc,
                     int64_t acc_stride, int splits, int head_dim, float* out) {
  float max = -INFINITY;
  for (int s = 0; s < splits; ++s) max = m[s * m_stride] > max ? m[s * m_stride] : max;
  const float base = softmax_base(max);
  float total = 0.0f;
  for (int s = 0; s < splits; ++s) {
    const float w = vfirst(vexp(vset(m[s * m_stride] - base)));
    total += w * l[s * m_stride];
  }
  const float inv = total == 0.0f ? 0.0f : 1.0f / total;  // a NaN total passes through
  for (int s = 0; s < splits; ++s) {
    const VF w = vset(vfirst(vexp(vset(m[s * m_stride] - base))) * inv);
    const float* x = acc + s * acc_stride;
    int d = 0;
    for (; d + kW <= head_dim; d += kW) {
      const VF v = w * vload(x + d);
      vstore(out + d, s == 0 ? v : vload(out + d) + v);
    }
    if (d < head_dim) {
      const int n = head_dim - d;
      const VF v = w * vload_n(x + d, n);
      vstore_n(out + d, s == 0 ? v : vload_n(out + d, n) + v, n);
    }
  }
  if (splits <= 0)
    for (int d = 0; d < head_dim; ++d) out[d] = 0.0f;
}

}  // namespace
#endif

void register_attention(KernelTable& t) {
#if EI_LEVEL < 4
  t.kv_store = kv_store;
  t.attention_split = attention_split;
  t.attention_merge = attention_merge;
#endif
#if EI_LEVEL == 4
  t.attention_prefill_bf16 = attention_prefill;  // scratch as for f32, of which it needs a part
#else
  t.attention_prefill = attention_prefill;
  t.attention_prefill_bf16 = nullptr;
  t.prefill_scratch_floats = prefill_scratch_floats;
#endif
}

}  // namespace ei::EI_NS

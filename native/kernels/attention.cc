// Attention over the paged pool: storing keys and values, decode (attention_split, attention_merge)
// and prefill (attention_prefill).
#if EI_LEVEL == 0
#include "kernels/attention_scalar.h"
#else
#include "kernels/attention_prefill.h"
#if EI_LEVEL < 5  // amx takes all but prefill from avx512
#include "kernels/attention_split.h"
#endif
#endif

namespace ei::EI_NS {
#if EI_LEVEL < 5
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

template <KvType T>
void store(const KvLayer& kv, int32_t block, int slot, const float* k, const float* v) {
  uint16_t* base = kv.base + static_cast<int64_t>(block) * kv.block_stride;
  const int dim = kv.head_dim;
  for (int h = 0; h < kv.kv_heads; ++h) {
    uint16_t* keys = base + static_cast<int64_t>(h) * dim * kKvBlock + slot;
    const float* kh = k + static_cast<int64_t>(h) * dim;
    for (int d = 0; d < dim; d += 64) {
      uint16_t part[64];
      const int n = dim - d < 64 ? dim - d : 64;
      narrow<T>(kh + d, n, part);
      for (int i = 0; i < n; ++i) keys[static_cast<int64_t>(d + i) * kKvBlock] = part[i];
    }
    narrow<T>(v + static_cast<int64_t>(h) * dim, dim,
              base + (static_cast<int64_t>(kv.kv_heads + h) * kKvBlock + slot) * dim);
  }
}

void kv_store(const KvLayer& kv, int32_t block, int slot, const float* k, const float* v) {
  if (kv.type == KvType::kF16) {
    store<KvType::kF16>(kv, block, slot, k, v);
  } else {
    store<KvType::kBf16>(kv, block, slot, k, v);
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
#if EI_LEVEL < 5
  t.kv_store = kv_store;
  t.attention_split = attention_split;
  t.attention_merge = attention_merge;
#endif
  t.attention_prefill = attention_prefill;
  t.prefill_scratch_floats = prefill_scratch_floats;
}

}  // namespace ei::EI_NS

// Attention over the paged pool: storing keys and values, decode (attention_split, attention_merge)
// and prefill (attention_prefill).
#include "kernels/attention_prefill.h"

namespace ei::EI_NS {
namespace {

template <KvType T>
void store(const KvLayer& kv, int32_t block, int slot, const float* k, const float* v) {
  uint16_t* base = kv.base + static_cast<int64_t>(block) * kv.block_stride;
  const int dim = kv.head_dim;
  for (int h = 0; h < kv.kv_heads; ++h) {
    uint16_t* keys = base + static_cast<int64_t>(h) * dim * kKvBlock + slot;
    uint16_t* values = base + (static_cast<int64_t>(kv.kv_heads + h) * kKvBlock + slot) * dim;
    const float* kh = k + static_cast<int64_t>(h) * dim;
    const float* vh = v + static_cast<int64_t>(h) * dim;
    for (int d = 0; d < dim; ++d) keys[static_cast<int64_t>(d) * kKvBlock] = float_to_kv<T>(kh[d]);
    int d = 0;
#if EI_LEVEL >= 1
    if constexpr (T == KvType::kF16)
      for (; d + kW <= dim; d += kW) vstore_f16(values + d, vload(vh + d));
#endif
    for (; d < dim; ++d) values[d] = float_to_kv<T>(vh[d]);
  }
}

void kv_store(const KvLayer& kv, int32_t block, int slot, const float* k, const float* v) {
  if (kv.type == KvType::kF16) {
    store<KvType::kF16>(kv, block, slot, k, v);
  } else {
    store<KvType::kBf16>(kv, block, slot, k, v);
  }
}

}  // namespace

void register_attention(KernelTable& t) {
  t.kv_store = kv_store;
  t.attention_split = attention_split;
  t.attention_merge = attention_merge;
  t.attention_prefill = attention_prefill;
  t.prefill_scratch_floats = prefill_scratch_floats;
}

}  // namespace ei::EI_NS

// Prefill: many query rows of one sequence against its blocks, walked in order with an online
// softmax. For each block: all scores, then all softmax steps, then all values, so that keys and
// values have the first-level cache in turn. Every query vector (one head of one row) keeps its own
// maximum, sum and accumulator, and sees the same operations in the same order whatever else is in
// the call. (Exception: a NaN or infinite value that one row sees makes 0*NaN in neighbours that do
// not; such a sequence is lost anyway.) How tiles of vectors are multiplied is the level's affair.
#pragma once
#include "kernels/attention_vectors.h"

#if EI_LEVEL >= 5
#include "kernels/attention_tiles_amx.h"
#else
#include "kernels/attention_tiles_fma.h"
#endif

namespace ei::EI_NS {
namespace {

// Query vectors as the tiles take them come times scale*log2(e), so that weights are powers of 2;
// with a softcap, whose tanh needs natural units, times scale alone.
constexpr float kLog2E = 1.44269504f;

int64_t prefill_scratch_floats(int rows, int group_heads, int head_dim) {
  Scratch s{nullptr};
  const Vectors v = place_vectors(rows, group_heads, head_dim, s);
  place_tiles(v, s);
  return s.used + 16;  // slack to align the start
}

// Scores become weights 2^(score - maximum) (times the value scales, which the sums leave out),
// keep what is left of earlier sums. A vector that sees nothing gets weights 0 and keep 1.
void softmax_step(const Vectors& v, const Tiles& tiles, const float* key_scales,
                  const float* value_scales, float softcap) {
  for (int i = 0; i < v.count; i += 4) {  // four at a time share the reduction of their maxima
    VF top[4];
    for (int r = 0; r < 4; ++r)
      top[r] = finish_scores(v.scores + static_cast<int64_t>(i + r) * kKvBlock, key_scales, softcap,
                             kLog2E, v.lo[i + r], v.hi[i + r]);
    const __m128 before = _mm_load_ps(v.max + i);
    const __m128 after = _mm_max_ps(vreduce_max4(top), before);
    _mm_store_ps(v.max + i, after);
    _mm_store_ps(v.keep + i, _mm_sub_ps(before, softmax_base4(after)));
  }
  for (int i = 0; i < v.count; i += kW) vstore(v.keep + i, vexp2_down(vload(v.keep + i)));
  for (int i = 0; i < v.count; ++i) {
    const float* s = v.scores + static_cast<int64_t>(i) * kKvBlock;
    const VF base = vset(softmax_base(v.max[i]));
    VF e[kScoreVectors], scaled[kScoreVectors];
    for (int j = 0; j < kScoreVectors; ++j) scaled[j] = e[j] = vexp2_down(vload(s + j * kW) - base);
    scale_weights(scaled, value_scales);
    store_weights(v, tiles, i, scaled);
    float* sum = v.sum + static_cast<int64_t>(i) * 8;
    _mm256_store_ps(sum,
                    _mm256_fmadd_ps(_mm256_load_ps(sum), _mm256_set1_ps(v.keep[i]), sum_to_8(e)));
  }
}

void divide_by_sums(const Vectors& v, const Tiles& tiles, float* out, int64_t out_stride) {
  for (int i = 0; i < v.count; ++i) {
    const float total = fold8(_mm256_load_ps(v.sum + static_cast<int64_t>(i) * 8));
    const VF inv = vset(total == 0.0f ? 0.0f : 1.0f / total);
    float* y =
        out + i / v.group_heads * out_stride + static_cast<int64_t>(i % v.group_heads) * v.dim;
    // + 0 makes one zero of -0 and 0, the only trace that tokens of weight 0 could leave
    int d = 0;
    for (; d + kW <= v.dim; d += kW)
      vstore(y + d, vload(accumulator(v, tiles, i, d)) * inv + vset(0.0f));
    if (d < v.dim)
      vstore_n(y + d, vload(accumulator(v, tiles, i, d)) * inv + vset(0.0f), v.dim - d);
  }
}

// Fills v.lo and v.hi for the block that starts at token `start`; *lo, *hi: what any row sees of
// it.
bool see_block(const Vectors& v, int rows, const int32_t* begin, const int32_t* end, int start,
               int* lo, int* hi) {
  *lo = kKvBlock;
  *hi = 0;
  for (int r = 0, i = 0; r < rows; ++r) {
    const int from = clamp(begin[r] - start, 0, kKvBlock), to = clamp(end[r] - start, 0, kKvBlock);
    for (int g = 0; g < v.group_heads; ++g, ++i) {
      v.lo[i] = from;
      v.hi[i] = to;
    }
    if (from >= to) continue;
    *lo = from < *lo ? from : *lo;
    *hi = to > *hi ? to : *hi;
  }
  return *lo < *hi;
}

template <KvType T>
void prefill(const AttentionArgs& a, const Vectors& v, const Tiles& tiles, int rows,
             const int32_t* begin, const int32_t* end) {
  int first = INT32_MAX, last = 0;
  for (int r = 0; r < rows; ++r) {
    if (begin[r] >= end[r]) continue;
    first = begin[r] < first ? begin[r] : first;
    last = end[r] > last ? end[r] : last;
  }
  for (int b = first / kKvBlock; b * kKvBlock < last; ++b) {
    int lo, hi;
    if (!see_block(v, rows, begin, end, b * kKvBlock, &lo, &hi)) continue;
    load_block<T>(v, tiles, block_keys<T>(*a.kv, a.blocks[b], a.kv_head),
                  block_values<T>(*a.kv, a.blocks[b], a.kv_head), lo, hi);
    score_block<T>(v, tiles);
    softmax_step(v, tiles, block_key_scales<T>(*a.kv, a.blocks[b], a.kv_head),
                 block_value_scales<T>(*a.kv, a.blocks[b], a.kv_head), a.softcap);
    value_block<T>(v, tiles);
  }
}

void attention_prefill(const AttentionArgs& a, const float* q, int64_t q_stride, int rows,
                       const int32_t* begin, const int32_t* end, float* scratch, float* out,
                       int64_t out_stride) {
  const auto address = reinterpret_cast<uintptr_t>(scratch);
  Scratch s{reinterpret_cast<float*>((address + 63) & ~static_cast<uintptr_t>(63))};
  const Vectors v = place_vectors(rows, a.group_heads, a.kv->head_dim, s);
  const Tiles tiles = place_tiles(v, s);
  memset(v.sum, 0, static_cast<size_t>(v.padded) * 8 * sizeof(float));
  for (int i = 0; i < v.padded; ++i) {
    v.max[i] = -INFINITY;
    v.lo[i] = v.hi[i] = 0;
  }
  start_tiles(v, tiles, q, q_stride, a.softcap > 0.0f ? a.scale : a.scale * kLog2E);
  switch (a.kv->type) {
    case KvType::kF16:
      prefill<KvType::kF16>(a, v, tiles, rows, begin, end);
      break;
    case KvType::kBf16:
      prefill<KvType::kBf16>(a, v, tiles, rows, begin, end);
      break;
    case KvType::kI8:
      prefill<KvType::kI8>(a, v, tiles, rows, begin, end);
      break;
  }
  end_tiles();
  divide_by_sums(v, tiles, out, out_stride);
}

}  // namespace
}  // namespace ei::EI_NS

// Prefill: many query rows of one sequence against its blocks, walked span by span in order with an
// online softmax. For each span: all scores (block by block), then all softmax steps, then all
// values, so that keys and values have the caches in turn. Every query vector (one head of one row)
// keeps its own maximum, sum and accumulator, and sees the same operations in the same order
// whatever else is in the call. (Exception: a NaN or infinite value that one row sees makes 0*NaN
// in neighbours that do not; such a sequence is lost anyway.) How tiles of vectors are multiplied
// is the level's affair.
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

[[maybe_unused]] int64_t prefill_scratch_floats(int rows, int group_heads, int head_dim) {
  Scratch s{nullptr};
  const Vectors v = place_vectors(rows, group_heads, head_dim, s);
  place_tiles(v, s);
  return s.used + 16;  // slack to align the start
}

struct BlockScales {
  const float *keys, *values;  // of 32 tokens; null: none
};

// Scores of blocks [low, high] of the span become weights 2^(score - maximum) (times the value
// scales, which the sums leave out), keep what is left of earlier sums. A vector that sees nothing
// gets weights 0 and keep 1.
void softmax_step(const Vectors& v, const Tiles& tiles, const BlockScales* scales, int low,
                  int high, float softcap) {
  for (int i = 0; i < v.count; i += 4) {  // four at a time share the reduction of their maxima
    VF top[4];
    for (int r = 0; r < 4; ++r) {
      float* s = v.scores + static_cast<int64_t>(i + r) * kSpanTokens;
      for (int b = low; b <= high; ++b) {
        const VF x = finish_scores(s + b * kKvBlock, scales[b].keys, softcap, kLog2E,
                                   v.lo[i + r] - b * kKvBlock, v.hi[i + r] - b * kKvBlock);
        top[r] = b == low ? x : vmax(top[r], x);
      }
    }
    const __m128 before = _mm_load_ps(v.max + i);
    const __m128 after = _mm_max_ps(vreduce_max4(top), before);
    _mm_store_ps(v.max + i, after);
    _mm_store_ps(v.keep + i, _mm_sub_ps(before, softmax_base4(after)));
  }
  for (int i = 0; i < v.count; i += kW) vstore(v.keep + i, vexp2_down(vload(v.keep + i)));
  for (int i = 0; i < v.count; ++i) {
    const float* s = v.scores + static_cast<int64_t>(i) * kSpanTokens;
    const VF base = vset(softmax_base(v.max[i]));
    float* sum = v.sum + static_cast<int64_t>(i) * 8;
    __m256 total = _mm256_load_ps(sum), keep = _mm256_set1_ps(v.keep[i]);
    for (int b = low; b <= high; ++b) {
      VF e[kScoreVectors], scaled[kScoreVectors];
      for (int j = 0; j < kScoreVectors; ++j)
        scaled[j] = e[j] = vexp2_down(vload(s + b * kKvBlock + j * kW) - base);
      scale_weights(scaled, scales[b].values);
      store_weights(v, tiles, i, b, scaled);
      total = _mm256_fmadd_ps(total, keep, sum_to_8(e));
      keep = _mm256_set1_ps(1.0f);
    }
    _mm256_store_ps(sum, total);
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

// Fills v.lo and v.hi for the span that starts at token `start`; *lo, *hi: what any row sees of
// it.
bool see_span(const Vectors& v, int rows, const int32_t* begin, const int32_t* end, int start,
              int* lo, int* hi) {
  *lo = kSpanTokens;
  *hi = 0;
  for (int r = 0, i = 0; r < rows; ++r) {
    const int from = clamp(begin[r] - start, 0, kSpanTokens);
    const int to = clamp(end[r] - start, 0, kSpanTokens);
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

// Whether any vector sees a token of block b of the span.
bool block_seen(const Vectors& v, int b) {
  for (int i = 0; i < v.count; ++i)
    if (v.lo[i] < v.hi[i] && v.lo[i] < (b + 1) * kKvBlock && v.hi[i] > b * kKvBlock) return true;
  return false;
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
  for (int start = first / kSpanTokens * kSpanTokens; start < last; start += kSpanTokens) {
    int lo, hi;
    if (!see_span(v, rows, begin, end, start, &lo, &hi)) continue;
    const int32_t* blocks = a.blocks + start / kKvBlock;
    const int low = lo / kKvBlock, high = (hi - 1) / kKvBlock;
    bool seen[kSpan];
    BlockScales scales[kSpan] = {};
    for (int b = low; b <= high; ++b) {
      seen[b] = block_seen(v, b);
      if (!seen[b]) continue;
      load_keys<T>(v, tiles, block_keys<T>(*a.kv, blocks[b], a.kv_head));
      const int next = start + (b + 1) * kKvBlock < last ? b + 1 : b;
      score_block<T>(v, tiles, b, block_keys<T>(*a.kv, blocks[next], a.kv_head),
                     block_values<T>(*a.kv, blocks[b], a.kv_head));
      scales[b] = {block_key_scales<T>(*a.kv, blocks[b], a.kv_head),
                   block_value_scales<T>(*a.kv, blocks[b], a.kv_head)};
    }
    softmax_step(v, tiles, scales, low, high, a.softcap);
    for (int b = low; b <= high; ++b) {
      if (seen[b])
        load_values<T>(v, tiles, b, block_values<T>(*a.kv, blocks[b], a.kv_head),
                       clamp(lo - b * kKvBlock, 0, kKvBlock),
                       clamp(hi - b * kKvBlock, 0, kKvBlock));
      else
        clear_values(tiles, b);
    }
    value_span<T>(v, tiles);
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

// Attention over the paged pool: decode rows split long contexts over the team, prefill rows go
// tile by tile.
#include <algorithm>

#include "program/worker.h"

namespace ei {
namespace {

struct Range {
  int begin, end;
};

Range visible(const Op& op, const StepInput& in, int row) {
  const int end = op.full ? in.groups[op.group].lengths[in.sequence[row]] : in.visible_end[row];
  const int begin = op.window > 0 ? std::max(0, in.cache_index[row] + 1 - op.window) : 0;
  return {std::min(begin, end), end};
}

// The splits that a range touches, at least one.
Range splits_of(const Range& v) {
  const int first = v.begin / kAttentionSplit;
  return {first, std::max(first + 1, (v.end + kAttentionSplit - 1) / kAttentionSplit)};
}

}  // namespace

void Program::run_attention(const Op& op, size_t index, Worker& w) {
  if (in_->decode_rows > 0) attention_decode(op, w);
  if (!tiles_.empty()) attention_prefill(op, index, w);
}

void Program::attention_decode(const Op& op, Worker& w) {
  const KvLayer layer = pool_->layer(op.group, op.layer);
  const StepInput::GroupTable& g = in_->groups[op.group];
  const int group_heads = op.heads / op.kv_heads, dim = op.head_dim;
  const int64_t floats = static_cast<int64_t>(group_heads) * (dim + 2);  // of one item: m, l, acc

  int64_t tokens = 0;  // of all items
  for (int r = 0; r < in_->decode_rows; ++r) {
    const Range v = visible(op, *in_, r);
    tokens += int64_t{std::max(1, v.end - v.begin)} * op.kv_heads;
  }
  // Items are (row, kv head, split), the splits of one head side by side; a thread takes
  // neighbours, as in the row operations before, so that it finds the keys it has stored in its own
  // cache. Each waits until the thread's next one is known, whose first block it asks for at its
  // end.
  AttentionArgs args{};
  int row = -1, begin = 0, end = 0;  // of the waiting one; row -1: none
  float* results = nullptr;
  const auto run_waiting = [&] {
    if (row < 0) return;
    kernels_.attention_split(args, at(op.in, row) + args.kv_head * group_heads * dim, begin, end,
                             results, results + group_heads, results + 2 * group_heads);
  };
  int64_t item = 0, before = 0;  // tokens of the items before
  for (int r = 0; r < in_->decode_rows; ++r) {
    const Range v = visible(op, *in_, r);
    const auto [s0, s1] = splits_of(v);
    const int32_t* blocks = g.blocks + static_cast<int64_t>(in_->sequence[r]) * g.stride;
    for (int h = 0; h < op.kv_heads; ++h)
      for (int s = s0; s < s1; ++s, ++item) {
        const int first = std::max(v.begin, s * kAttentionSplit);
        const int last = std::min(v.end, (s + 1) * kAttentionSplit);
        const int64_t middle = 2 * before + std::max(1, last - first);
        before += std::max(1, last - first);
        if (middle * w.threads / (2 * tokens) != w.thread) continue;
        if (first < v.end) {
          args.next_block = blocks[first / kKvBlock];
          args.next_kv_head = h;
        }
        run_waiting();
        args = {&layer, blocks, h, group_heads, op.factor, op.softcap};
        row = r, begin = first, end = last;
        results = partials_.data() + item * floats;
      }
  }
  run_waiting();
  w.wait();
  item = 0;
  const int heads = in_->decode_rows * op.heads;
  int head = 0;
  for (int r = 0; r < in_->decode_rows; ++r) {
    const Range v = visible(op, *in_, r);
    const auto [s0, s1] = splits_of(v);
    for (int h = 0; h < op.kv_heads; ++h, item += s1 - s0)
      for (int q = 0; q < group_heads; ++q, ++head) {
        if (head < w.begin(heads) || head >= w.end(heads)) continue;
        const float* m = partials_.data() + item * floats;
        kernels_.attention_merge(m + q, m + group_heads + q, floats, m + 2 * group_heads + q * dim,
                                 floats, s1 - s0, dim, at(op.out, r) + (h * group_heads + q) * dim);
      }
  }
}

void Program::attention_prefill(const Op& op, size_t index, Worker& w) {
  const KvLayer layer = pool_->layer(op.group, op.layer);
  const StepInput::GroupTable& g = in_->groups[op.group];
  const int group_heads = op.heads / op.kv_heads, dim = op.head_dim;
  const int items = static_cast<int>(tiles_.size()) * op.kv_heads;
  int32_t begin[kMaxTileRows], end[kMaxTileRows];
  float* scratch = reinterpret_cast<float*>(w.scratch);
  const auto attend = packed_ && kernels_.attention_prefill_bf16 != nullptr
                          ? kernels_.attention_prefill_bf16
                          : kernels_.attention_prefill;
  for (;;) {
    const uint64_t claimed = claims(index).of(0).fetch_add(1, std::memory_order_relaxed);
    if (claimed >= static_cast<uint64_t>(items)) break;
    const int item = items - 1 - static_cast<int>(claimed);  // late rows see most: begin with them
    const Tile& tile = tiles_[item / op.kv_heads];
    const int h = item % op.kv_heads;
    for (int i = 0; i < tile.rows; ++i) {
      const Range v = visible(op, *in_, tile.row + i);
      begin[i] = v.begin;
      end[i] = v.end;
    }
    const AttentionArgs a{
        &layer,    g.blocks + static_cast<int64_t>(in_->sequence[tile.row]) * g.stride,
        h,         group_heads,
        op.factor, op.softcap};
    attend(a, at(op.in, tile.row) + h * group_heads * dim, spec_.buffers[op.in.buffer].stride,
           tile.rows, begin, end, scratch, at(op.out, tile.row) + h * group_heads * dim,
           spec_.buffers[op.out.buffer].stride);
  }
}

}  // namespace ei

// Operations that work on one row at a time, and how threads share them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "program/worker.h"

namespace ei {
namespace {

bool is_row_op(OpKind k) {
  switch (k) {
    case OpKind::kLinear:
    case OpKind::kAttention:
    case OpKind::kGather:
      return false;
    default:
      return true;
  }
}

}  // namespace

int Program::heads_of(const Op& op) const {
  switch (op.kind) {
    case OpKind::kRmsNorm:
    case OpKind::kRope:
    case OpKind::kHeadGate:
      return op.heads;
    case OpKind::kKvStore:
      return pool_->groups()[op.group].kv_heads;
    default:
      return 1;
  }
}

// Whether two row operations meet in memory other than by the same columns of the same buffer.
bool Program::share_data(const Op& a, const Op& b) const {
  const auto bytes_of = [&](const Ref& r) {
    const Buffer& p = spec_.buffers[r.buffer];
    const int64_t rows = p.space == Space::kRows ? spec_.max_rows : spec_.max_outputs;
    return std::pair(p.offset, p.offset + rows * p.stride * 4);
  };
  for (const Ref* x : {&a.in, &a.in2, &a.out})
    for (const Ref* y : {&b.in, &b.in2, &b.out}) {
      if (x->buffer < 0 || y->buffer < 0) continue;
      if (x->buffer == y->buffer) {
        const bool apart = x->column + x->width <= y->column || y->column + y->width <= x->column;
        const bool same = x->column == y->column && x->width == y->width;
        if (!apart && !(same && heads_of(a) == heads_of(b))) return true;
      } else {
        const auto [p, p_end] = bytes_of(*x);
        const auto [q, q_end] = bytes_of(*y);
        if (p < q_end && q < p_end) return true;
      }
    }
  return false;
}

// Row operations split rows in one way, so a run of them over one space needs no barrier between.
// Where there are fewer rows than threads, rows are divided by heads: in runs whose operations
// divide what they share in one way.
void Program::plan_row_ops() {
  const std::vector<Op>& ops = spec_.ops;
  barrier_before_.resize(ops.size());
  heads_apart_.assign(ops.size(), 1);
  bool met = false;  // since each thread filled in the rows of the RoPE tables that it reads
  for (size_t i = 0; i < ops.size();) {
    size_t end = i + 1;
    while (end < ops.size() && is_row_op(ops[i].kind) && is_row_op(ops[end].kind) &&
           space_of(ops[i]) == space_of(ops[end]))
      ++end;
    barrier_before_[i] = met = i > 0;
    bool apart = met;
    for (size_t a = i; a < end; ++a)
      for (size_t b = a + 1; b < end; ++b) apart = apart && !share_data(ops[a], ops[b]);
    if (apart)
      for (size_t a = i; a < end; ++a) heads_apart_[a] = heads_of(ops[a]);
    i = end;
  }
}

void Program::fill_rope_tables(Worker& w) {
  // Angles in f32 as the reference implementations compute them; each thread fills the rows that
  // its own row operations will read.
  for (size_t t = 0; t < spec_.tables.size(); ++t) {
    const RopeTable& table = spec_.tables[t];
    const size_t half = table.inverse_frequency.size();
    for (int r = w.begin(in_->rows); r < w.end(in_->rows); ++r) {
      float* c = cos_[t].data() + r * half;
      float* s = sin_[t].data() + r * half;
      for (size_t i = 0; i < half; ++i) {
        const int32_t position =
            in_->positions[static_cast<int64_t>(table.axis[i]) * in_->rows + r];
        const float angle = static_cast<float>(position) * table.inverse_frequency[i];
        c[i] = static_cast<float>(std::cos(static_cast<double>(angle))) * table.attention_factor;
        s[i] = static_cast<float>(std::sin(static_cast<double>(angle))) * table.attention_factor;
      }
    }
  }
}

// Neighbouring tokens of a block go together, so that each line of the block is written once.
void Program::store_rows(const Op& op, int first, int last, Heads heads) {
  const StepInput::GroupTable& g = in_->groups[op.group];
  const KvLayer layer = pool_->layer(op.group, op.layer);
  for (int r = first, n; r < last; r += n) {
    const int32_t index = in_->cache_index[r], slot = index % kKvBlock;
    n = 1;
    while (r + n < last && slot + n < kKvBlock && in_->sequence[r + n] == in_->sequence[r] &&
           in_->cache_index[r + n] == index + n)
      ++n;
    const int32_t block =
        g.blocks[static_cast<int64_t>(in_->sequence[r]) * g.stride + index / kKvBlock];
    kernels_.kv_store(layer, heads.begin, heads.end, block, slot, n, at(op.in, r),
                      spec_.buffers[op.in.buffer].stride, at(op.in2, r),
                      spec_.buffers[op.in2.buffer].stride);
  }
}

void Program::run_rows(const Op& op, size_t index, Worker& w) {
  const int rows = rows_in(space_of(op)), all = heads_of(op);
  const auto run = [&](int first, int last, Heads heads) {
    if (op.kind == OpKind::kKvStore) return store_rows(op, first, last, heads);
    for (int r = first; r < last; ++r) run_row(op, r, heads, at(op.out, r));
  };
  const int apart = rows < w.threads ? heads_apart_[index] : 1;
  if (apart == 1) return run(w.begin(rows), w.end(rows), {0, all});
  for (int at = w.begin(rows * apart), end = w.end(rows * apart); at < end;) {
    const int row = at / apart, head = at % apart;
    const int n = std::min(apart - head, end - at);
    run(row, row + 1, {head, head + n});
    at += n;
  }
}

void Program::run_row(const Op& op, int row, Heads heads, float* out) {
  const KernelTable& k = kernels_;
  const float* x = op.in.buffer < 0 ? nullptr : at(op.in, row);
  switch (op.kind) {
    case OpKind::kEmbed:
      if (embed_index_[row] >= 0)
        std::memcpy(out, in_->embeds + static_cast<int64_t>(embed_index_[row]) * spec_.embed_width,
                    sizeof(float) * spec_.embed_width);
      else
        k.dequantize_rows(op.weights[0].matrix, in_->tokens + row, 1, op.factor, out, 0);
      break;
    case OpKind::kRmsNorm:
      for (int h = heads.begin; h < heads.end; ++h) {
        float* y = out + h * op.head_dim;
        k.rms_norm(x + h * op.head_dim, op.weight.data, op.weight_offset, op.eps, op.head_dim,
                   op.accumulate ? y : nullptr, y);
      }
      break;
    case OpKind::kLayerNorm:
      k.layer_norm(x, op.weight.data, op.bias.data, op.eps, op.in.width, out);
      break;
    case OpKind::kRope: {
      const int half = static_cast<int>(spec_.tables[op.table].inverse_frequency.size());
      k.rope(out + heads.begin * op.head_dim, heads.end - heads.begin, op.head_dim, half,
             cos_[op.table].data() + static_cast<int64_t>(row) * half,
             sin_[op.table].data() + static_cast<int64_t>(row) * half, op.interleaved);
      break;
    }
    case OpKind::kActivation:
      k.activation(x, op.in.width, op.activation, out);
      break;
    case OpKind::kGlu:
      k.glu(x, at(op.in2, row), op.in.width, op.activation, out);
      break;
    case OpKind::kAdd:
      k.add(x, at(op.in2, row), op.in.width, out);
      break;
    case OpKind::kMul:
      k.mul(x, at(op.in2, row), op.in.width, out);
      break;
    case OpKind::kScale:
      k.scale(x, op.factor, op.in.width, out);
      break;
    case OpKind::kSoftcap:
      k.softcap(x, op.softcap, op.in.width, out);
      break;
    case OpKind::kHeadGate:
      k.head_gate(x + heads.begin * op.head_dim, at(op.in2, row) + heads.begin,
                  heads.end - heads.begin, op.head_dim, out + heads.begin * op.head_dim);
      break;
    case OpKind::kGather:
      std::memcpy(out, at(op.in, in_->output_rows[row]), sizeof(float) * op.in.width);
      break;
    case OpKind::kKvStore:
    case OpKind::kLinear:
    case OpKind::kAttention:
      break;
  }
}

}  // namespace ei

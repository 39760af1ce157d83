// Operations that work on one row at a time.
#include <cmath>
#include <cstring>

#include "program/worker.h"

namespace ei {

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
void Program::store_rows(const Op& op, int first, int last) {
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
    kernels_.kv_store(layer, block, slot, n, at(op.in, r), spec_.buffers[op.in.buffer].stride,
                      at(op.in2, r), spec_.buffers[op.in2.buffer].stride);
  }
}

void Program::run_rows(const Op& op, Worker& w) {
  const int rows = rows_in(space_of(op));
  if (op.kind == OpKind::kKvStore) return store_rows(op, w.begin(rows), w.end(rows));
  for (int r = w.begin(rows); r < w.end(rows); ++r)
    run_row(op, r, op.out.buffer < 0 ? nullptr : at(op.out, r));
}

void Program::run_row(const Op& op, int row, float* out) {
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
      for (int h = 0; h < op.heads; ++h) {
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
      k.rope(out, op.heads, op.head_dim, half,
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
      k.head_gate(x, at(op.in2, row), op.heads, op.head_dim, out);
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

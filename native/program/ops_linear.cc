// The packed and float linears: input rows are transformed once (by every thread for itself when
// there are one or two, else shared out), then channels are split over the team.
#include <algorithm>

#include "program/worker.h"

namespace ei {
namespace {

constexpr int kPrivateRows = 2;  // recomputing this many rows costs less than a barrier

bool is_packed(const Matrix& m) { return m.type == WeightType::kQ4 || m.type == WeightType::kQ8; }
int blocks_of(const Matrix& m) { return (m.n + kBlockN - 1) / kBlockN; }
uint8_t* align64(uint8_t* p) {
  return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(p) + 63) & ~uintptr_t{63});
}

// Codes, scales and sums of `rows` rows carved out of one piece of memory.
struct QuantBuffer {
  int8_t* codes;
  float* scales;
  int32_t* sums;
  int64_t k_pad;

  QuantBuffer(uint8_t* memory, int64_t rows, int64_t k_pad_) : k_pad(k_pad_) {
    codes = reinterpret_cast<int8_t*>(align64(memory));
    scales = reinterpret_cast<float*>(align64(reinterpret_cast<uint8_t*>(codes) + rows * k_pad));
    sums = reinterpret_cast<int32_t*>(scales + rows * (k_pad / kActGroup));
  }
  uint8_t* end(int64_t rows) const {
    return reinterpret_cast<uint8_t*>(sums + rows * (k_pad / kActGroup));
  }
  QuantRows rows(int64_t first, int count) const {
    const int64_t g = k_pad / kActGroup;
    return {codes + first * k_pad, scales + first * g, sums + first * g, count,
            static_cast<int32_t>(k_pad)};
  }
};

}  // namespace

void Program::run_linear(const Op& op, size_t index, Worker& w) {
  const KernelTable& kt = kernels_;
  const Space space = space_of(op);
  const int rows = rows_in(space), decode = decode_rows_in(space);
  const int k = op.weights[0].matrix.k;
  const Op* prologue = op.prologue < 0 ? nullptr : &spec_.prologues[op.prologue];

  bool packed = false, floats = false;
  int64_t k_pad = 0;
  for (const Weight& s : op.weights) {
    (is_packed(s.matrix) ? packed : floats) = true;
    k_pad = std::max<int64_t>(k_pad, s.matrix.k_pad);
  }
  const int int_rows = kt.bf16_prefill ? decode : rows;  // rows of integer arithmetic come first
  const int bf16_rows = rows - int_rows;
  const bool alone = rows <= kPrivateRows && (bf16_rows == 0 || !packed);

  // --- input rows ---
  uint8_t* const private_rows = w.scratch;  // 16 f32 rows, then the private quantized ones
  float* const temp = reinterpret_cast<float*>(private_rows);
  uint8_t* const memory = alone ? private_rows + 16 * max_k_pad_ * 4 : shared_.data();
  const QuantBuffer quant(memory, alone ? kPrivateRows : int_rows, k_pad);
  uint16_t* const tiles =
      reinterpret_cast<uint16_t*>(align64(quant.end(alone ? kPrivateRows : int_rows)));
  float* const shared_floats = reinterpret_cast<float*>(
      align64(reinterpret_cast<uint8_t*>(tiles) +
              (static_cast<int64_t>(bf16_rows) + 15) / 16 * 16 * ((k + 31) / 32 * 32) * 2));

  const auto input_row = [&](int r, float* to) -> const float* {
    if (prologue == nullptr) return at(op.in, r);
    run_row(*prologue, r, to);
    return to;
  };
  // Float weights read f32 rows: the buffer itself, or the prologue's results.
  const float* float_rows = prologue == nullptr ? at(op.in, 0) : (alone ? temp : shared_floats);
  const int64_t float_stride = prologue == nullptr ? spec_.buffers[op.in.buffer].stride : k;

  const int first = alone ? 0 : w.begin(rows), last = alone ? rows : w.end(rows);
  if (floats && prologue != nullptr)
    for (int r = first; r < last; ++r)
      run_row(*prologue, r, const_cast<float*>(float_rows) + r * float_stride);
  if (packed) {
    const int int_first = alone ? 0 : w.begin(int_rows),
              int_last = alone ? int_rows : w.end(int_rows);
    for (int r = int_first; r < int_last; ++r) {
      const QuantRows q = quant.rows(r, 1);
      float* to = floats && alone ? temp + kPrivateRows * max_k_pad_ : temp;
      kt.quantize_rows(input_row(r, to), 0, 1, k, static_cast<int>(k_pad),
                       const_cast<int8_t*>(q.codes), const_cast<float*>(q.scales),
                       const_cast<int32_t*>(q.sums));
    }
    const int tile_count = (bf16_rows + 15) / 16;
    for (int t = w.begin(tile_count); t < w.end(tile_count); ++t) {
      const int row = int_rows + t * 16, n = std::min(16, rows - row);
      const float* x = prologue == nullptr ? at(op.in, row) : temp;
      const int64_t stride = prologue == nullptr ? spec_.buffers[op.in.buffer].stride : k;
      if (prologue != nullptr)
        for (int i = 0; i < n; ++i) run_row(*prologue, row + i, temp + static_cast<int64_t>(i) * k);
      const int k32 = (k + 31) / 32 * 32;
      kt.pack_rows_bf16(x, stride, n, k, k32, tiles + static_cast<int64_t>(t) * 16 * k32);
    }
  }
  w.lap(&OpTimes::input);
  if (!alone) w.wait();

  // --- channels ---
  int total = 0;
  for (const Weight& s : op.weights) total += blocks_of(s.matrix);
  uint8_t* const bf16_scratch = align64(w.scratch + private_rows_);

  const auto blocks = [&](int begin, int end) {
    int block0 = 0, column = op.out.column;
    for (size_t i = 0; i < op.weights.size() && block0 < end; ++i) {
      const Matrix& m = op.weights[i].matrix;
      const int n = blocks_of(m);
      const int b0 = std::max(begin - block0, 0), b1 = std::min(end - block0, n);
      if (b0 < b1) {
        const Ref ref{op.out.buffer, column, m.n};
        const int64_t stride = spec_.buffers[op.out.buffer].stride;
        const Epilogue e{op.biases[i].data, op.accumulate};
        if (!is_packed(m)) {
          kt.linear_float(m, float_rows, float_stride, rows, b0 * kBlockN,
                          std::min(m.n, b1 * kBlockN), at(ref, 0), stride, e);
        } else {
          if (int_rows > 0)
            kt.linear_int8(m, quant.rows(0, int_rows), b0, b1, at(ref, 0), stride, e);
          if (bf16_rows > 0)
            kt.linear_bf16(m, tiles, bf16_rows, b0, b1, bf16_scratch, at(ref, int_rows), stride, e);
        }
      }
      block0 += n;
      column += m.n;
    }
  };
  // Most blocks are dealt out in contiguous stretches; the tail goes to whoever is free first, so
  // that a core that was taken away for a moment does not hold the team up.
  const int fixed = total * 7 / 8 / 2 * 2;
  const int begin = static_cast<int>(static_cast<int64_t>(fixed) * w.thread / w.threads) / 2 * 2;
  const int end =
      w.thread + 1 == w.threads
          ? fixed
          : static_cast<int>(static_cast<int64_t>(fixed) * (w.thread + 1) / w.threads) / 2 * 2;
  if (begin < end) blocks(begin, end);
  const int chunk = std::max(2, (total - fixed) / (4 * w.threads) / 2 * 2);
  for (;;) {
    const int at_block = fixed + claims_[index].fetch_add(chunk, std::memory_order_relaxed);
    if (at_block >= total) break;
    blocks(at_block, std::min(total, at_block + chunk));
  }
}

}  // namespace ei

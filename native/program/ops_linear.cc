// The packed and float linears: input rows are transformed once (by every thread for itself when
// there are one or two, else shared out), then channels are split over the team.
#include <algorithm>

#include "linear/rows.h"
#include "program/worker.h"

namespace ei {

void Program::run_linear(const Op& op, size_t index, Worker& w) {
  const KernelTable& kt = kernels_;
  const Space space = space_of(op);
  const int rows = rows_in(space), decode = decode_rows_in(space);
  const int k = op.weights[0].matrix.k;
  const Op* prologue = op.prologue < 0 ? nullptr : &spec_.prologues[op.prologue];
  const Heads all{0, prologue == nullptr ? 0 : heads_of(*prologue)};

  bool packed = false, floats = false;
  int64_t k_pad = 0;
  for (const Weight& s : op.weights) {
    (is_packed(s.matrix) ? packed : floats) = true;
    k_pad = std::max<int64_t>(k_pad, s.matrix.k_pad);
  }
  const int int_rows = kt.bf16_prefill ? decode : rows;  // rows of integer arithmetic come first
  const bool alone = rows <= kPrivateRows && (int_rows == rows || !packed);

  // --- input rows ---
  uint8_t* const private_rows = w.scratch;  // 16 f32 rows, then the private quantized ones
  float* const temp = reinterpret_cast<float*>(private_rows);
  uint8_t* const memory = alone ? private_rows + 16 * max_k_pad_ * 4 : shared_.data();
  InputRows in(memory, rows, int_rows, alone ? kPrivateRows : int_rows, k, k_pad);

  const auto input_row = [&](int r, float* to) -> const float* {
    if (prologue == nullptr) return at(op.in, r);
    run_row(*prologue, r, all, to);
    return to;
  };
  // Float weights read f32 rows: the buffer itself, or the prologue's results.
  float* const results = alone ? temp : reinterpret_cast<float*>(in.after);
  in.floats = prologue == nullptr ? at(op.in, 0) : results;
  in.float_stride = prologue == nullptr ? spec_.buffers[op.in.buffer].stride : k;

  const int first = alone ? 0 : w.begin(rows), last = alone ? rows : w.end(rows);
  if (floats && prologue != nullptr)
    for (int r = first; r < last; ++r) run_row(*prologue, r, all, results + r * in.float_stride);
  if (packed) {
    const int int_first = alone ? 0 : w.begin(int_rows),
              int_last = alone ? int_rows : w.end(int_rows);
    for (int r = int_first; r < int_last; ++r) {
      float* to = floats && alone ? temp + kPrivateRows * max_k_pad_ : temp;
      in.quantize(kt, r, input_row(r, to));
    }
    const int tile_count = in.tile_count();
    for (int t = w.begin(tile_count); t < w.end(tile_count); ++t) {
      const int row = int_rows + t * 16, n = std::min(16, rows - row);
      const float* x = prologue == nullptr ? at(op.in, row) : temp;
      const int64_t stride = prologue == nullptr ? spec_.buffers[op.in.buffer].stride : k;
      if (prologue != nullptr)
        for (int i = 0; i < n; ++i)
          run_row(*prologue, row + i, all, temp + static_cast<int64_t>(i) * k);
      in.pack(kt, t, n, x, stride);
    }
  }
  w.lap(&OpTimes::input);
  if (!alone) w.wait();

  // --- channels ---
  int total = 0;
  for (const Weight& s : op.weights) total += blocks_of(s.matrix);
  uint8_t* const bf16_scratch = align64(w.scratch + private_rows_);
  const int64_t stride = spec_.buffers[op.out.buffer].stride;
  const auto matrix = [&](size_t i) -> const Matrix& { return op.weights[i].matrix; };
  share_blocks(total, share_unit(rows), w.thread, w.threads, claims(index),
               [&](int begin, int end) {
                 for_segments(op.weights.size(), matrix, begin, end,
                              [&](size_t i, int b0, int b1, int column) {
                                const Ref ref{op.out.buffer, op.out.column + column, matrix(i).n};
                                in.multiply(kt, matrix(i), b0, b1, bf16_scratch, at(ref, 0), stride,
                                            {op.biases[i].data, op.accumulate});
                              });
               });
}

}  // namespace ei

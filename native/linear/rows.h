// What the executor and the stand-alone linear share: input rows in the forms that kernels read,
// and the dispatch to a kernel.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/kernels.h"
#include "team/share.h"

namespace ei {

constexpr int kPrivateRows = 2;  // recomputing this many rows costs less than a barrier

// Blocks that threads take together: kernels read two side by side for all but a single row.
inline int share_unit(int rows) { return rows > 1 ? 2 : 1; }

inline bool is_packed(const Matrix& m) { return bits_of(m.type) != 0; }
inline int blocks_of(const Matrix& m) { return (m.n + kBlockN - 1) / kBlockN; }
inline uint8_t* align64(uint8_t* p) {
  return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(p) + 63) & ~uintptr_t{63});
}

// The input rows of a linear, carved out of one piece of memory: int8 codes, scales and sums of the
// rows with integer arithmetic, which come first; bf16 tiles of the rows after them; f32 rows for
// float weights, which may lie elsewhere.
struct InputRows {
  int rows = 0, int_rows = 0;
  int k = 0;
  int64_t k_pad = 0;
  int8_t* codes = nullptr;
  float* scales = nullptr;
  int32_t* sums = nullptr;
  uint16_t* tiles = nullptr;
  uint8_t* after = nullptr;  // the first byte behind the tiles, 64-byte aligned
  const float* floats = nullptr;
  int64_t float_stride = 0;

  InputRows() = default;
  // int_capacity: how many integer rows the memory is laid out for, at least int_rows.
  InputRows(uint8_t* memory, int rows_, int int_rows_, int int_capacity, int k_, int64_t k_pad_)
      : rows(rows_), int_rows(int_rows_), k(k_), k_pad(k_pad_) {
    codes = reinterpret_cast<int8_t*>(align64(memory));
    scales =
        reinterpret_cast<float*>(align64(reinterpret_cast<uint8_t*>(codes) + int_capacity * k_pad));
    sums = reinterpret_cast<int32_t*>(scales + int_capacity * groups());
    tiles = reinterpret_cast<uint16_t*>(
        align64(reinterpret_cast<uint8_t*>(sums + int_capacity * groups())));
    after = align64(reinterpret_cast<uint8_t*>(tiles) + int64_t{tile_count()} * tile_size() * 2);
  }
  // Bytes that any split of `rows` rows needs, f32 rows included.
  static int64_t bytes(int64_t rows, int64_t k_pad) {
    const int64_t padded = (rows + 15) / 16 * 16;
    return padded * (k_pad + k_pad / kActGroup * 8) + padded * k_pad * 2 + padded * k_pad * 4 +
           3 * 4096;
  }

  int64_t groups() const { return k_pad / kActGroup; }
  int bf16_rows() const { return rows - int_rows; }
  int tile_count() const { return (bf16_rows() + 15) / 16; }
  int k32() const { return (k + 31) / 32 * 32; }
  int64_t tile_size() const { return int64_t{16} * k32(); }

  void quantize(const KernelTable& kt, int row, const float* x) const {
    kt.quantize_rows(x, 0, 1, k, static_cast<int>(k_pad), codes + row * k_pad,
                     scales + row * groups(), sums + row * groups());
  }
  // The rows of tile t: `count` of them from row int_rows + 16*t on.
  void pack(const KernelTable& kt, int t, int count, const float* x, int64_t stride) const {
    kt.pack_rows_bf16(x, stride, count, k, k32(), tiles + t * tile_size());
  }
  QuantRows quantized() const {
    return {codes, scales, sums, int_rows, static_cast<int32_t>(k_pad)};
  }

  // Blocks [b0, b1) of one matrix for all rows; y: row 0, channel 0 of the matrix.
  void multiply(const KernelTable& kt, const Matrix& m, int b0, int b1, void* bf16_scratch,
                float* y, int64_t stride, const Epilogue& e) const {
    if (!is_packed(m)) {
      kt.linear_float(m, floats, float_stride, rows, b0 * kBlockN, std::min(m.n, b1 * kBlockN), y,
                      stride, e);
      return;
    }
    if (int_rows > 0) kt.linear_int8(m, quantized(), b0, b1, y, stride, e);
    if (bf16_rows() > 0)
      kt.linear_bf16(m, tiles, bf16_rows(), b0, b1, bf16_scratch, y + int_rows * stride, stride, e);
  }
};

// Calls f(segment, first block, last block, column of the segment) for blocks [begin, end) of
// matrices that stand side by side; matrix(i) is the i-th of `count`.
template <class MatrixAt, class F>
void for_segments(size_t count, MatrixAt matrix, int begin, int end, F f) {
  int block0 = 0, column = 0;
  for (size_t i = 0; i < count && block0 < end; ++i) {
    const Matrix& m = matrix(i);
    const int n = blocks_of(m);
    const int b0 = std::max(begin - block0, 0), b1 = std::min(end - block0, n);
    if (b0 < b1) f(i, b0, b1, column);
    block0 += n;
    column += m.n;
  }
}

}  // namespace ei

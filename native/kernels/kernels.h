// The contract between the executor and the kernels: plain structs, and one table of functions per
// ISA level. Kernels own no threads and no memory; ranges say which part of the output to compute.
#pragma once
#include <cstdint>

namespace ei {

constexpr int kBlockN = 16;      // output channels in a packed block
constexpr int kActGroup = 32;    // activations share one int8 scale per 32 values of k
constexpr int kKvBlock = 32;     // tokens in a block of the paged KV pool
constexpr int kPanelBlocks = 2;  // linear_bf16 dequantizes this many blocks (32 channels) at a time

enum class WeightType : int32_t { kQ4 = 0, kQ6 = 1, kQ8 = 2, kF32 = 3, kBf16 = 4, kF16 = 5 };
enum class Activation : int32_t {
  kNone = 0,
  kSilu = 1,
  kGelu = 2,
  kGeluTanh = 3,
  kSigmoid = 4,
  kRelu = 5
};
enum class FloatType : int32_t { kF32 = 0, kBf16 = 1, kF16 = 2 };
enum class KvType : int32_t { kF16 = 0, kBf16 = 1, kI8 = 2 };

// Bits of a code of a packed type; 0 for float types.
constexpr int bits_of(WeightType type) {
  return type == WeightType::kQ4   ? 4
         : type == WeightType::kQ6 ? 6
         : type == WeightType::kQ8 ? 8
                                   : 0;
}

// The packed type of 4, 6 or 8 bits.
constexpr WeightType packed_type(int bits) {
  return bits == 4 ? WeightType::kQ4 : bits == 6 ? WeightType::kQ6 : WeightType::kQ8;
}

// What 4- and 6-bit codes without a minimum have added to them; 8-bit codes are signed.
constexpr int code_offset(int bits) { return bits == 8 ? 0 : 1 << (bits - 1); }

// Lines of 64 bytes that the codes of `k_pad` values of k of a block take.
constexpr int64_t code_lines(int64_t k_pad, int bits) { return k_pad * bits / 32; }

// The line of a block with the code of value k, of 6 bits the low four: the low nibbles of a line
// belong to the first four values of k, the high ones to the next four.
constexpr int64_t code_line(int64_t k, int bits) {
  return bits == 8 ? k / 4 : bits == 4 ? k / 8 : k / 16 * 3 + k / 8 % 2;
}

// The line with the two bits above the nibbles of a 6-bit code: bits 2t and 2t+1 of its byte
// 4*c + j belong to channel c, k = 16*i + 4*t + j.
constexpr int64_t above_line(int64_t k) { return k / 16 * 3 + 2; }

// One weight matrix [n, k]. Packed (kQ4, kQ6, kQ8): codes in blocks of 16 channels as documented in
// docs/edge/architecture.md, [ceil(n/16)][code_lines(k_pad, bits)][64] bytes: kQ4 unsigned nibbles,
// value s*(q-8), or s*q+m when minimums is set; kQ6 unsigned, lines of nibbles and of the two bits
// above them, value s*(q-32) or s*q+m; kQ8 int8, value s*q (+m). scales and minimums are fp16
// [ceil(n/16)][k_pad/group][16]. Float types: codes is row-major [n, k], scales null.
struct Matrix {
  const void* codes;
  const uint16_t* scales;
  const uint16_t* minimums;
  int32_t n;
  int32_t k;
  int32_t k_pad;  // k rounded up to the group; equals k for float types
  int32_t group;  // 32, 64 or 128; 0 for float types
  WeightType type;
};

// Rows quantized to int8 per group of 32: x[r][k] ~ scales[r][k/32] * codes[r][k]; codes in
// -127..127, zero beyond k; sums[r][g] is the integer sum of the group's codes.
struct QuantRows {
  const int8_t* codes;  // [rows][k_pad]
  const float* scales;  // [rows][k_pad/32]
  const int32_t* sums;  // [rows][k_pad/32]
  int32_t rows;
  int32_t k_pad;
};

// What happens to a finished dot product: y = dot (+ bias[n]) (+ y when accumulate).
struct Epilogue {
  const float* bias;  // f32 [n] or null
  bool accumulate;
};

constexpr int float_bytes(FloatType type) { return type == FloatType::kF32 ? 4 : 2; }

// Bytes of one key or value element.
constexpr int kv_element_bytes(KvType type) { return type == KvType::kI8 ? 1 : 2; }

// Bytes of one block of one layer: keys and values, and with kI8 their scales.
constexpr int64_t kv_block_bytes(KvType type, int64_t kv_heads, int64_t head_dim) {
  return 2 * kv_heads * kKvBlock *
         (head_dim * kv_element_bytes(type) + (type == KvType::kI8 ? int64_t{sizeof(float)} : 0));
}

// One layer of one KV group. A block holds, one after the other: keys [kv_heads][head_dim][32]
// (transposed, so that scores of 32 tokens are vectors), values [kv_heads][32][head_dim], and with
// kI8 f32 scales [2*kv_heads][32], those of the keys first: value = scale * code, codes -127..127.
struct KvLayer {
  uint8_t* base;         // block 0 of this layer
  int64_t block_stride;  // bytes from block b to block b+1
  int32_t kv_heads;
  int32_t head_dim;
  KvType type;
};

struct AttentionArgs {
  const KvLayer* kv;
  const int32_t* blocks;  // block table of the sequence; entries of released blocks are never read
  int32_t kv_head;
  int32_t group_heads;  // query heads that share this kv head
  float scale;
  float softcap;  // 0: none; else scores become softcap*tanh(scores/softcap)
  // What this thread reads afterwards, to be asked for in time; block -1: nobody knows.
  int32_t next_block = -1, next_kv_head = 0;
};

struct KernelTable {
  const char* name;
  bool bf16_prefill;  // prompt rows use linear_bf16; otherwise linear_int8 serves every row

  // --- packed and float linears ---
  void (*quantize_rows)(const float* x, int64_t x_stride, int rows, int k, int k_pad, int8_t* codes,
                        float* scales, int32_t* sums);
  // Channels of blocks [block_begin, block_end), clipped to n. acc += float(dot) * (s_w*s_a),
  // groups in ascending order with fma; identical arithmetic at every level.
  void (*linear_int8)(const Matrix& w, const QuantRows& x, int block_begin, int block_end, float* y,
                      int64_t y_stride, const Epilogue& e);
  void (*linear_float)(const Matrix& w, const float* x, int64_t x_stride, int rows, int n_begin,
                       int n_end, float* y, int64_t y_stride, const Epilogue& e);
  // Rows as bf16 in the order of matrix tiles: [ceil(rows/16)][k_pad32/32][16][32], zeros as
  // padding; k_pad32 is k rounded up to 32.
  void (*pack_rows_bf16)(const float* x, int64_t x_stride, int rows, int k, int k_pad,
                         uint16_t* out);
  // Packed weights dequantized to bf16 panel by panel, bf16 products, f32 sums; long rows are
  // summed in stretches of k that depend on k alone, and y takes them in ascending order. scratch:
  // 64-byte aligned, bf16_scratch_bytes(k_pad). Fastest when y_stride is no multiple of 1024
  // floats, whose rows would share the cache's sets.
  void (*linear_bf16)(const Matrix& w, const uint16_t* x, int rows, int block_begin, int block_end,
                      void* scratch, float* y, int64_t y_stride, const Epilogue& e);
  int64_t (*bf16_scratch_bytes)(int k_pad);
  // Rows `ids` of any matrix type as f32, times scale: the embedding lookup. ids are already
  // checked.
  void (*dequantize_rows)(const Matrix& w, const int32_t* ids, int count, float scale, float* y,
                          int64_t y_stride);

  // --- one row at a time; y may equal x ---
  // A row of any float type as f32, and back (nearest even; NaN stays NaN).
  void (*load_floats)(const void* x, FloatType type, int width, float* y);
  void (*store_floats)(const float* x, int width, FloatType type, void* y);
  // y = x / rms(x) * (weight + weight_offset) (+ residual); weight null: ones. mean and sum in f32.
  void (*rms_norm)(const float* x, const float* weight, float weight_offset, float eps, int width,
                   const float* residual, float* y);
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, int width,
                     float* y);
  // Rotates the first 2*half dims of each head in place: pairs (i, i+half), or (2i, 2i+1) if
  // interleaved. cos, sin: f32 [half].
  void (*rope)(float* x, int heads, int head_dim, int half, const float* cos, const float* sin,
               bool interleaved);
  void (*activation)(const float* x, int width, Activation a, float* y);
  void (*glu)(const float* gate, const float* up, int width, Activation a, float* y);  // a(gate)*up
  void (*add)(const float* a, const float* b, int width, float* y);
  void (*mul)(const float* a, const float* b, int width, float* y);
  void (*scale)(const float* x, float factor, int width, float* y);
  void (*softcap)(const float* x, float cap, int width, float* y);  // cap*tanh(x/cap)
  void (*head_gate)(const float* x, const float* gate, int heads, int head_dim,
                    float* y);  // x*sigmoid(gate[h])

  // --- attention over the paged pool ---
  // Heads [head_begin, head_end) of the keys and values of `tokens` tokens ([kv_heads][head_dim]
  // each, token i at k + i*k_stride) into slots [slot, slot + tokens) of a block.
  void (*kv_store)(const KvLayer& kv, int head_begin, int head_end, int32_t block, int slot,
                   int tokens, const float* k, int64_t k_stride, const float* v, int64_t v_stride);
  // Decode numerics. One query row, its group_heads heads q[group_heads][head_dim], over the tokens
  // [begin, end) of one split: m (max), l (sum of exp), acc[group_heads][head_dim] (weighted
  // values, not yet divided by l). An empty range gives m=-inf, l=0, acc=0. Tokens are read block
  // by block.
  void (*attention_split)(const AttentionArgs& a, const float* q, int begin, int end, float* m,
                          float* l, float* acc);
  // Merges `splits` partial results of one head, in order: m[s*m_stride], l[s*m_stride],
  // acc[s*acc_stride + d].
  void (*attention_merge)(const float* m, const float* l, int64_t m_stride, const float* acc,
                          int64_t acc_stride, int splits, int head_dim, float* out);
  // Prefill numerics. rows query rows of one sequence (q + r*q_stride: [group_heads][head_dim]),
  // row r sees tokens [begin[r], end[r]); KV is walked in whole blocks at absolute positions with
  // an online softmax, so a row's result does not depend on the rows beside it. scratch:
  // prefill_scratch_floats.
  void (*attention_prefill)(const AttentionArgs& a, const float* q, int64_t q_stride, int rows,
                            const int32_t* begin, const int32_t* end, float* scratch, float* out,
                            int64_t out_stride);
  int64_t (*prefill_scratch_floats)(int rows, int group_heads, int head_dim);
  // The same with weights and values rounded to bf16, where that is faster, else null: for rows
  // that packed linears, which round as much, read next.
  void (*attention_prefill_bf16)(const AttentionArgs& a, const float* q, int64_t q_stride, int rows,
                                 const int32_t* begin, const int32_t* end, float* scratch,
                                 float* out, int64_t out_stride);

  // --- sampling helpers over a vocabulary row ---
  int (*argmax)(const float* x, int n);  // first of equals; NaN never wins
  float (*reduce_max)(const float* x, int n);
  double (*exp_sum)(const float* x, int n, float max,
                    float inv_temperature);  // sum exp((x-max)*inv_t)
  void (*exp_row)(const float* x, int n, float max, float inv_temperature, float* y);
  int (*collect_above)(const float* x, int n, float threshold, int32_t* ids,
                       int capacity);         // x >= threshold
  bool (*all_finite)(const float* x, int n);  // -inf counts as finite here: a masked logit

  // --- ceilings of the machine ---
  // Sum of the 64-bit words of a page-aligned stretch, a multiple of 256 bytes, by plain loads.
  uint64_t (*stream_read)(const void* data, int64_t bytes);
  // `steps` times the same multiply-accumulates of ones, operands in registers or tiles; returns
  // the sum of the accumulators, which is how many were done. Null: no such instructions.
  int64_t (*peak_int8)(int64_t steps);
  int64_t (*peak_bf16)(int64_t steps);
};

// fills in what a level's files provide; levels start from the table they extend
#define EI_DECLARE_LEVEL(ns)                \
  namespace ns {                            \
  void register_linear_int8(KernelTable&);  \
  void register_linear_float(KernelTable&); \
  void register_linear_bf16(KernelTable&);  \
  void register_elementwise(KernelTable&);  \
  void register_attention(KernelTable&);    \
  void register_sampling(KernelTable&);     \
  void register_peaks(KernelTable&);        \
  }
EI_DECLARE_LEVEL(scalar)
EI_DECLARE_LEVEL(avx2)
EI_DECLARE_LEVEL(avx2vnni)
EI_DECLARE_LEVEL(avx512)
EI_DECLARE_LEVEL(avx512bf16)
EI_DECLARE_LEVEL(amx)

}  // namespace ei

// A linear layer over packed (or float) matrices side by side, run outside a program: on the
// OpenMP threads of whoever calls, with rows and results in the caller's dtype.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace ei {

// Row r begins at data + r * stride elements.
struct FloatRows {
  const void* data;
  int64_t stride;
  FloatType type;
};

class PackedLinear {
 public:
  // Segments with one k, whose memory the owner keeps. bias: f32 [n], or empty. level: "" is the
  // active ISA level. bf16_prefill: whether prompt rows use bf16 arithmetic; by default what the
  // level prefers. Throws Error("invalid_parameter") on parts that do not fit together.
  PackedLinear(std::vector<Matrix> segments, std::vector<float> bias, const std::string& level = "",
               std::optional<bool> bf16_prefill = std::nullopt);

  int n() const { return n_; }  // of all segments
  int k() const { return k_; }
  bool has_bias() const { return !bias_.empty(); }
  bool bf16_prefill() const { return bf16_prefill_; }

  // y[rows][n] = x[rows][k] * segments (+ bias). Rows [0, decode_rows) have decode numerics, the
  // others prefill numerics (docs/edge/architecture.md). A row's result depends on neither the
  // rows beside it nor the number of threads.
  void run(const FloatRows& x, int64_t rows, int64_t decode_rows, bool with_bias, void* y,
           int64_t y_stride, FloatType y_type) const;

  // y[count][k] = rows `ids` of the first segment. Throws Error("invalid_parameter") for an id
  // outside it.
  void lookup(const int64_t* ids, int64_t count, void* y, int64_t y_stride, FloatType y_type) const;

 private:
  struct Pass;
  struct Plan;

  void pass(Pass& p, int thread, int threads) const;

  std::vector<Matrix> segments_;
  std::vector<float> bias_;
  const KernelTable& kernels_;
  bool bf16_prefill_;
  bool packed_ = false, floats_ = false;
  int n_ = 0, k_ = 0, blocks_ = 0;
  int64_t k_pad_ = 0;
};

// On what linears of the calling thread run: the OpenMP library in use, "" for the caller alone.
struct LinearThreads {
  std::string library;
  int threads;
};
LinearThreads linear_threads();

}  // namespace ei

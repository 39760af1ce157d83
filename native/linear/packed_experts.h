// The routed experts of a mixture: rows grouped by expert, two linears and a gate for each.
#pragma once
#include <cstdint>
#include <vector>

#include "linear/packed_linear.h"

namespace ei {

class PackedExperts {
 public:
  // One gate_up [2*I, H] (gate first) and one down [H, I] an expert, which the caller keeps alive.
  // Throws Error("invalid_parameter") on linears that do not fit together.
  PackedExperts(std::vector<const PackedLinear*> gate_up, std::vector<const PackedLinear*> down,
                Activation activation);

  int experts() const { return static_cast<int>(gate_up_.size()); }
  int width() const { return down_[0]->n(); }

  // y[rows][H] = sum over the row's `top` choices, experts in ascending order, of
  // weight * down(act(gate(x)) * up(x)). ids [rows][top]; an id outside the experts (another
  // rank's, or -1) adds nothing. weights f32 [rows][top]. Rows before decode_rows have decode
  // numerics. With weight_input a row is scaled before gate_up instead of its result.
  void run(const FloatRows& x, int64_t rows, int64_t decode_rows, const int32_t* ids,
           const float* weights, int top, bool weight_input, void* y, int64_t y_stride,
           FloatType y_type) const;

 private:
  std::vector<const PackedLinear*> gate_up_, down_;
  Activation activation_;
};

}  // namespace ei

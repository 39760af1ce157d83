// kernels.Matrix of Python: a weight matrix that keeps the arrays behind it alive.
#pragma once
#include <nanobind/ndarray.h>

#include <vector>

#include "kernels/kernels.h"

namespace ei {

struct WeightMatrix {
  Matrix m{};
  std::vector<nanobind::ndarray<>> owners;
  int blocks() const { return (m.n + kBlockN - 1) / kBlockN; }
};

}  // namespace ei

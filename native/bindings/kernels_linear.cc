#include "bindings/bindings.h"

namespace nb = nanobind;

namespace ei {

void bind_kernels_linear(nb::module_& m) { (void)m; }

}  // namespace ei

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace ei {

void bind_kernels_rows(nb::module_& m) { (void)m; }

}  // namespace ei

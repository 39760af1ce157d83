#include "bindings/bindings.h"

namespace nb = nanobind;

namespace ei {

void bind_program(nb::module_& m) { (void)m; }

}  // namespace ei

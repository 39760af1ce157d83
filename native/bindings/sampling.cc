#include "bindings/bindings.h"

namespace nb = nanobind;

namespace ei {

void bind_sampling(nb::module_& m) { (void)m; }

}  // namespace ei

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "isa/isa.h"

namespace nb = nanobind;

namespace ei {

void bind_isa(nb::module_& m) {
  m.def("available_levels", &available_levels, "ISA levels this CPU and OS allow, lowest first.");
  m.def("active_level", &active_level, "The level in use; EDGE_INFER_ISA overrides.");
  m.def("cpu_brand", [] { return cpu_features().brand; });
  m.def("cpu_vendor", [] { return cpu_features().vendor; });
}

}  // namespace ei

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>

#include "bindings/bindings.h"
#include "isa/isa.h"

namespace nb = nanobind;

namespace ei {
namespace {

std::map<std::string, std::string> build_info() {
#if defined(__clang__)
  const std::string compiler = std::string("clang ") + __clang_version__;
#else
  const std::string compiler = std::string("gcc ") + __VERSION__;
#endif
  return {{"compiler", compiler}, {"flags", EI_BUILD_FLAGS}};
}

}  // namespace

void bind_isa(nb::module_& m) {
  m.def("available_levels", &available_levels, "ISA levels this CPU and OS allow, lowest first.");
  m.def("active_level", &active_level, "The level in use; EDGE_INFER_ISA overrides.");
  m.def("cpu_brand", [] { return cpu_features().brand; });
  m.def("cpu_vendor", [] { return cpu_features().vendor; });
  m.def("build_info", &build_info, "Compiler and flags of this build, for provenance.");
}

}  // namespace ei

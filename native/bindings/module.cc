#include <nanobind/stl/string.h>

#include "bindings/bindings.h"

#include "common/error.h"

namespace nb = nanobind;

NB_MODULE(_native, m) {
  m.doc() = "edge-infer native engine";
  nb::set_leak_warnings(false);
  // Errors surface as edge_infer.errors classes, chosen by code.
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const ei::Error& e) {
      nb::object errors = nb::module_::import_("edge_infer.errors");
      nb::object cls = errors.attr("BY_CODE").attr("get")(e.code(), errors.attr("EdgeInferError"));
      nb::object instance = cls(e.what(), nb::arg("code") = e.code());
      PyErr_SetObject(cls.ptr(), instance.ptr());
    }
  });
  m.def_submodule("kernels", "single kernels by ISA level, for tests and benchmarks");
  ei::bind_isa(m);
  ei::bind_kernels_linear(m);
  ei::bind_kernels_rows(m);
  ei::bind_checkpoint(m);
  ei::bind_weights(m);
  ei::bind_program(m);
  ei::bind_linear(m);
  ei::bind_sampling(m);
  ei::bind_roofline(m);
}

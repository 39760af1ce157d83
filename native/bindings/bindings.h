// One bind_* function per room; module.cc calls them all.
#pragma once
#include <nanobind/nanobind.h>

#include <string>

#include "common/error.h"

namespace ei {

// Arguments from Python: wrong ones are a ConfigError.
inline void require(bool ok, const std::string& what) {
  if (!ok) throw Error("invalid_parameter", what + ".");
}

void bind_isa(nanobind::module_& m);
void bind_kernels_linear(nanobind::module_& m);  // submodule _native.kernels: linears, for tests
void bind_kernels_rows(nanobind::module_& m);    // submodule _native.kernels: the rest, for tests
void bind_checkpoint(nanobind::module_& m);      // quantizer
void bind_weights(nanobind::module_& m);         // weight files, matrices, vectors
void bind_program(nanobind::module_& m);         // team, pool, program
void bind_linear(nanobind::module_& m);          // linears on the caller's threads
void bind_sampling(nanobind::module_& m);
void bind_roofline(nanobind::module_& m);  // submodule _native.roofline

}  // namespace ei

// One bind_* function per room; module.cc calls them all.
#pragma once
#include <nanobind/nanobind.h>

namespace ei {

void bind_isa(nanobind::module_& m);
void bind_kernels_linear(nanobind::module_& m);  // submodule _native.kernels: linears, for tests
void bind_kernels_rows(nanobind::module_& m);    // submodule _native.kernels: the rest, for tests
void bind_checkpoint(nanobind::module_& m);      // quantizer
void bind_program(nanobind::module_& m);         // team, weight map, pool, program
void bind_sampling(nanobind::module_& m);

}  // namespace ei

// The ceilings of the machine as Python measures them.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <utility>

#include "bindings/bindings.h"
#include "isa/isa.h"
#include "roofline/roofline.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ei {
namespace {

int64_t (*peak_of(const std::string& level, const std::string& type))(int64_t) {
  const KernelTable& table = kernel_table(level);
  require(type == "int8" || type == "bf16",
          "The type of a peak is int8 or bf16, not '" + type + "'");
  return type == "int8" ? table.peak_int8 : table.peak_bf16;
}

}  // namespace

void bind_roofline(nb::module_& m) {
  nb::module_ r = m.def_submodule("roofline", "ceilings of the machine");
  nb::class_<ReadBuffer>(
      r, "ReadBuffer",
      "Anonymous memory, one region a thread of the team, whose 64-bit words count up from 1.")
      .def(nb::init<std::shared_ptr<Team>, int64_t>(), "team"_a, "bytes"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("bytes", &ReadBuffer::bytes)
      .def(
          "read",
          [](ReadBuffer& b, const std::string& level) {
            const KernelTable& table = kernel_table(level);
            nb::gil_scoped_release release;
            const ReadBuffer::Result result = b.read(table);
            return std::pair(result.seconds, result.sum);
          },
          "level"_a, "(seconds, sum of all words modulo 2^64) of one read by the whole team.");
  r.def(
      "has_peak",
      [](const std::string& level, const std::string& type) {
        return peak_of(level, type) != nullptr;
      },
      "level"_a, "type"_a, "Whether this level has instructions of its own for int8 or bf16.");
  r.def(
      "peak",
      [](Team& team, const std::string& level, const std::string& type, int64_t steps) {
        auto* const peak = peak_of(level, type);
        require(peak != nullptr, "Level " + level + " has no " + type + " instructions");
        require(steps >= 1 && steps <= (int64_t{1} << 40), "steps is 1 to 2^40");
        nb::gil_scoped_release release;
        const Peak result = measure_peak(team, peak, steps);
        return std::pair(result.operations, result.seconds);
      },
      "team"_a, "level"_a, "type"_a, "steps"_a,
      "(multiply-accumulates of all threads, seconds) of a loop without memory.");
}

}  // namespace ei

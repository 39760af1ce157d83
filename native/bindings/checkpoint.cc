#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "bindings/bindings.h"
#include "checkpoint/quantize.h"
#include "common/error.h"
#include "kernels/kernels.h"

namespace nb = nanobind;

namespace ei {
namespace {

template <typename T>
nb::object array(std::unique_ptr<T[]> data, size_t a, size_t b, size_t c) {
  T* raw = data.release();
  nb::capsule owner(raw, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<3>>(raw, {a, b, c}, owner));
}

SourceType source_type(const std::string& name, nb::dlpack::dtype dtype) {
  const bool half = dtype == nb::dtype<uint16_t>();
  if (name == "F32" && dtype == nb::dtype<float>()) return SourceType::kF32;
  if (name == "F16" && half) return SourceType::kF16;
  if (name == "BF16" && half) return SourceType::kBf16;
  throw Error("invalid_parameter",
              "quantize takes F32 as float32, F16 and BF16 as uint16 bits, not " + name + ".");
}

nb::tuple quantize_matrix(
    nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu> data, const std::string& dtype, int bits,
    int group, bool minimum,
    std::optional<nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>> importance,
    int threads, const std::string& name, int64_t first_row) {
  QuantizeJob job{};
  job.type = source_type(dtype, data.dtype());
  job.data = data.data();
  job.n = static_cast<int64_t>(data.shape(0));
  job.k = static_cast<int64_t>(data.shape(1));
  job.row_stride = data.stride(0) * static_cast<int64_t>(data.itemsize());
  job.bits = bits;
  job.group = group;
  job.minimum = minimum;
  job.threads = std::clamp(threads, 1, 64);
  if ((bits != 4 && bits != 6 && bits != 8) || (group != 32 && group != 64 && group != 128) ||
      (minimum && bits == 8)) {
    throw Error("invalid_parameter",
                "quantize has 4- and 6-bit codes (with or without a minimum) and 8-bit symmetric "
                "ones in groups of 32, 64 or 128; asked for " +
                    std::to_string(bits) + "-bit, group " + std::to_string(group) +
                    (minimum ? " with a minimum." : "."));
  }
  if (job.n < 1 || job.k < 1 || (job.k > 1 && data.stride(1) != 1)) {
    throw Error("invalid_parameter", "quantize needs a non-empty matrix with contiguous rows.");
  }
  if (importance) {
    job.importance = importance->data();
    if (static_cast<int64_t>(importance->shape(0)) != job.k) {
      throw Error("invalid_parameter", "importance has " + std::to_string(importance->shape(0)) +
                                           " entries for " + std::to_string(job.k) + " columns.");
    }
    const float* end = job.importance + job.k;
    if (!std::all_of(job.importance, end, [](float w) { return std::isfinite(w) && w >= 0; })) {
      throw Error("invalid_parameter", "importance must be finite and not negative.");
    }
  }
  const size_t blocks = static_cast<size_t>((job.n + 15) / 16);
  const size_t groups = static_cast<size_t>((job.k + group - 1) / group);
  const size_t lines = groups * static_cast<size_t>(code_lines(group, bits));
  std::unique_ptr<uint8_t[]> codes(new uint8_t[blocks * lines * 64]);
  std::unique_ptr<uint16_t[]> scales(new uint16_t[blocks * groups * 16]);
  std::unique_ptr<uint16_t[]> minimums(minimum ? new uint16_t[blocks * groups * 16] : nullptr);
  job.codes = codes.get();
  job.scales = scales.get();
  job.minimums = minimums.get();
  {
    nb::gil_scoped_release release;
    quantize(job, name, first_row);
  }
  nb::object none = nb::none();
  return nb::make_tuple(array(std::move(codes), blocks, lines, 64),
                        array(std::move(scales), blocks, groups, 16),
                        minimum ? array(std::move(minimums), blocks, groups, 16) : none);
}

}  // namespace

void bind_checkpoint(nb::module_& m) {
  m.def("quantize_matrix", &quantize_matrix, nb::arg("data"), nb::arg("dtype"), nb::arg("bits"),
        nb::arg("group_size"), nb::arg("minimum"), nb::arg("importance").none(), nb::arg("threads"),
        nb::arg("name"), nb::arg("first_row"),
        "[n, k] floats (F32, or the bits of F16/BF16 as uint16) to packed codes (uint8 "
        "[n/16, lines, 64]), scales and minimums (fp16 bits [n/16, groups, 16], or None).");
}

}  // namespace ei

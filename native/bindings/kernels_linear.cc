// Single linear kernels by ISA level, for tests and benchmarks.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/matrix.h"
#include "common/error.h"
#include "isa/isa.h"

namespace nb = nanobind;

namespace ei {
namespace {

template <class T, int kDims>
using In = nb::ndarray<const T, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;
template <class T>
using Out = nb::ndarray<nb::numpy, T>;
using Output = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;
using Bias = std::optional<In<float, 1>>;

WeightMatrix packed_matrix(In<uint8_t, 3> codes, In<uint16_t, 3> scales,
                           std::optional<In<uint16_t, 3>> minimums, int n, int k, int group,
                           int bits) {
  require(bits == 4 || bits == 6 || bits == 8,
          "bits is " + std::to_string(bits) + "; 4, 6 and 8 exist");
  require(group == 32 || group == 64 || group == 128,
          "group is " + std::to_string(group) + "; 32, 64 and 128 exist");
  require(n > 0 && k > 0 && k <= 1 << 24, "n and k must be positive, k at most 2^24");
  WeightMatrix w;
  w.m.n = n;
  w.m.k = k;
  w.m.group = group;
  w.m.k_pad = (k + group - 1) / group * group;
  w.m.type = packed_type(bits);
  const size_t blocks = static_cast<size_t>(w.blocks());
  const auto lines = static_cast<size_t>(code_lines(w.m.k_pad, bits));
  require(codes.shape(0) == blocks && codes.shape(1) == lines && codes.shape(2) == 64,
          "codes must have shape [" + std::to_string(blocks) + ", " + std::to_string(lines) +
              ", 64] for n=" + std::to_string(n) + ", k=" + std::to_string(k) + "");
  const auto check = [&](const In<uint16_t, 3>& a, const char* name) {
    require(a.shape(0) == blocks && a.shape(1) == static_cast<size_t>(w.m.k_pad / group) &&
                a.shape(2) == kBlockN,
            std::string(name) + " must have shape [" + std::to_string(blocks) + ", " +
                std::to_string(w.m.k_pad / group) + ", 16]");
  };
  check(scales, "scales");
  if (minimums) check(*minimums, "minimums");
  w.m.codes = codes.data();
  w.m.scales = scales.data();
  w.m.minimums = minimums ? minimums->data() : nullptr;
  w.owners = {nb::ndarray<>(codes), nb::ndarray<>(scales)};
  if (minimums) w.owners.emplace_back(*minimums);
  return w;
}

WeightMatrix float_matrix(In<uint8_t, 1> bytes, int n, int k, const std::string& type) {
  require(type == "f32" || type == "bf16" || type == "f16",
          "type is '" + type + "'; f32, bf16 and f16 exist");
  require(n > 0 && k > 0, "n and k must be positive");
  const size_t want = static_cast<size_t>(n) * static_cast<size_t>(k) * (type == "f32" ? 4 : 2);
  require(bytes.shape(0) == want, "bytes has " + std::to_string(bytes.shape(0)) + " bytes; n*k " +
                                      type + " values take " + std::to_string(want) + "");
  WeightMatrix w;
  w.m.codes = bytes.data();
  w.m.n = n;
  w.m.k = w.m.k_pad = k;
  w.m.type = type == "f32"    ? WeightType::kF32
             : type == "bf16" ? WeightType::kBf16
                              : WeightType::kF16;
  w.owners = {nb::ndarray<>(bytes)};
  return w;
}

bool is_packed(const WeightMatrix& w) { return bits_of(w.m.type) != 0; }

template <class T>
Out<T> make_array(std::initializer_list<size_t> shape, T** data) {
  size_t size = 1;
  for (const size_t s : shape) size *= s;
  auto holder = std::make_unique<T[]>(size ? size : 1);
  *data = holder.get();
  nb::capsule owner(holder.release(), [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return Out<T>(*data, shape, owner);
}

Epilogue epilogue(const WeightMatrix& w, const Bias& bias, bool accumulate) {
  if (bias)
    require(bias->shape(0) == static_cast<size_t>(w.m.n),
            "bias must have n = " + std::to_string(w.m.n) + " values");
  return {bias ? bias->data() : nullptr, accumulate};
}

int64_t check_output(const Output& y, size_t rows, const WeightMatrix& w) {
  require(y.shape(0) == rows && y.shape(1) >= static_cast<size_t>(w.m.n) && y.stride(1) == 1 &&
              (rows < 2 || y.stride(0) >= w.m.n),
          "y must have shape [rows, >= n] with contiguous channels");
  return y.stride(0);
}

void check_range(int& begin, int& end, int limit) {
  if (end < 0) end = limit;
  require(0 <= begin && begin <= end && end <= limit, "range [" + std::to_string(begin) + ", " +
                                                          std::to_string(end) + ") is outside 0.." +
                                                          std::to_string(limit) + "");
}

nb::tuple quantize_rows(const std::string& level, In<float, 2> x, int k_pad) {
  const int rows = static_cast<int>(x.shape(0)), k = static_cast<int>(x.shape(1));
  require(k_pad >= k && k_pad % kActGroup == 0, "k_pad must be a multiple of 32, at least k");
  int8_t* codes;
  float* scales;
  int32_t* sums;
  const size_t groups = static_cast<size_t>(k_pad / kActGroup);
  auto c = make_array<int8_t>({x.shape(0), static_cast<size_t>(k_pad)}, &codes);
  auto s = make_array<float>({x.shape(0), groups}, &scales);
  auto t = make_array<int32_t>({x.shape(0), groups}, &sums);
  kernel_table(level).quantize_rows(x.data(), k, rows, k, k_pad, codes, scales, sums);
  return nb::make_tuple(c, s, t);
}

void linear_int8(const std::string& level, const WeightMatrix& w, In<int8_t, 2> codes,
                 In<float, 2> scales, In<int32_t, 2> sums, Output y, Bias bias, bool accumulate,
                 int block_begin, int block_end) {
  require(is_packed(w), "linear_int8 takes packed matrices");
  const size_t groups = static_cast<size_t>(w.m.k_pad / kActGroup);
  require(codes.shape(1) == static_cast<size_t>(w.m.k_pad) && scales.shape(0) == codes.shape(0) &&
              sums.shape(0) == codes.shape(0) && scales.shape(1) == groups &&
              sums.shape(1) == groups,
          "rows must be quantized with k_pad = " + std::to_string(w.m.k_pad) + "");
  check_range(block_begin, block_end, w.blocks());
  const int64_t stride = check_output(y, codes.shape(0), w);
  const QuantRows x{codes.data(), scales.data(), sums.data(), static_cast<int>(codes.shape(0)),
                    w.m.k_pad};
  const Epilogue e = epilogue(w, bias, accumulate);
  const KernelTable& table = kernel_table(level);
  nb::gil_scoped_release release;
  table.linear_int8(w.m, x, block_begin, block_end, y.data(), stride, e);
}

void linear_float(const std::string& level, const WeightMatrix& w, In<float, 2> x, Output y,
                  Bias bias, bool accumulate, int n_begin, int n_end) {
  require(!is_packed(w), "linear_float takes f32, bf16 or f16 matrices");
  require(x.shape(1) == static_cast<size_t>(w.m.k), "x must have k columns");
  check_range(n_begin, n_end, w.m.n);
  const int64_t stride = check_output(y, x.shape(0), w);
  const Epilogue e = epilogue(w, bias, accumulate);
  const KernelTable& table = kernel_table(level);
  nb::gil_scoped_release release;
  table.linear_float(w.m, x.data(), w.m.k, static_cast<int>(x.shape(0)), n_begin, n_end, y.data(),
                     stride, e);
}

Out<uint16_t> pack_rows_bf16(const std::string& level, In<float, 2> x) {
  const int rows = static_cast<int>(x.shape(0)), k = static_cast<int>(x.shape(1));
  const size_t steps = static_cast<size_t>((k + 31) / 32);
  uint16_t* out;
  auto array = make_array<uint16_t>({static_cast<size_t>((rows + 15) / 16), steps, 16, 32}, &out);
  kernel_table(level).pack_rows_bf16(x.data(), k, rows, k, static_cast<int>(steps) * 32, out);
  return array;
}

void linear_bf16(const std::string& level, const WeightMatrix& w, In<uint16_t, 4> x, int rows,
                 Output y, Bias bias, bool accumulate, int block_begin, int block_end) {
  require(is_packed(w), "linear_bf16 takes packed matrices");
  require(rows >= 0 && x.shape(0) == static_cast<size_t>((rows + 15) / 16) &&
              x.shape(1) == static_cast<size_t>((w.m.k + 31) / 32) && x.shape(2) == 16 &&
              x.shape(3) == 32,
          "x must come from pack_rows_bf16 with the same rows and k");
  check_range(block_begin, block_end, w.blocks());
  const int64_t stride = check_output(y, static_cast<size_t>(rows), w);
  const Epilogue e = epilogue(w, bias, accumulate);
  const KernelTable& table = kernel_table(level);
  const size_t bytes = static_cast<size_t>(table.bf16_scratch_bytes(w.m.k_pad));
  nb::gil_scoped_release release;
  const std::unique_ptr<char[]> scratch(new char[bytes + 64]);
  char* aligned = scratch.get() + (64 - reinterpret_cast<uintptr_t>(scratch.get()) % 64) % 64;
  table.linear_bf16(w.m, x.data(), rows, block_begin, block_end, aligned, y.data(), stride, e);
}

Out<float> dequantize_rows(const std::string& level, const WeightMatrix& w, In<int32_t, 1> ids,
                           float scale) {
  for (size_t i = 0; i < ids.shape(0); ++i)
    require(
        ids.data()[i] >= 0 && ids.data()[i] < w.m.n,
        "row " + std::to_string(ids.data()[i]) + " is outside 0.." + std::to_string(w.m.n) + "");
  float* out;
  auto array = make_array<float>({ids.shape(0), static_cast<size_t>(w.m.k)}, &out);
  kernel_table(level).dequantize_rows(w.m, ids.data(), static_cast<int>(ids.shape(0)), scale, out,
                                      w.m.k);
  return array;
}

}  // namespace

void bind_kernels_linear(nb::module_& m) {
  nb::module_ k = nb::cast<nb::module_>(m.attr("kernels"));
  nb::class_<WeightMatrix>(k, "Matrix", "A weight matrix over arrays that it keeps alive.")
      .def_static("packed", &packed_matrix, nb::arg("codes"), nb::arg("scales"),
                  nb::arg("minimums").none(), nb::arg("n"), nb::arg("k"), nb::arg("group"),
                  nb::arg("bits"),
                  "codes uint8 [N/16, K/8 or K/4, 64], scales and minimums fp16 viewed as uint16 "
                  "[N/16, K/group, 16].")
      .def_static("rows", &float_matrix, nb::arg("bytes"), nb::arg("n"), nb::arg("k"),
                  nb::arg("type"), "bytes uint8 [n*k*itemsize], row-major; type f32, bf16 or f16");
  k.def("quantize_rows", &quantize_rows, nb::arg("level"), nb::arg("x"), nb::arg("k_pad"),
        "f32 [rows, k] to (codes int8 [rows, k_pad], scales f32 and sums int32 [rows, k_pad/32])");
  k.def("linear_int8", &linear_int8, nb::arg("level"), nb::arg("w"), nb::arg("codes"),
        nb::arg("scales"), nb::arg("sums"), nb::arg("y"), nb::arg("bias").none() = nb::none(),
        nb::arg("accumulate") = false, nb::arg("block_begin") = 0, nb::arg("block_end") = -1,
        "Quantized rows times a packed matrix, into y f32 [rows, >= n]");
  k.def("linear_float", &linear_float, nb::arg("level"), nb::arg("w"), nb::arg("x"), nb::arg("y"),
        nb::arg("bias").none() = nb::none(), nb::arg("accumulate") = false, nb::arg("n_begin") = 0,
        nb::arg("n_end") = -1, "f32 rows [rows, k] times a row-major float matrix, into y");
  k.def("pack_rows_bf16", &pack_rows_bf16, nb::arg("level"), nb::arg("x"),
        "f32 [rows, k] to bf16 bits [ceil(rows/16), ceil(k/32), 16, 32]");
  k.def("linear_bf16", &linear_bf16, nb::arg("level"), nb::arg("w"), nb::arg("x"), nb::arg("rows"),
        nb::arg("y"), nb::arg("bias").none() = nb::none(), nb::arg("accumulate") = false,
        nb::arg("block_begin") = 0, nb::arg("block_end") = -1,
        "Rows of pack_rows_bf16 times a packed matrix in bf16 with f32 sums, into y");
  k.def("dequantize_rows", &dequantize_rows, nb::arg("level"), nb::arg("w"), nb::arg("ids"),
        nb::arg("scale") = 1.0f, "Rows `ids` of any matrix as f32 [count, k], times scale");
  k.def(
      "bf16_prefill", [](const std::string& level) { return kernel_table(level).bf16_prefill; },
      nb::arg("level"), "Whether prompt rows use linear_bf16 at this level");
}

}  // namespace ei

// Weight files, matrices and vectors as Python sees them.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>

#include "bindings/bindings.h"
#include "common/half.h"
#include "program/program.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ei {
namespace {

using FloatArray = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;

WeightMode to_mode(const std::string& name) {
  if (name == "mapped") return WeightMode::kMapped;
  if (name == "resident") return WeightMode::kResident;
  if (name == "locked") return WeightMode::kLocked;
  throw Error("invalid_parameter",
              "Unknown weight mode '" + name + "'; use mapped, resident or locked.");
}

int64_t float_size(const std::string& dtype) {
  if (dtype == "F32") return 4;
  if (dtype == "F16" || dtype == "BF16") return 2;
  throw Error("unsupported", "Float weights are F32, F16 or BF16, not '" + dtype + "'.");
}

// codes, scales and minimums of a packed matrix inside a map, checked against the file's size.
Weight packed_weight(std::shared_ptr<WeightMap> map, int64_t codes, int64_t scales,
                     std::optional<int64_t> minimums, int32_t n, int32_t k, int32_t group,
                     int bits) {
  require(n >= 1 && k >= 1 && n <= (1 << 28) && k <= (1 << 28),
          "A packed matrix needs N and K of 1 to 2^28");
  require(group == 32 || group == 64 || group == 128,
          "The group size is 32, 64 or 128, not " + std::to_string(group));
  require(bits == 4 || bits == 6 || bits == 8,
          "Packed weights have 4, 6 or 8 bits, not " + std::to_string(bits));
  const int64_t n_pad = (int64_t{n} + 15) / 16 * 16,
                k_pad = (int64_t{k} + group - 1) / group * group;
  const int64_t scale_bytes = n_pad * (k_pad / group) * 2;
  Weight w;
  w.matrix = {
      map->at(codes, n_pad * k_pad * bits / 8),
      reinterpret_cast<const uint16_t*>(map->at(scales, scale_bytes)),
      minimums ? reinterpret_cast<const uint16_t*>(map->at(*minimums, scale_bytes)) : nullptr,
      n,
      k,
      static_cast<int32_t>(k_pad),
      group,
      packed_type(bits)};
  w.owner = std::move(map);
  return w;
}

Weight float_weight(std::shared_ptr<WeightMap> map, int64_t offset, int32_t n, int32_t k,
                    const std::string& dtype) {
  require(n >= 1 && k >= 1, "A matrix needs N and K of at least 1");
  const int64_t size = float_size(dtype);
  Weight w;
  w.matrix = {map->at(offset, int64_t{n} * k * size),
              nullptr,
              nullptr,
              n,
              k,
              k,
              0,
              dtype == "F32"   ? WeightType::kF32
              : dtype == "F16" ? WeightType::kF16
                               : WeightType::kBf16};
  w.owner = std::move(map);
  return w;
}

Vector make_vector(std::vector<float> values) {
  auto owned = std::make_shared<std::vector<float>>(std::move(values));
  return {owned->data(), static_cast<int64_t>(owned->size()), owned};
}

// An aligned f32 vector is read where it lies; anything else is converted (norms and biases are
// small).
Vector map_vector(std::shared_ptr<WeightMap> map, int64_t offset, int64_t n,
                  const std::string& dtype) {
  require(n >= 1, "A vector needs at least one element");
  const uint8_t* data = map->at(offset, n * float_size(dtype));
  if (dtype == "F32" && reinterpret_cast<uintptr_t>(data) % 4 == 0)
    return {reinterpret_cast<const float*>(data), n, std::move(map), {data, 4 * n}};
  std::vector<float> values(n);
  for (int64_t i = 0; i < n; ++i) {
    uint16_t half;
    if (dtype == "F32") {
      std::memcpy(&values[i], data + 4 * i, 4);
    } else if (std::memcpy(&half, data + 2 * i, 2); dtype == "F16") {
      values[i] = half_to_float(half);
    } else {
      values[i] = bf16_to_float(half);
    }
  }
  Vector v = make_vector(std::move(values));
  v.source = {data, n * float_size(dtype)};
  return v;
}

// What a matrix reads, as (address, bytes).
using Regions = std::vector<std::pair<uintptr_t, int64_t>>;
Regions regions(const Weight& w) {
  const Matrix& m = w.matrix;
  const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  const int64_t values = int64_t{m.n} * m.k;
  if (m.group == 0) return {{address(m.codes), values * (m.type == WeightType::kF32 ? 4 : 2)}};
  const int64_t n_pad = (int64_t{m.n} + kBlockN - 1) / kBlockN * kBlockN;
  const int64_t scales = n_pad * (m.k_pad / m.group) * 2;
  Regions out = {{address(m.codes), n_pad * m.k_pad * bits_of(m.type) / 8},
                 {address(m.scales), scales}};
  if (m.minimums != nullptr) out.emplace_back(address(m.minimums), scales);
  return out;
}

Regions regions(const Vector& v) {
  if (v.source.bytes == 0) return {};
  return {{reinterpret_cast<uintptr_t>(v.source.data), v.source.bytes}};
}

}  // namespace

void bind_weights(nb::module_& m) {
  nb::class_<Weight>(m, "Weight", "One matrix [n, k] with what keeps its memory alive.")
      .def_prop_ro("n", [](const Weight& w) { return w.matrix.n; })
      .def_prop_ro("k", [](const Weight& w) { return w.matrix.k; })
      .def_prop_ro(
          "regions", [](const Weight& w) { return regions(w); },
          "The (address, bytes) that reading the whole matrix reads.")
      .def_static(
          "from_numpy",
          [](const FloatArray& a) {
            require(a.ndim() == 2 && a.size() > 0, "A matrix has two dimensions");
            auto copy = std::make_shared<std::vector<float>>(a.data(), a.data() + a.size());
            Weight w;
            const auto n = static_cast<int32_t>(a.shape(0)), k = static_cast<int32_t>(a.shape(1));
            w.matrix = {copy->data(), nullptr, nullptr, n, k, k, 0, WeightType::kF32};
            w.owner = std::move(copy);
            return w;
          },
          "array"_a, "A copy of an f32 array [n, k].");
  nb::class_<Vector>(m, "Vector", "One f32 vector with what keeps its memory alive.")
      .def(nb::init<>())
      .def_prop_ro("size", [](const Vector& v) { return v.size; })
      .def_prop_ro(
          "regions", [](const Vector& v) { return regions(v); },
          "The (address, bytes) of the weight file that the vector is, or was converted from.")
      .def("numpy",
           [](const Vector& v) {
             auto* copy = new std::vector<float>(v.data, v.data + v.size);
             nb::capsule owner(
                 copy, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
             return nb::ndarray<nb::numpy, float>(copy->data(), {static_cast<size_t>(v.size)},
                                                  owner);
           })
      .def_static("from_numpy", [](const FloatArray& a) {
        return make_vector(std::vector<float>(a.data(), a.data() + a.size()));
      });

  nb::class_<WeightMap>(
      m, "WeightMap",
      "One weight file in memory. mode: mapped (page cache, shared), resident (anonymous copy, "
      "huge pages) or locked (mapped and mlocked).")
      .def(
          "__init__",
          [](WeightMap* self, const std::string& path, const std::string& mode) {
            new (self) WeightMap(path, to_mode(mode));
          },
          "path"_a, "mode"_a = "mapped")
      .def_prop_ro("path", &WeightMap::path)
      .def_prop_ro("size", &WeightMap::size)
      .def_prop_ro("address",
                   [](const WeightMap& w) { return reinterpret_cast<uintptr_t>(w.data()); })
      .def_prop_ro("lost", &WeightMap::lost)
      .def(
          "packed",
          [](std::shared_ptr<WeightMap> self, int64_t codes, int64_t scales,
             std::optional<int64_t> minimums, int32_t n, int32_t k, int32_t group, int bits) {
            return packed_weight(std::move(self), codes, scales, minimums, n, k, group, bits);
          },
          "codes"_a, "scales"_a, "minimums"_a.none(), "n"_a, "k"_a, "group"_a, "bits"_a,
          "A packed matrix by the byte offsets of its tensors.")
      .def(
          "matrix",
          [](std::shared_ptr<WeightMap> self, int64_t offset, int32_t n, int32_t k,
             const std::string& dtype) {
            return float_weight(std::move(self), offset, n, k, dtype);
          },
          "offset"_a, "n"_a, "k"_a, "dtype"_a, "A row-major F32, F16 or BF16 matrix.")
      .def(
          "vector",
          [](std::shared_ptr<WeightMap> self, int64_t offset, int64_t n, const std::string& dtype) {
            return map_vector(std::move(self), offset, n, dtype);
          },
          "offset"_a, "n"_a, "dtype"_a);
}

}  // namespace ei

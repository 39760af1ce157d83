// Linears that run on the caller's OpenMP threads, as torch operations call them: by a handle and
// by addresses, so that a call costs little more than the work.
#include "linear/packed_experts.h"
#include "linear/packed_linear.h"
#include "program/large_pages.h"
#include "program/map_guard.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/matrix.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ei {
namespace {

using Bias = std::optional<nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>>;

// Names living objects of one class by numbers. The mark in the upper half makes a stray one fail.
template <class T>
class Handles {
 public:
  Handles(const char* what, int32_t mark) : what_(what), mark_(int64_t{mark} << 32) {}

  int64_t add(const T* object) {
    std::lock_guard<std::mutex> lock(mutex_);
    objects_.push_back(object);
    return mark_ | static_cast<int64_t>(objects_.size() - 1);
  }
  void remove(int64_t handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    objects_[index(handle)] = nullptr;
  }
  const T& at(uintptr_t address) {
    int64_t handle;
    std::memcpy(&handle, reinterpret_cast<const void*>(address), sizeof handle);
    std::lock_guard<std::mutex> lock(mutex_);
    if ((handle & ~kIndex) != mark_ || index(handle) >= objects_.size() ||
        objects_[index(handle)] == nullptr)
      throw Error("execution_failed",
                  std::string(what_) + " has the handle " + std::to_string(handle) + ".");
    return *objects_[index(handle)];
  }

 private:
  static constexpr int64_t kIndex = 0x7fffffff;
  static size_t index(int64_t handle) { return static_cast<size_t>(handle & kIndex); }

  const char* what_;
  const int64_t mark_;
  std::mutex mutex_;
  std::vector<const T*> objects_;
};

using Guards = std::vector<std::shared_ptr<MapGuard>>;

struct Linear {
  std::vector<WeightMatrix> matrices;
  Guards guards;  // of the files that the matrices lie in
  PackedLinear linear;
  int64_t handle;

  static Handles<Linear>& handles() {
    static Handles<Linear> all("No linear", 0x45644c6e);
    return all;
  }

  static std::vector<Matrix> segments(const std::vector<WeightMatrix>& matrices) {
    std::vector<Matrix> out;
    for (const WeightMatrix& w : matrices) out.push_back(w.m);
    return out;
  }
  static std::vector<float> values(const Bias& bias) {
    return bias ? std::vector<float>(bias->data(), bias->data() + bias->size())
                : std::vector<float>();
  }

  Linear(std::vector<WeightMatrix> parts, const Bias& bias, Guards files, const std::string& level,
         std::optional<bool> bf16_prefill)
      : matrices(std::move(parts)),
        guards(std::move(files)),
        linear(segments(matrices), values(bias), level, bf16_prefill),
        handle(handles().add(this)) {}
  ~Linear() { handles().remove(handle); }
  Linear(const Linear&) = delete;
  Linear& operator=(const Linear&) = delete;
};

struct Experts {
  std::vector<std::shared_ptr<Linear>> gate_up, down;
  Guards guards;
  PackedExperts experts;
  int64_t handle;

  static Handles<Experts>& handles() {
    static Handles<Experts> all("No experts", 0x45644578);
    return all;
  }

  static Guards union_of(const std::vector<std::shared_ptr<Linear>>& a,
                         const std::vector<std::shared_ptr<Linear>>& b) {
    Guards out;
    for (const auto* list : {&a, &b})
      for (const auto& l : *list)
        for (const auto& guard : l->guards)
          if (std::find(out.begin(), out.end(), guard) == out.end()) out.push_back(guard);
    return out;
  }
  static std::vector<const PackedLinear*> plain(const std::vector<std::shared_ptr<Linear>>& all) {
    std::vector<const PackedLinear*> out;
    for (const auto& l : all) out.push_back(&l->linear);
    return out;
  }
  static Activation activation(const std::string& name) {
    if (name == "silu") return Activation::kSilu;
    if (name == "gelu") return Activation::kGelu;
    if (name == "gelu_tanh") return Activation::kGeluTanh;
    if (name == "relu") return Activation::kRelu;
    throw Error("unsupported", "Experts have silu, gelu, gelu_tanh or relu, not '" + name + "'.");
  }

  Experts(std::vector<std::shared_ptr<Linear>> g, std::vector<std::shared_ptr<Linear>> d,
          const std::string& name)
      : gate_up(std::move(g)),
        down(std::move(d)),
        guards(union_of(gate_up, down)),
        experts(plain(gate_up), plain(down), activation(name)),
        handle(handles().add(this)) {}
  ~Experts() { handles().remove(handle); }
  Experts(const Experts&) = delete;
  Experts& operator=(const Experts&) = delete;
};

FloatType float_type(int type) {
  require(type >= 0 && type <= 2,
          "Float types are 0 (f32), 1 (bf16) and 2 (f16), not " + std::to_string(type));
  return static_cast<FloatType>(type);
}

// What was computed from pages that could not be read is no result.
void check(const Guards& guards) {
  for (const auto& guard : guards) guard->check();
}

void run(const Linear& layer, uintptr_t x, int x_type, int64_t x_stride, int64_t rows,
         int64_t decode_rows, bool with_bias, uintptr_t y, int y_type, int64_t y_stride) {
  const PackedLinear& l = layer.linear;
  require(rows >= 0 && x_stride >= l.k() && y_stride >= l.n(),
          "rows of x have K = " + std::to_string(l.k()) +
              " values, rows of y N = " + std::to_string(l.n()));
  const FloatRows input{reinterpret_cast<const void*>(x), x_stride, float_type(x_type)};
  const FloatType output = float_type(y_type);
  nb::gil_scoped_release release;
  l.run(input, rows, decode_rows, with_bias, reinterpret_cast<void*>(y), y_stride, output);
  check(layer.guards);
}

void lookup(const Linear& layer, uintptr_t ids, int64_t count, uintptr_t y, int y_type) {
  const PackedLinear& l = layer.linear;
  const FloatType output = float_type(y_type);
  nb::gil_scoped_release release;
  l.lookup(reinterpret_cast<const int64_t*>(ids), count, reinterpret_cast<void*>(y), l.k(), output);
  check(layer.guards);
}

}  // namespace

void bind_linear(nb::module_& m) {
  m.def(
      "ask_for_large_pages",
      [](uintptr_t address, size_t bytes) {
        ask_for_large_pages(reinterpret_cast<uint8_t*>(address), bytes);
      },
      "address"_a, "bytes"_a, nb::call_guard<nb::gil_scoped_release>(),
      "Asks that a mapped file is read into pages of 2 MiB, which may read one of them: guard it "
      "before.");
  nb::class_<MapGuard>(m, "MapGuard", nb::is_weak_referenceable(),
                       "Pages of a mapped file that cannot be read become zeros, not a SIGBUS; "
                       "what is computed from them is a WeightsLostError.")
      .def(
          "__init__",
          [](MapGuard* self, uintptr_t address, size_t bytes, const std::string& path) {
            new (self) MapGuard(reinterpret_cast<const void*>(address), bytes, path);
          },
          "address"_a, "bytes"_a, "path"_a, "The map must outlive the guard.")
      .def_prop_ro("path", &MapGuard::path)
      .def_prop_ro("lost", &MapGuard::lost)
      .def("check", &MapGuard::check, "Raises WeightsLostError once a page could not be read.");
  nb::class_<Linear>(m, "Linear",
                     "Matrices side by side (kernels.Matrix, one K) as one linear layer that runs "
                     "on the OpenMP threads of the calling thread.")
      .def(nb::init<std::vector<WeightMatrix>, const Bias&, Guards, const std::string&,
                    std::optional<bool>>(),
           "matrices"_a, "bias"_a = nb::none(), "guards"_a = Guards(), "level"_a = "",
           "bf16_prefill"_a = nb::none(),
           "bias: f32 [N]. guards: of the files behind the matrices. level: \"\" is the active ISA "
           "level. bf16_prefill: None is what the level prefers.")
      .def_prop_ro("n", [](const Linear& l) { return l.linear.n(); })
      .def_prop_ro("k", [](const Linear& l) { return l.linear.k(); })
      .def_prop_ro("bf16_prefill", [](const Linear& l) { return l.linear.bf16_prefill(); })
      .def_prop_ro(
          "handle", [](const Linear& l) { return l.handle; },
          "Names this linear in linear_run and linear_lookup for as long as it lives.");
  m.def(
      "linear_run",
      [](uintptr_t handle, uintptr_t x, int x_type, int64_t x_stride, int64_t rows,
         int64_t decode_rows, bool with_bias, uintptr_t y, int y_type, int64_t y_stride) {
        run(Linear::handles().at(handle), x, x_type, x_stride, rows, decode_rows, with_bias, y,
            y_type, y_stride);
      },
      "handle"_a, "x"_a, "x_type"_a, "x_stride"_a, "rows"_a, "decode_rows"_a, "with_bias"_a, "y"_a,
      "y_type"_a, "y_stride"_a,
      "y [rows, N] = x [rows, K] times the linear whose handle (int64) lies at an address. x and y "
      "are addresses, types 0 f32, 1 bf16, 2 f16, strides in elements. Rows before decode_rows "
      "have decode numerics.");
  m.def(
      "linear_lookup",
      [](uintptr_t handle, uintptr_t ids, int64_t count, uintptr_t y, int y_type) {
        lookup(Linear::handles().at(handle), ids, count, y, y_type);
      },
      "handle"_a, "ids"_a, "count"_a, "y"_a, "y_type"_a,
      "y [count, K] = rows `ids` (int64) of the linear's first matrix.");
  nb::class_<Experts>(
      m, "Experts",
      "Routed experts: for each a Linear gate_up [2*I, H], gate first, and a Linear "
      "down [H, I].")
      .def(nb::init<std::vector<std::shared_ptr<Linear>>, std::vector<std::shared_ptr<Linear>>,
                    const std::string&>(),
           "gate_up"_a, "down"_a, "activation"_a)
      .def_prop_ro(
          "handle", [](const Experts& e) { return e.handle; },
          "Names these experts in experts_run for as long as they live.");
  m.def(
      "experts_run",
      [](uintptr_t handle, uintptr_t x, int x_type, int64_t x_stride, int64_t rows,
         int64_t decode_rows, uintptr_t ids, uintptr_t weights, int top, bool weight_input,
         uintptr_t y, int y_type) {
        const Experts& all = Experts::handles().at(handle);
        const PackedExperts& e = all.experts;
        require(rows >= 0 && top >= 1 && x_stride >= e.width(),
                "rows of x have H = " + std::to_string(e.width()) + " values");
        const FloatRows input{reinterpret_cast<const void*>(x), x_stride, float_type(x_type)};
        const FloatType output = float_type(y_type);
        nb::gil_scoped_release release;
        e.run(input, rows, decode_rows, reinterpret_cast<const int32_t*>(ids),
              reinterpret_cast<const float*>(weights), top, weight_input,
              reinterpret_cast<void*>(y), e.width(), output);
        check(all.guards);
      },
      "handle"_a, "x"_a, "x_type"_a, "x_stride"_a, "rows"_a, "decode_rows"_a, "ids"_a, "weights"_a,
      "top"_a, "weight_input"_a, "y"_a, "y_type"_a,
      "y [rows, H]: the weighted sum of each row's experts. ids int32 and weights f32 [rows, top]; "
      "an id outside the experts adds nothing.");
  m.def(
      "linear_threads",
      [] {
        const LinearThreads t = linear_threads();
        return std::pair(t.library, t.threads);
      },
      "(the OpenMP library that linears of this thread run on, \"\" for none; how many threads).");
}

}  // namespace ei

// Team, weight files, KV pool and programs as Python sees them.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>
#include <tuple>

#include "bindings/bindings.h"
#include "common/error.h"
#include "program/program.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ei {
namespace {

using IntArray = nb::ndarray<const int32_t, nb::c_contig, nb::device::cpu>;
using FloatArray = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using RefTuple = std::tuple<int32_t, int32_t, int32_t>;

Ref to_ref(const RefTuple& t) { return {std::get<0>(t), std::get<1>(t), std::get<2>(t)}; }

void require(bool ok, const std::string& what) {
  if (!ok) throw Error("invalid_parameter", what + ".");
}

WeightMode to_mode(const std::string& name) {
  if (name == "mapped") return WeightMode::kMapped;
  if (name == "resident") return WeightMode::kResident;
  if (name == "locked") return WeightMode::kLocked;
  throw Error("invalid_parameter",
              "Unknown weight mode '" + name + "'; use mapped, resident or locked.");
}

KvType to_kv_type(const std::string& name) {
  if (name == "f16") return KvType::kF16;
  if (name == "bf16") return KvType::kBf16;
  throw Error("invalid_parameter", "Unknown KV dtype '" + name + "'; use f16 or bf16.");
}

Activation to_activation(const std::string& name) {
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  if (name == "sigmoid") return Activation::kSigmoid;
  if (name == "relu") return Activation::kRelu;
  if (name.empty()) return Activation::kNone;
  throw Error("unsupported", "Unknown activation '" + name + "'.");
}

OpKind to_kind(const std::string& name) {
  static const std::pair<const char*, OpKind> kinds[] = {{"embed", OpKind::kEmbed},
                                                         {"linear", OpKind::kLinear},
                                                         {"rms_norm", OpKind::kRmsNorm},
                                                         {"layer_norm", OpKind::kLayerNorm},
                                                         {"rope", OpKind::kRope},
                                                         {"kv_store", OpKind::kKvStore},
                                                         {"attention", OpKind::kAttention},
                                                         {"activation", OpKind::kActivation},
                                                         {"glu", OpKind::kGlu},
                                                         {"add", OpKind::kAdd},
                                                         {"mul", OpKind::kMul},
                                                         {"scale", OpKind::kScale},
                                                         {"softcap", OpKind::kSoftcap},
                                                         {"head_gate", OpKind::kHeadGate},
                                                         {"gather", OpKind::kGather}};
  for (const auto& [text, kind] : kinds)
    if (name == text) return kind;
  throw Error("invalid_parameter", "Unknown operation '" + name + "'.");
}

int64_t float_size(const std::string& dtype) {
  if (dtype == "F32") return 4;
  if (dtype == "F16" || dtype == "BF16") return 2;
  throw Error("unsupported", "Float weights are F32, F16 or BF16, not '" + dtype + "'.");
}

float half_to_float(uint16_t h) {
  const uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
  uint32_t bits;
  if (exponent == 31)
    bits = 0x7f800000u | (mantissa << 13);
  else if (exponent != 0)
    bits = ((exponent + 112) << 23) | (mantissa << 13);
  else {
    const float value = static_cast<float>(mantissa) / 16777216.0f;
    std::memcpy(&bits, &value, 4);
  }
  bits |= sign;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

// codes, scales and minimums of a packed matrix inside a map, checked against the file's size.
Weight packed_weight(std::shared_ptr<WeightMap> map, int64_t codes, int64_t scales,
                     std::optional<int64_t> minimums, int32_t n, int32_t k, int32_t group,
                     int bits) {
  require(n >= 1 && k >= 1 && n <= (1 << 28) && k <= (1 << 28),
          "A packed matrix needs N and K of 1 to 2^28");
  require(group == 32 || group == 64 || group == 128,
          "The group size is 32, 64 or 128, not " + std::to_string(group));
  require(bits == 4 || bits == 8, "Packed weights have 4 or 8 bits, not " + std::to_string(bits));
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
      bits == 4 ? WeightType::kQ4 : WeightType::kQ8};
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
    return {reinterpret_cast<const float*>(data), n, std::move(map)};
  std::vector<float> values(n);
  for (int64_t i = 0; i < n; ++i) {
    uint16_t half;
    if (dtype == "F32") {
      std::memcpy(&values[i], data + 4 * i, 4);
    } else if (std::memcpy(&half, data + 2 * i, 2); dtype == "F16") {
      values[i] = half_to_float(half);
    } else {
      const uint32_t bits = uint32_t{half} << 16;
      std::memcpy(&values[i], &bits, 4);
    }
  }
  return make_vector(std::move(values));
}

class StepArrays {
 public:
  explicit StepArrays(const Program& p) : program_(p) {}

  StepInput input(const IntArray& tokens, int decode_rows, const IntArray& positions,
                  const IntArray& cache_index, const IntArray& visible_end,
                  const IntArray& sequence, const std::vector<IntArray>& tables,
                  const std::vector<IntArray>& lengths, const IntArray& output_rows,
                  const std::optional<FloatArray>& embeds) {
    StepInput in;
    in.rows = static_cast<int32_t>(tokens.size());
    in.decode_rows = decode_rows;
    in.tokens = tokens.data();
    require(
        positions.size() == tokens.size() * program_.spec().position_axes,
        "positions must have " + std::to_string(program_.spec().position_axes) + " x rows entries");
    require(cache_index.size() == tokens.size() && visible_end.size() == tokens.size() &&
                sequence.size() == tokens.size(),
            "cache_index, visible_end and sequence need one entry a row");
    in.positions = positions.data();
    in.cache_index = cache_index.data();
    in.visible_end = visible_end.data();
    in.sequence = sequence.data();
    in.output_rows = output_rows.data();
    in.outputs = static_cast<int32_t>(output_rows.size());
    if (embeds) {
      require(embeds->ndim() == 2 &&
                  embeds->shape(1) == static_cast<size_t>(program_.spec().embed_width),
              "embeds must be [rows, " + std::to_string(program_.spec().embed_width) + "]");
      in.embeds = embeds->data();
      in.embed_rows = static_cast<int32_t>(embeds->shape(0));
    }
    require(tables.size() == lengths.size(), "one length array for each block table");
    in.sequences = tables.empty() ? 1 : static_cast<int32_t>(lengths[0].size());
    if (tables.empty())
      for (size_t r = 0; r < tokens.size(); ++r)
        in.sequences = std::max(in.sequences, sequence.data()[r] + 1);
    for (size_t g = 0; g < tables.size(); ++g) {
      require(tables[g].ndim() == 2 && static_cast<int32_t>(tables[g].shape(0)) == in.sequences &&
                  static_cast<int32_t>(lengths[g].size()) == in.sequences,
              "block tables are [sequences, blocks]");
      in.groups.push_back(
          {tables[g].data(), static_cast<int32_t>(tables[g].shape(1)), lengths[g].data()});
    }
    return in;
  }

 private:
  const Program& program_;
};

}  // namespace

void bind_program(nb::module_& m) {
  m.attr("KV_BLOCK") = kKvBlock;

  nb::class_<Team>(m, "Team",
                   "A persistent team of threads; cpus: where to pin them, empty for nowhere.")
      .def(nb::init<int, std::vector<int>>(), "threads"_a, "cpus"_a = std::vector<int>{})
      .def_prop_ro("threads", &Team::threads)
      .def_prop_ro("cpus", &Team::cpus);

  nb::class_<Weight>(m, "Weight", "One matrix [n, k] with what keeps its memory alive.")
      .def_prop_ro("n", [](const Weight& w) { return w.matrix.n; })
      .def_prop_ro("k", [](const Weight& w) { return w.matrix.k; })
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

  nb::class_<KvPool>(
      m, "KvPool",
      "The memory of the paged KV cache; groups are (layers, kv_heads, head_dim, blocks).")
      .def(
          "__init__",
          [](KvPool* self, const std::vector<std::tuple<int, int, int, int>>& groups,
             const std::string& dtype) {
            std::vector<KvGroupSpec> specs;
            for (const auto& [layers, heads, dim, blocks] : groups)
              specs.push_back({layers, heads, dim, blocks});
            new (self) KvPool(std::move(specs), to_kv_type(dtype));
          },
          "groups"_a, "dtype"_a = "f16")
      .def_static(
          "block_bytes",
          [](int layers, int heads, int dim) {
            return KvPool::block_bytes({layers, heads, dim, 1});
          },
          "layers"_a, "kv_heads"_a, "head_dim"_a,
          "Bytes of one block of KV_BLOCK tokens across the layers of a group.")
      .def_prop_ro("bytes", &KvPool::bytes)
      .def_prop_ro("address", [](const KvPool& p) { return reinterpret_cast<uintptr_t>(p.data()); })
      .def(
          "release",
          [](KvPool& p, int group, const IntArray& blocks) {
            p.release(group, blocks.data(), static_cast<int>(blocks.size()));
          },
          "group"_a, "blocks"_a)
      .def("copy", &KvPool::copy, "group"_a, "source"_a, "target"_a);

  nb::class_<Op>(m, "Op",
                 "One operation; see native/program/program.h for the meaning of each field.")
      .def(
          "__init__",
          [](Op* self, const std::string& kind) { (new (self) Op())->kind = to_kind(kind); },
          "kind"_a)
      .def(
          "set_operands",
          [](Op& o, const RefTuple& in, const RefTuple& in2, const RefTuple& out) {
            o.in = to_ref(in);
            o.in2 = to_ref(in2);
            o.out = to_ref(out);
          },
          "in_"_a, "in2"_a, "out"_a)
      .def("set_activation",
           [](Op& o, const std::string& name) { o.activation = to_activation(name); })
      .def_rw("weights", &Op::weights)
      .def_rw("biases", &Op::biases)
      .def_rw("weight", &Op::weight)
      .def_rw("bias", &Op::bias)
      .def_rw("prologue", &Op::prologue)
      .def_rw("accumulate", &Op::accumulate)
      .def_rw("eps", &Op::eps)
      .def_rw("weight_offset", &Op::weight_offset)
      .def_rw("factor", &Op::factor)
      .def_rw("softcap", &Op::softcap)
      .def_rw("heads", &Op::heads)
      .def_rw("head_dim", &Op::head_dim)
      .def_rw("kv_heads", &Op::kv_heads)
      .def_rw("table", &Op::table)
      .def_rw("interleaved", &Op::interleaved)
      .def_rw("group", &Op::group)
      .def_rw("layer", &Op::layer)
      .def_rw("window", &Op::window)
      .def_rw("full", &Op::full);

  nb::class_<Program>(
      m, "Program",
      "An operation list with its buffers; step() runs it once with the GIL released.")
      .def(
          "__init__",
          [](Program* self, std::shared_ptr<Team> team, std::shared_ptr<KvPool> pool,
             std::vector<std::shared_ptr<WeightMap>> maps, int max_rows, int max_outputs,
             int position_axes, int embed_width, int64_t arena_bytes,
             const std::vector<std::tuple<int, int64_t, int, int64_t>>& buffers,
             std::vector<Op> ops, std::vector<Op> prologues,
             const std::vector<std::tuple<std::vector<float>, std::vector<int32_t>, float>>&
                 tables) {
            ProgramSpec s;
            s.max_rows = max_rows;
            s.max_outputs = max_outputs;
            s.position_axes = position_axes;
            s.embed_width = embed_width;
            s.arena_bytes = arena_bytes;
            for (const auto& [width, stride, space, offset] : buffers)
              s.buffers.push_back({width, stride, static_cast<Space>(space), offset});
            s.ops = std::move(ops);
            s.prologues = std::move(prologues);
            for (const auto& [frequency, axis, factor] : tables)
              s.tables.push_back({frequency, axis, factor});
            new (self) Program(std::move(s), std::move(team), std::move(pool), std::move(maps));
          },
          "team"_a, "pool"_a.none(), "maps"_a, "max_rows"_a, "max_outputs"_a, "position_axes"_a,
          "embed_width"_a, "arena_bytes"_a, "buffers"_a, "ops"_a, "prologues"_a, "tables"_a)
      .def(
          "step",
          [](Program& p, const IntArray& tokens, int decode_rows, const IntArray& positions,
             const IntArray& cache_index, const IntArray& visible_end, const IntArray& sequence,
             const std::vector<IntArray>& tables, const std::vector<IntArray>& lengths,
             const IntArray& output_rows, const std::optional<FloatArray>& embeds) {
            const StepInput in =
                StepArrays(p).input(tokens, decode_rows, positions, cache_index, visible_end,
                                    sequence, tables, lengths, output_rows, embeds);
            nb::gil_scoped_release release;
            p.step(in);
          },
          "tokens"_a, "decode_rows"_a, "positions"_a, "cache_index"_a, "visible_end"_a,
          "sequence"_a, "tables"_a, "lengths"_a, "output_rows"_a, "embeds"_a.none() = nb::none(),
          "Runs one step. tokens, cache_index, visible_end, sequence: int32 [rows]; positions: "
          "int32 [axes, rows]; "
          "tables: int32 [sequences, blocks] for each KV group; lengths: int32 [sequences] for "
          "each group.")
      .def(
          "output",
          [](nb::object self, int buffer) {
            const Program& p = nb::cast<const Program&>(self);
            require(buffer >= 0 && buffer < static_cast<int>(p.spec().buffers.size()),
                    "no such buffer");
            const Buffer& b = p.spec().buffers[buffer];
            const size_t rows = b.space == Space::kRows ? p.last_rows() : p.last_outputs();
            const int64_t strides[2] = {b.stride, 1};
            const size_t shape[2] = {rows, static_cast<size_t>(b.width)};
            return nb::ndarray<nb::numpy, const float>(p.row(buffer, 0), 2, shape, self, strides);
          },
          "buffer"_a, "A view [rows, width] of a named output; valid until the next step.")
      .def_prop_ro("activation_bytes", &Program::activation_bytes)
      .def_prop_ro("scratch_bytes", &Program::scratch_bytes)
      .def_prop_ro("isa", [](const Program& p) { return std::string(p.kernels().name); })
      .def("set_profiling", &Program::set_profiling, "on"_a)
      .def_prop_ro("op_seconds", &Program::op_seconds);
}

}  // namespace ei

// Team, KV pool and programs as Python sees them.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/sequence_rows.h"
#include "common/error.h"
#include "program/program.h"
#include "team/share.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ei {
namespace {

using IntArray = nb::ndarray<const int32_t, nb::c_contig, nb::device::cpu>;
using FloatArray = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using RefTuple = std::tuple<int32_t, int32_t, int32_t>;

Ref to_ref(const RefTuple& t) { return {std::get<0>(t), std::get<1>(t), std::get<2>(t)}; }

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
      .def_prop_ro("cpus", &Team::cpus)
      .def(
          "share",
          [](Team& team, int total, int unit) {
            if (total < 0 || unit < 1)
              throw Error("invalid_parameter", "There are no blocks to share.");
            std::vector<std::atomic<uint64_t>> taken(team.threads());
            std::vector<std::vector<std::pair<int, int>>> pieces(team.threads());
            auto work = [&](int thread, int threads) {
              share_blocks(total, unit, thread, threads, {taken.data(), 1},
                           [&](int begin, int end) { pieces[thread].emplace_back(begin, end); });
            };
            team.run([](void* f, int thread,
                        int threads) { (*static_cast<decltype(work)*>(f))(thread, threads); },
                     &work);
            return pieces;
          },
          "total"_a, "unit"_a, nb::call_guard<nb::gil_scoped_release>(),
          "How an operation of `total` blocks, taken `unit` at a time, is shared out in one run: "
          "the "
          "pieces (begin, end) of each thread in its order.");

  using Seconds = std::chrono::duration<double>;
  const auto time = [](double seconds) {
    return std::chrono::duration_cast<Elastic::Clock::duration>(Seconds(seconds));
  };
  nb::class_<Elastic>(m, "Elastic", "How many threads of a team run a step; times in seconds.")
      .def(nb::init<int>(), "threads"_a)
      .def(
          "threads",
          [time](const Elastic& e, double now) {
            return e.threads(Elastic::Clock::time_point(time(now)));
          },
          "now"_a, "For a step that starts now.")
      .def(
          "finished",
          [time](Elastic& e, int threads, double begin, double end, double stalled) {
            e.finished(threads, Elastic::Clock::time_point(time(begin)),
                       Elastic::Clock::time_point(time(end)), time(stalled));
          },
          "threads"_a, "begin"_a, "end"_a, "stalled"_a,
          "What came of it; stalled: the time that its threads together waited beyond a spin.");

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
            new (self) KvPool(std::move(specs), kv_type_named(dtype));
          },
          "groups"_a, "dtype"_a = "f16")
      .def_static(
          "block_bytes",
          [](int layers, int heads, int dim, const std::string& dtype) {
            return KvPool::block_bytes({layers, heads, dim, 1}, kv_type_named(dtype));
          },
          "layers"_a, "kv_heads"_a, "head_dim"_a, "dtype"_a = "f16",
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
          "step_sequences",
          [](Program& p, nb::handle pieces) {
            const SequenceRows rows(p, pieces);
            const StepInput in = rows.input();
            {
              nb::gil_scoped_release release;
              p.step(in);
            }
            return rows.outputs();
          },
          "pieces"_a,
          "Runs one step over sequences of text, each a tuple (tokens, start, count, prompt, "
          "blocks, "
          "wants_output, every_output) as engine.runner.Piece has them, and returns (piece, token "
          "position) of each output row.")
      .def(
          "output",
          [](nb::object self, int buffer, bool all) {
            const Program& p = nb::cast<const Program&>(self);
            require(buffer >= 0 && buffer < static_cast<int>(p.spec().buffers.size()),
                    "no such buffer");
            const Buffer& b = p.spec().buffers[buffer];
            const bool wide = b.space == Space::kRows;
            const size_t rows = all ? (wide ? p.spec().max_rows : p.spec().max_outputs)
                                    : (wide ? p.last_rows() : p.last_outputs());
            const int64_t strides[2] = {b.stride, 1};
            const size_t shape[2] = {rows, static_cast<size_t>(b.width)};
            return nb::ndarray<nb::numpy, const float>(p.row(buffer, 0), 2, shape, self, strides);
          },
          "buffer"_a, "all"_a = false,
          "A view [rows, width] of a named output; valid until the next step. all: as many rows as "
          "any step can have.")
      .def_prop_ro("activation_bytes", &Program::activation_bytes)
      .def_prop_ro("scratch_bytes", &Program::scratch_bytes)
      .def_prop_ro(
          "memory",
          [](const Program& p) {
            std::vector<std::tuple<std::string, uintptr_t, int64_t, bool>> all;
            for (const Program::Memory& m : p.memory())
              all.emplace_back(m.name, reinterpret_cast<uintptr_t>(m.data), m.bytes, m.heap);
            return all;
          },
          "The program's own memory: (name, address, bytes, whether it is on the C heap).")
      .def_prop_ro("isa", [](const Program& p) { return std::string(p.kernels().name); })
      .def("set_profiling", &Program::set_profiling, "on"_a,
           "Times the operations of each step from now on; starts at zero again.")
      .def_prop_ro(
          "op_times",
          [](const Program& p) {
            std::vector<std::tuple<double, double, double>> times;
            for (const OpTimes& t : p.op_times()) times.emplace_back(t.work, t.input, t.wait);
            return times;
          },
          "Seconds of thread 0 by operation since profiling began: (work, a linear's input rows, "
          "waiting for other threads).")
      .def_prop_ro(
          "step_times",
          [](const Program& p) { return std::tuple(p.step_times().prepare, p.step_times().join); },
          "Seconds around the operations: (preparing the step, waiting for its last thread).");
}

}  // namespace ei

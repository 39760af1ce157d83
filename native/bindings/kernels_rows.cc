// Single row kernels by ISA level, for tests and benchmarks: _native.kernels.<name>(level, ...).
#include <algorithm>
#include <string>
#include <vector>

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "kv/pool.h"
#include "bindings/bindings.h"
#include "common/error.h"
#include "isa/isa.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ei {
namespace {

using In = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using InIds = nb::ndarray<const int32_t, nb::c_contig, nb::device::cpu>;
using OutIds = nb::ndarray<int32_t, nb::c_contig, nb::device::cpu>;
using Pool = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <typename Array>
int length(const Array& a, const char* name, int64_t expected) {
  require(static_cast<int64_t>(a.size()) == expected,
          std::string(name) + " has " + std::to_string(a.size()) + " values, not " +
              std::to_string(expected) + "");
  return static_cast<int>(expected);
}

Activation activation_by_name(const std::string& name) {
  const char* const names[] = {"none", "silu", "gelu", "gelu_tanh", "sigmoid", "relu"};
  for (int i = 0; i < 6; ++i)
    if (name == names[i]) return static_cast<Activation>(i);
  throw Error(
      "invalid_parameter",
      "activation '" + name + "' is unknown; known: none, silu, gelu, gelu_tanh, sigmoid, relu");
}

const float* pointer(const std::optional<In>& a, const char* name, int64_t expected) {
  if (!a) return nullptr;
  length(*a, name, expected);
  return a->data();
}

using Binary = void (*)(const float*, const float*, int, float*);

template <Binary KernelTable::* F>
auto binary() {
  return [](const std::string& level, In a, In b, Out y) {
    const int n = length(y, "y", static_cast<int64_t>(a.size()));
    length(b, "b", n);
    (kernel_table(level).*F)(a.data(), b.data(), n, y.data());
  };
}

void bind_elementwise(nb::module_& k) {
  k.def(
      "rms_norm",
      [](const std::string& level, In x, std::optional<In> weight, float offset, float eps,
         std::optional<In> residual, Out y) {
        const int n = length(y, "y", static_cast<int64_t>(x.size()));
        kernel_table(level).rms_norm(x.data(), pointer(weight, "weight", n), offset, eps, n,
                                     pointer(residual, "residual", n), y.data());
      },
      "level"_a, "x"_a, "weight"_a.none(), "offset"_a, "eps"_a, "residual"_a.none(), "y"_a);
  k.def(
      "layer_norm",
      [](const std::string& level, In x, std::optional<In> weight, std::optional<In> bias,
         float eps, Out y) {
        const int n = length(y, "y", static_cast<int64_t>(x.size()));
        kernel_table(level).layer_norm(x.data(), pointer(weight, "weight", n),
                                       pointer(bias, "bias", n), eps, n, y.data());
      },
      "level"_a, "x"_a, "weight"_a.none(), "bias"_a.none(), "eps"_a, "y"_a);
  k.def(
      "rope",
      [](const std::string& level, Out x, int head_dim, In cos, In sin, bool interleaved) {
        const int half = static_cast<int>(cos.size());
        length(sin, "sin", half);
        require(head_dim > 0 && 2 * half <= head_dim && x.size() % head_dim == 0,
                "rope rotates 2*" + std::to_string(half) + " of " + std::to_string(head_dim) +
                    " dims of heads in " + std::to_string(x.size()) + " values");
        kernel_table(level).rope(x.data(), static_cast<int>(x.size() / head_dim), head_dim, half,
                                 cos.data(), sin.data(), interleaved);
      },
      "level"_a, "x"_a, "head_dim"_a, "cos"_a, "sin"_a, "interleaved"_a = false);
  k.def(
      "activation",
      [](const std::string& level, In x, const std::string& name, Out y) {
        const int n = length(y, "y", static_cast<int64_t>(x.size()));
        kernel_table(level).activation(x.data(), n, activation_by_name(name), y.data());
      },
      "level"_a, "x"_a, "name"_a, "y"_a);
  k.def(
      "glu",
      [](const std::string& level, In gate, In up, const std::string& name, Out y) {
        const int n = length(y, "y", static_cast<int64_t>(gate.size()));
        length(up, "up", n);
        kernel_table(level).glu(gate.data(), up.data(), n, activation_by_name(name), y.data());
      },
      "level"_a, "gate"_a, "up"_a, "name"_a, "y"_a);
  k.def("add", binary<&KernelTable::add>(), "level"_a, "a"_a, "b"_a, "y"_a);
  k.def("mul", binary<&KernelTable::mul>(), "level"_a, "a"_a, "b"_a, "y"_a);
  k.def(
      "scale",
      [](const std::string& level, In x, float factor, Out y) {
        const int n = length(y, "y", static_cast<int64_t>(x.size()));
        kernel_table(level).scale(x.data(), factor, n, y.data());
      },
      "level"_a, "x"_a, "factor"_a, "y"_a);
  k.def(
      "softcap",
      [](const std::string& level, In x, float cap, Out y) {
        const int n = length(y, "y", static_cast<int64_t>(x.size()));
        kernel_table(level).softcap(x.data(), cap, n, y.data());
      },
      "level"_a, "x"_a, "cap"_a, "y"_a);
  k.def(
      "head_gate",
      [](const std::string& level, In x, In gate, Out y) {
        const int heads = static_cast<int>(gate.size());
        const int n = length(y, "y", static_cast<int64_t>(x.size()));
        require(heads > 0 && n % heads == 0, "heads do not divide the width");
        kernel_table(level).head_gate(x.data(), gate.data(), heads, n / heads, y.data());
      },
      "level"_a, "x"_a, "gate"_a, "y"_a);
}

KvLayer layer(const Pool& pool, int kv_heads, int head_dim, const std::string& dtype) {
  const KvType type = kv_type_named(dtype);
  const int64_t need = kv_block_bytes(type, kv_heads, head_dim);
  require(kv_heads > 0 && head_dim > 0 && static_cast<int64_t>(pool.shape(1)) >= need,
          "a block of the pool has " + std::to_string(pool.shape(1)) + " bytes; " +
              std::to_string(need) + " are needed");
  return {pool.data(), static_cast<int64_t>(pool.shape(1)), kv_heads, head_dim, type};
}

void check_blocks(const Pool& pool, const InIds& blocks, int begin, int end) {
  require(begin >= 0 && (end <= begin || end <= static_cast<int>(blocks.size()) * kKvBlock),
          "the block table is shorter than the range");
  for (int b = begin / kKvBlock; b * kKvBlock < end; ++b)
    require(blocks.data()[b] >= 0 && blocks.data()[b] < static_cast<int>(pool.shape(0)),
            "block " + std::to_string(blocks.data()[b]) + " is not in the pool");
}

void bind_attention(nb::module_& k) {
  k.def(
      "kv_store",
      [](const std::string& level, Pool pool, const std::string& dtype, int block, int slot, In key,
         In value, int head_begin, int head_end) {
        require(key.ndim() == 3 && value.ndim() == 3,
                "key and value are [tokens, kv_heads, head_dim]");
        length(value, "value", static_cast<int64_t>(key.size()));
        const KvLayer kv =
            layer(pool, static_cast<int>(key.shape(1)), static_cast<int>(key.shape(2)), dtype);
        const int64_t tokens = key.shape(0), stride = key.shape(1) * key.shape(2);
        require(block >= 0 && block < static_cast<int>(pool.shape(0)) && slot >= 0 &&
                    slot + tokens <= kKvBlock,
                "no such slots");
        if (head_end < 0) head_end = kv.kv_heads;
        require(0 <= head_begin && head_begin < head_end && head_end <= kv.kv_heads,
                "no such heads");
        kernel_table(level).kv_store(kv, head_begin, head_end, block, slot,
                                     static_cast<int>(tokens), key.data(), stride, value.data(),
                                     stride);
      },
      "level"_a, "pool"_a, "dtype"_a, "block"_a, "slot"_a, "key"_a, "value"_a, "head_begin"_a = 0,
      "head_end"_a = -1);
  k.def(
      "attention_split",
      [](const std::string& level, Pool pool, const std::string& dtype, int kv_heads, int kv_head,
         InIds blocks, In q, int begin, int end, float scale, float softcap, Out m, Out l,
         Out acc) {
        require(q.ndim() == 2, "q is [group_heads, head_dim]");
        const int heads = static_cast<int>(q.shape(0)), dim = static_cast<int>(q.shape(1));
        const KvLayer kv = layer(pool, kv_heads, dim, dtype);
        require(kv_head >= 0 && kv_head < kv_heads, "no such kv head");
        check_blocks(pool, blocks, begin, end);
        length(m, "m", heads);
        length(l, "l", heads);
        length(acc, "acc", static_cast<int64_t>(q.size()));
        const AttentionArgs a{&kv, blocks.data(), kv_head, heads, scale, softcap};
        nb::gil_scoped_release release;
        kernel_table(level).attention_split(a, q.data(), begin, end, m.data(), l.data(),
                                            acc.data());
      },
      "level"_a, "pool"_a, "dtype"_a, "kv_heads"_a, "kv_head"_a, "blocks"_a, "q"_a, "begin"_a,
      "end"_a, "scale"_a, "softcap"_a, "m"_a, "l"_a, "acc"_a);
  k.def(
      "attention_merge",
      [](const std::string& level, In m, In l, In acc, Out out) {
        require(acc.ndim() == 2, "acc is [splits, head_dim]");
        const int splits = static_cast<int>(acc.shape(0)), dim = static_cast<int>(acc.shape(1));
        length(m, "m", splits);
        length(l, "l", splits);
        length(out, "out", dim);
        kernel_table(level).attention_merge(m.data(), l.data(), 1, acc.data(), dim, splits, dim,
                                            out.data());
      },
      "level"_a, "m"_a, "l"_a, "acc"_a, "out"_a);
  k.def(
      "attention_prefill",
      [](const std::string& level, Pool pool, const std::string& dtype, int kv_heads, int kv_head,
         InIds blocks, In q, InIds begin, InIds end, float scale, float softcap, Out out,
         bool bf16) {
        require(q.ndim() == 3, "q is [rows, group_heads, head_dim]");
        const int rows = static_cast<int>(q.shape(0)), heads = static_cast<int>(q.shape(1));
        const int dim = static_cast<int>(q.shape(2));
        const KvLayer kv = layer(pool, kv_heads, dim, dtype);
        require(kv_head >= 0 && kv_head < kv_heads, "no such kv head");
        length(begin, "begin", rows);
        length(end, "end", rows);
        length(out, "out", static_cast<int64_t>(q.size()));
        for (int r = 0; r < rows; ++r) check_blocks(pool, blocks, begin.data()[r], end.data()[r]);
        const AttentionArgs a{&kv, blocks.data(), kv_head, heads, scale, softcap};
        const KernelTable& t = kernel_table(level);
        const auto attend = bf16 ? t.attention_prefill_bf16 : t.attention_prefill;
        require(attend != nullptr, "the level has no such kernel");
        std::vector<float> scratch(static_cast<size_t>(t.prefill_scratch_floats(rows, heads, dim)));
        const int64_t stride = static_cast<int64_t>(heads) * dim;
        nb::gil_scoped_release release;
        attend(a, q.data(), stride, rows, begin.data(), end.data(), scratch.data(), out.data(),
               stride);
      },
      "level"_a, "pool"_a, "dtype"_a, "kv_heads"_a, "kv_head"_a, "blocks"_a, "q"_a, "begin"_a,
      "end"_a, "scale"_a, "softcap"_a, "out"_a, "bf16"_a = false);
}

void bind_vocabulary(nb::module_& k) {
  k.def("argmax", [](const std::string& level, In x) {
    return kernel_table(level).argmax(x.data(), static_cast<int>(x.size()));
  });
  k.def("reduce_max", [](const std::string& level, In x) {
    return kernel_table(level).reduce_max(x.data(), static_cast<int>(x.size()));
  });
  k.def("exp_sum", [](const std::string& level, In x, float max, float inv_temperature) {
    return kernel_table(level).exp_sum(x.data(), static_cast<int>(x.size()), max, inv_temperature);
  });
  k.def("exp_row", [](const std::string& level, In x, float max, float inv_temperature, Out y) {
    const int n = length(y, "y", static_cast<int64_t>(x.size()));
    kernel_table(level).exp_row(x.data(), n, max, inv_temperature, y.data());
  });
  k.def("collect_above", [](const std::string& level, In x, float threshold, OutIds ids) {
    return kernel_table(level).collect_above(x.data(), static_cast<int>(x.size()), threshold,
                                             ids.data(), static_cast<int>(ids.size()));
  });
  k.def("all_finite", [](const std::string& level, In x) {
    return kernel_table(level).all_finite(x.data(), static_cast<int>(x.size()));
  });
}

}  // namespace

void bind_kernels_rows(nb::module_& m) {
  nb::module_ k = nb::cast<nb::module_>(m.attr("kernels"));
  bind_elementwise(k);
  bind_attention(k);
  bind_vocabulary(k);
}

}  // namespace ei

// _native.SamplingState: logits to token, one object a request.
#include <random>
#include <string>
#include <vector>

#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "common/error.h"
#include "isa/isa.h"
#include "sampling/philox.h"
#include "sampling/sampling.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ei {
namespace {

using Logits = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Mask = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using LogitRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check_length(const char* what, size_t got, size_t want) {
  if (got != want)
    throw Error("invalid_parameter", std::string(what) + " has " + std::to_string(got) +
                                         " elements; the vocabulary takes " + std::to_string(want) +
                                         ".");
}

uint64_t random_seed() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

void check_row(const SamplingState& state, const Logits& logits, const std::optional<Mask>& mask) {
  const auto vocab = static_cast<size_t>(state.vocab_size());
  check_length("logits", logits.size(), vocab);
  if (mask) check_length("mask", mask->size(), (vocab + 31) / 32);
}

SampleResult sample(SamplingState& state, Logits logits, std::optional<Mask> mask) {
  check_row(state, logits, mask);
  nb::gil_scoped_release release;
  return state.sample(logits.data(), mask ? mask->data() : nullptr);
}

SampleResult pick(const SamplingState& state, Logits logits, std::optional<Mask> mask, bool again) {
  check_row(state, logits, mask);
  nb::gil_scoped_release release;
  return state.pick(logits.data(), mask ? mask->data() : nullptr, again);
}

std::vector<SampleResult> rows_logprobs(LogitRows logits, Ids tokens, int best) {
  if (tokens.size() != logits.shape(0))
    throw Error("invalid_parameter", std::to_string(tokens.size()) + " tokens came with " +
                                         std::to_string(logits.shape(0)) + " rows of logits.");
  const auto vocab = static_cast<int>(logits.shape(1));
  nb::gil_scoped_release release;
  std::vector<SampleResult> out;
  out.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i)
    out.push_back(token_logprobs(logits.data() + i * logits.shape(1), vocab, tokens.data()[i], best,
                                 kernels()));
  return out;
}

}  // namespace

void bind_sampling(nb::module_& m) {
  nb::class_<SampleResult>(m, "SampleResult")
      .def_ro("token", &SampleResult::token)
      .def_ro("logprob", &SampleResult::logprob,
              "Natural log of the token's probability under the raw logits; None if not asked for.")
      .def_ro("rank", &SampleResult::rank,
              "Rank of the token among the raw logits, from 1; 0 without logprobs.")
      .def_ro("top", &SampleResult::top, "[(id, logprob)] of the num_logprobs best, best first.")
      .def("__repr__", [](const SampleResult& r) {
        return "SampleResult(token=" + std::to_string(r.token) +
               (r.logprob ? ", logprob=" + std::to_string(*r.logprob) : "") + ")";
      });

  nb::class_<SamplingState>(m, "SamplingState",
                            "The sampling parameters and token counts of one request.")
      .def(
          "__init__",
          [](SamplingState* self, int vocab_size, double temperature, int top_k, double top_p,
             double min_p, double repetition_penalty, double presence_penalty,
             double frequency_penalty, std::optional<std::map<int32_t, float>> logit_bias,
             std::optional<uint64_t> seed, int num_logprobs, std::optional<std::string> level) {
            SamplingParams p;
            p.temperature = temperature;
            p.top_k = top_k;
            p.top_p = top_p;
            p.min_p = min_p;
            p.repetition_penalty = repetition_penalty;
            p.presence_penalty = presence_penalty;
            p.frequency_penalty = frequency_penalty;
            if (logit_bias) p.logit_bias.assign(logit_bias->begin(), logit_bias->end());
            p.seed = seed ? *seed : random_seed();
            p.num_logprobs = num_logprobs;
            new (self)
                SamplingState(vocab_size, std::move(p), level ? kernel_table(*level) : kernels());
          },
          "vocab_size"_a, nb::kw_only(), "temperature"_a = 1.0, "top_k"_a = 0, "top_p"_a = 1.0,
          "min_p"_a = 0.0, "repetition_penalty"_a = 1.0, "presence_penalty"_a = 0.0,
          "frequency_penalty"_a = 0.0, "logit_bias"_a = nb::none(), "seed"_a = nb::none(),
          "num_logprobs"_a = -1, "level"_a = nb::none(),
          "Raises ConfigError for a value out of range. seed None: from the system's entropy; "
          "level: an ISA level other than the active one, for tests.")
      .def(
          "add_prompt",
          [](SamplingState& s, Ids ids) {
            s.add_prompt(ids.data(), static_cast<int64_t>(ids.size()));
          },
          "ids"_a, "Prompt tokens (int32 [n]), for the repetition penalty.")
      .def(
          "add_prompt",
          [](SamplingState& s, const std::vector<int32_t>& ids) {
            s.add_prompt(ids.data(), static_cast<int64_t>(ids.size()));
          },
          "ids"_a)
      .def("sample", &sample, "logits"_a, "mask"_a.none() = nb::none(),
           "Picks and counts a token. logits: f32 [vocab_size], unchanged. mask: uint32 "
           "[ceil(vocab_size/32)], bit i%32 of word i//32 allows token i. Raises ExecutionError on "
           "NaN or +inf logits and when no token is allowed; the state is then as before.")
      .def("pick", &pick, "logits"_a, "mask"_a.none() = nb::none(), nb::kw_only(),
           "again"_a = false,
           "sample() without counting the token, which accept() does. again: with a draw that is "
           "independent of the first one, for a token that turned out not to be allowed.")
      .def("accept", &SamplingState::accept, "token"_a,
           "Counts a token that was chosen elsewhere, and takes up its position.")
      .def_prop_ro("vocab_size", &SamplingState::vocab_size)
      .def_prop_ro("position", &SamplingState::position, "Tokens sampled or accepted so far.")
      .def_prop_ro("seed", [](const SamplingState& s) { return s.params().seed; });

  m.def("token_logprobs", &rows_logprobs, "logits"_a, "tokens"_a, "best"_a = 0,
        "Log-probabilities of given tokens (int32 [rows]) under raw logits (f32 [rows, vocab]), "
        "each with the `best` most likely ones. Raises ConfigError for a token outside the "
        "vocabulary, ExecutionError on NaN or +inf logits.");

  nb::module_ k = nb::cast<nb::module_>(m.attr("kernels"));
  k.def("philox", [](uint64_t key, std::vector<uint32_t> counter) {
    check_length("counter", counter.size(), 4);
    const auto r = philox(key, {counter[0], counter[1], counter[2], counter[3]});
    return std::vector<uint32_t>(r.begin(), r.end());
  });
}

}  // namespace ei

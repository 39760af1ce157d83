#include "linear/packed_experts.h"

#include <algorithm>
#include <string>

#include "common/error.h"
#include "isa/isa.h"
#include "linear/threads.h"

namespace ei {
namespace {

thread_local Workspace workspace;

int64_t line(int64_t floats) { return (floats + 15) / 16 * 16; }

}  // namespace

PackedExperts::PackedExperts(std::vector<const PackedLinear*> gate_up,
                             std::vector<const PackedLinear*> down, Activation activation)
    : gate_up_(std::move(gate_up)), down_(std::move(down)), activation_(activation) {
  if (gate_up_.empty() || gate_up_.size() != down_.size())
    throw Error("invalid_parameter", std::to_string(gate_up_.size()) + " gate_up and " +
                                         std::to_string(down_.size()) + " down matrices.");
  for (size_t e = 0; e < gate_up_.size(); ++e)
    if (gate_up_[e]->k() != down_[0]->n() || down_[e]->n() != down_[0]->n() ||
        down_[e]->k() != down_[0]->k() || gate_up_[e]->n() != 2 * down_[e]->k())
      throw Error("invalid_parameter", "Expert " + std::to_string(e) + " has gate_up [" +
                                           std::to_string(gate_up_[e]->n()) + ", " +
                                           std::to_string(gate_up_[e]->k()) + "] and down [" +
                                           std::to_string(down_[e]->n()) + ", " +
                                           std::to_string(down_[e]->k()) + "].");
}

void PackedExperts::run(const FloatRows& x, int64_t rows, int64_t decode_rows, const int32_t* ids,
                        const float* weights, int top, bool weight_input, void* y, int64_t y_stride,
                        FloatType y_type) const {
  const KernelTable& kt = kernels();
  const int hidden = width(), inner = down_[0]->k();

  // choices by expert, within one by row: counting sort
  std::vector<int64_t> first(gate_up_.size() + 1);
  for (int64_t i = 0; i < rows * top; ++i)
    if (ids[i] >= 0 && ids[i] < experts()) ++first[ids[i] + 1];
  for (size_t e = 0; e < gate_up_.size(); ++e) first[e + 1] += first[e];
  std::vector<int64_t> choices(first.back()), next(first.begin(), first.end() - 1);
  for (int64_t i = 0; i < rows * top; ++i)
    if (ids[i] >= 0 && ids[i] < experts()) choices[next[ids[i]]++] = i;
  int64_t most = 0;
  for (size_t e = 0; e < gate_up_.size(); ++e) most = std::max(most, first[e + 1] - first[e]);

  float* const sums = reinterpret_cast<float*>(
      workspace.reserve(4 * (line(rows * hidden) + most * (2 * line(hidden) + 2 * line(inner)))));
  float* const gathered = sums + line(rows * hidden);
  float* const results = gathered + most * line(hidden);
  float* const gates = results + most * line(hidden);
  std::fill(sums, sums + rows * hidden, 0.0f);

  for (size_t e = 0; e < gate_up_.size(); ++e) {
    const int64_t* chosen = choices.data() + first[e];
    const int64_t count = first[e + 1] - first[e];
    if (count == 0) continue;
    int64_t decode = 0;
    while (decode < count && chosen[decode] / top < decode_rows) ++decode;
    for_rows(count, hidden, [&](int64_t i) {
      float* to = gathered + i * line(hidden);
      kt.load_floats(
          static_cast<const uint8_t*>(x.data) + chosen[i] / top * x.stride * float_bytes(x.type),
          x.type, hidden, to);
      if (weight_input) kt.scale(to, weights[chosen[i]], hidden, to);
    });
    gate_up_[e]->run({gathered, line(hidden), FloatType::kF32}, count, decode, true, gates,
                     2 * line(inner), FloatType::kF32);
    for_rows(count, inner, [&](int64_t i) {
      float* gate = gates + i * 2 * line(inner);
      kt.glu(gate, gate + inner, inner, activation_, gate);
    });
    down_[e]->run({gates, 2 * line(inner), FloatType::kF32}, count, decode, true, results,
                  line(hidden), FloatType::kF32);
    for_rows(count, hidden, [&](int64_t i) {
      float* result = results + i * line(hidden);
      float* sum = sums + chosen[i] / top * hidden;
      if (!weight_input) kt.scale(result, weights[chosen[i]], hidden, result);
      kt.add(sum, result, hidden, sum);
    });
  }
  for_rows(rows, hidden, [&](int64_t r) {
    kt.store_floats(sums + r * hidden, hidden, y_type,
                    static_cast<uint8_t*>(y) + r * y_stride * float_bytes(y_type));
  });
}

}  // namespace ei

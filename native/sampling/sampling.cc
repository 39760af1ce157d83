#include "sampling/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "common/error.h"
#include "sampling/candidates.h"
#include "sampling/philox.h"

namespace ei {
namespace {

constexpr double kGreedyBelow = 1e-5;
constexpr int kChunk = 1024;  // the plain draw sums weights by this many tokens

struct BitTable {
  uint32_t bits[32];
  constexpr BitTable() : bits() {
    for (int i = 0; i < 32; ++i) bits[i] = 1u << i;
  }
  constexpr uint32_t operator[](int i) const { return bits[i]; }
};
constexpr BitTable kBits;

// Working space of a thread, grown to the largest vocabulary it has seen.
struct Scratch {
  std::vector<float> logits;
  Candidates candidates;
};

Scratch& scratch() {
  static thread_local Scratch s;
  return s;
}

std::string number(double x) {
  std::string s = std::to_string(x);
  s.erase(s.find_last_not_of('0') + 1);
  if (!s.empty() && s.back() == '.') s.pop_back();
  return s;
}

void require(bool ok, const char* name, double value, const char* range) {
  if (!ok)
    throw Error("invalid_parameter",
                std::string(name) + " is " + number(value) + "; it must be " + range + ".");
}

void apply_mask(const uint32_t* mask, int n, float* x) {
  constexpr float kBanned = -std::numeric_limits<float>::infinity();
  for (int w = 0; w * 32 < n; ++w) {
    const uint32_t word = mask[w];
    if (word == 0xffffffffu) continue;
    float* y = x + w * 32;
    const int count = std::min(32, n - w * 32);
    if (count == 32 && word != 0) {
      for (int i = 0; i < 32; ++i) y[i] = (word & kBits[i]) != 0 ? y[i] : kBanned;  // vectorized
    } else {
      for (int i = 0; i < count; ++i) y[i] = (word >> i & 1u) != 0 ? y[i] : kBanned;
    }
  }
}

// Walks the weights in id order to the token where their running sum passes u of the total.
int32_t draw(const Candidates& c, double u) {
  const double target = u * weight_sum(c);
  double sum = 0.0;
  int32_t last = c.ids.front();
  for (size_t i = 0; i < c.ids.size(); ++i) {
    if (c.weights[i] > 0.0f) last = c.ids[i];
    sum += c.weights[i];
    if (sum > target) break;
  }
  return last;
}

// Fills logprob, rank and top of result.token from raw logits.
void add_logprobs(const KernelTable& t, const float* logits, int n, int best,
                  SampleResult& result) {
  const float max = t.reduce_max(logits, n);
  const double norm = max + std::log(t.exp_sum(logits, n, max, 1.0f));
  const float x = logits[result.token];
  result.logprob = x - norm;
  const int after = n - result.token - 1;
  const float above = std::nextafter(x, std::numeric_limits<float>::infinity());
  result.rank = 1 + t.collect_above(logits, result.token, x, nullptr, 0) +
                t.collect_above(logits + n - after, after, above, nullptr, 0);
  if (best == 0) return;
  Candidates& c = scratch().candidates;
  select_top(t, logits, n, best, c);
  result.top.reserve(c.ids.size());
  for (const int32_t id : c.ids) result.top.emplace_back(id, logits[id] - norm);
  std::sort(result.top.begin(), result.top.end(), [](const auto& a, const auto& b) {
    return a.second > b.second || (a.second == b.second && a.first < b.first);
  });
}

[[noreturn]] void refuse(const float* logits, int n) {
  int nan = 0, inf = 0, first = -1;
  for (int i = 0; i < n; ++i) {
    const bool bad_inf = logits[i] == std::numeric_limits<float>::infinity();
    nan += std::isnan(logits[i]) ? 1 : 0;
    inf += bad_inf ? 1 : 0;
    if (first < 0 && (std::isnan(logits[i]) || bad_inf)) first = i;
  }
  throw Error("execution_failed",
              "of " + std::to_string(n) + " logits, " + std::to_string(nan) + " are NaN and " +
                  std::to_string(inf) + " are +inf, the first at token " + std::to_string(first) +
                  ": the weights are damaged, or activations left the range of f16 (try a bf16 KV "
                  "cache).");
}

}  // namespace

SamplingState::SamplingState(int vocab_size, SamplingParams params, const KernelTable& kernels)
    : vocab_size_(vocab_size), params_(std::move(params)), kernels_(kernels) {
  const SamplingParams& p = params_;
  require(vocab_size > 0, "vocab_size", vocab_size, "at least 1");
  require(p.temperature >= 0.0 && p.temperature <= 1e6, "temperature", p.temperature,
          "between 0 and 1e6");
  require(p.top_k >= -1, "top_k", p.top_k, "at least 1, or 0 or -1 for all tokens");
  require(p.top_p > 0.0 && p.top_p <= 1.0, "top_p", p.top_p, "above 0 and at most 1");
  require(p.min_p >= 0.0 && p.min_p <= 1.0, "min_p", p.min_p, "between 0 and 1");
  require(p.repetition_penalty >= 1e-6 && p.repetition_penalty <= 1e6, "repetition_penalty",
          p.repetition_penalty, "between 1e-6 and 1e6");
  require(std::fabs(p.presence_penalty) <= 1e6, "presence_penalty", p.presence_penalty,
          "between -1e6 and 1e6");
  require(std::fabs(p.frequency_penalty) <= 1e6, "frequency_penalty", p.frequency_penalty,
          "between -1e6 and 1e6");
  require(p.num_logprobs >= -1 && p.num_logprobs <= vocab_size, "num_logprobs", p.num_logprobs,
          ("between -1 and the vocabulary size, " + std::to_string(vocab_size)).c_str());
  for (const auto& [id, bias] : p.logit_bias) {
    check_id(id, "logit_bias token");
    require(bias < std::numeric_limits<float>::infinity(), "a logit_bias", bias,
            "a number, or -inf to ban the token");
  }
  counts_ = p.repetition_penalty != 1.0 || p.presence_penalty != 0.0 || p.frequency_penalty != 0.0;
}

void SamplingState::check_id(int32_t id, const char* what) const {
  if (id < 0 || id >= vocab_size_)
    throw Error("invalid_parameter", std::string(what) + " " + std::to_string(id) +
                                         " is outside the vocabulary of " +
                                         std::to_string(vocab_size_) + " tokens.");
}

SamplingState::Seen& SamplingState::seen(int32_t id) {
  const auto [it, fresh] = index_.try_emplace(id, static_cast<uint32_t>(history_.size()));
  if (fresh) history_.push_back({id, false, 0});
  return history_[it->second];
}

void SamplingState::add_prompt(const int32_t* ids, int64_t count) {
  for (int64_t i = 0; i < count; ++i) check_id(ids[i], "prompt token");
  if (!counts_) return;
  for (int64_t i = 0; i < count; ++i) seen(ids[i]).in_prompt = true;
}

void SamplingState::accept(int32_t token) {
  check_id(token, "token");
  ++position_;
  if (counts_) ++seen(token).outputs;
}

// The logits after bias, penalties and mask: a copy in this thread's scratch, or the input itself.
const float* SamplingState::adjust(const float* logits, const uint32_t* mask) const {
  const SamplingParams& p = params_;
  if (p.logit_bias.empty() && history_.empty() && mask == nullptr) return logits;
  std::vector<float>& copy = scratch().logits;
  copy.assign(logits, logits + vocab_size_);
  for (const auto& [id, bias] : p.logit_bias) copy[static_cast<size_t>(id)] += bias;
  const auto repetition = static_cast<float>(p.repetition_penalty);
  const auto frequency = static_cast<float>(p.frequency_penalty);
  const auto presence = static_cast<float>(p.presence_penalty);
  for (const Seen& s : history_) {
    float& x = copy[static_cast<size_t>(s.id)];
    if (repetition != 1.0f) x = x > 0.0f ? x / repetition : x * repetition;
    if (s.outputs > 0) {
      x -= frequency * static_cast<float>(s.outputs);
      x -= presence;
    }
  }
  if (mask != nullptr) apply_mask(mask, vocab_size_, copy.data());
  return copy.data();
}

int32_t SamplingState::draw_any(const float* x, float max, float inv_temperature, double u) const {
  const int chunks = (vocab_size_ + kChunk - 1) / kChunk;
  std::vector<double> sums(static_cast<size_t>(chunks));
  const auto width = [&](int i) { return std::min(kChunk, vocab_size_ - i * kChunk); };
  double total = 0.0;
  for (int i = 0; i < chunks; ++i) {
    sums[static_cast<size_t>(i)] = kernels_.exp_sum(x + i * kChunk, width(i), max, inv_temperature);
    total += sums[static_cast<size_t>(i)];
  }
  double target = u * total;
  int chunk = 0, last = 0;  // last: the last chunk with any weight, should rounding overshoot
  for (; chunk < chunks; ++chunk) {
    const double sum = sums[static_cast<size_t>(chunk)];
    if (sum > 0.0) last = chunk;
    if (sum > target) break;
    target -= sum;
  }
  if (chunk == chunks) {
    chunk = last;
    target = std::numeric_limits<double>::infinity();
  }
  float weights[kChunk];
  kernels_.exp_row(x + chunk * kChunk, width(chunk), max, inv_temperature, weights);
  double sum = 0.0;
  int token = 0;
  for (int i = 0; i < width(chunk); ++i) {
    if (weights[i] > 0.0f) token = i;
    sum += weights[i];
    if (sum > target) break;
  }
  return chunk * kChunk + token;
}

int32_t SamplingState::choose(const float* x, bool again) const {
  const SamplingParams& p = params_;
  if (p.temperature < kGreedyBelow || p.top_k == 1) return kernels_.argmax(x, vocab_size_);
  const float max = kernels_.reduce_max(x, vocab_size_);
  if (!std::isfinite(max)) return kernels_.argmax(x, vocab_size_);  // refused by the caller
  const double u = uniform(params_.seed, position_, again ? 1 : 0);
  const auto inv_temperature = static_cast<float>(1.0 / p.temperature);
  const bool by_k = p.top_k > 0 && p.top_k < vocab_size_;
  const bool by_p = p.top_p < 1.0;
  const auto min_p = static_cast<float>(p.min_p);
  if (!by_k && !by_p && min_p <= 0.0f) return draw_any(x, max, inv_temperature, u);

  // Tokens within `drop` of the best: their weight is at least exp(-drop).
  const auto within = [&](double drop) {
    return static_cast<float>(max - drop * p.temperature) - 1e-5f * (1.0f + std::fabs(max));
  };
  Candidates& c = scratch().candidates;
  double total = 0.0;  // what top-p is a share of
  if (by_k) {
    select_top(kernels_, x, vocab_size_, p.top_k, c);
    weigh(kernels_, max, inv_temperature, c);
    total = weight_sum(c);
  } else {
    if (by_p) total = kernels_.exp_sum(x, vocab_size_, max, inv_temperature);
    // top-p and min-p both keep a run of best tokens, so min-p may bound the search of top-p
    const double last_drop = min_p > 0.0f ? std::min(-std::log(p.min_p), 104.0) : 104.0;
    double drop = min_p > 0.0f ? last_drop : 4.0;
    for (;; drop = std::min(drop * 2.0, last_drop)) {
      select_above(kernels_, x, vocab_size_, within(drop), c);
      weigh(kernels_, max, inv_temperature, c);
      if (drop >= last_drop || weight_sum(c) >= p.top_p * total) break;
    }
  }
  if (by_p) keep_mass(p.top_p * total, c);
  if (min_p > 0.0f) keep_weight(min_p, c);
  return draw(c, u);
}

SampleResult SamplingState::sample(const float* logits, const uint32_t* mask) {
  SampleResult result = pick(logits, mask, false);
  accept(result.token);
  return result;
}

SampleResult SamplingState::pick(const float* logits, const uint32_t* mask, bool again) const {
  if (!kernels_.all_finite(logits, vocab_size_)) refuse(logits, vocab_size_);
  const float* x = adjust(logits, mask);
  SampleResult result;
  result.token = choose(x, again);
  if (!std::isfinite(x[result.token])) {
    const std::string of = " of " + std::to_string(vocab_size_) + " tokens";
    if (x[result.token] > 0.0f)
      throw Error("execution_failed", "bias and penalties raise the logit of token " +
                                          std::to_string(result.token) + of + " to +inf.");
    const bool given = std::isfinite(kernels_.reduce_max(logits, vocab_size_));
    throw Error("execution_failed", given ? "bias, penalties and mask leave none" + of + " allowed."
                                          : "the logits" + of + " are all -inf.");
  }
  if (params_.num_logprobs >= 0)
    add_logprobs(kernels_, logits, vocab_size_, params_.num_logprobs, result);
  return result;
}

SampleResult token_logprobs(const float* logits, int vocab_size, int32_t token, int best,
                            const KernelTable& kernels) {
  if (token < 0 || token >= vocab_size)
    throw Error("invalid_parameter", "token " + std::to_string(token) +
                                         " is outside the vocabulary of " +
                                         std::to_string(vocab_size) + ".");
  require(best >= 0 && best <= vocab_size, "best", best, "0 to the size of the vocabulary");
  if (!kernels.all_finite(logits, vocab_size)) refuse(logits, vocab_size);
  SampleResult result;
  result.token = token;
  add_logprobs(kernels, logits, vocab_size, best, result);
  return result;
}

}  // namespace ei

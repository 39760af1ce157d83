// Logits to token: one SamplingState a request.
#pragma once
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/kernels.h"

namespace ei {

// Applied in this order, as vLLM and transformers do: logit bias, repetition penalty (prompt and
// output), frequency and presence penalty (output), the mask of allowed tokens; then the best token
// if temperature is 0, else temperature, top-k, top-p, min-p and a draw.
struct SamplingParams {
  double temperature = 1.0;  // below 1e-5: greedy
  int top_k = 0;             // exactly k tokens, ties to the lower id; 0 or -1: all
  double top_p = 1.0;        // the fewest best tokens whose probabilities reach top_p
  double min_p = 0.0;        // tokens with at least min_p of the best token's probability
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  std::vector<std::pair<int32_t, float>> logit_bias;  // -inf bans a token
  uint64_t seed = 0;
  int num_logprobs = -1;  // -1: none; 0: the chosen token; n: the n best too
};

// Log-probabilities are those of the logits as given, before bias, penalties, mask and temperature.
struct SampleResult {
  int32_t token = -1;
  std::optional<double> logprob;
  int rank = 0;  // of the token among the given logits, from 1; 0 without logprobs
  std::vector<std::pair<int32_t, double>> top;  // best first
};

class SamplingState {
 public:
  // Throws Error("invalid_parameter") naming the parameter and its range.
  SamplingState(int vocab_size, SamplingParams params, const KernelTable& kernels);

  void add_prompt(const int32_t* ids, int64_t count);  // throws invalid_parameter on a foreign id
  // Picks a token and counts it. mask: bit i%32 of word i/32 allows token i; null: all allowed.
  // Throws Error("execution_failed") on NaN or +inf logits, and when no token is allowed; the state
  // is then unchanged. Takes no lock: one thread at a time may use a state.
  SampleResult sample(const float* logits, const uint32_t* mask);
  // The same without counting the token. `again`: with a draw that is independent of the first one,
  // for a token that somebody else found not allowed.
  SampleResult pick(const float* logits, const uint32_t* mask, bool again) const;
  void accept(int32_t token);  // counts a token that was chosen elsewhere

  int vocab_size() const { return vocab_size_; }
  uint64_t position() const { return position_; }  // tokens sampled or accepted so far
  const SamplingParams& params() const { return params_; }

 private:
  struct Seen {
    int32_t id;
    bool in_prompt;
    int32_t outputs;
  };

  void check_id(int32_t id, const char* what) const;
  Seen& seen(int32_t id);
  const float* adjust(const float* logits, const uint32_t* mask) const;
  int32_t choose(const float* x, bool again) const;
  int32_t draw_any(const float* x, float max, float inv_temperature, double u) const;

  int vocab_size_;
  SamplingParams params_;
  const KernelTable& kernels_;
  bool counts_;  // some penalty is on
  uint64_t position_ = 0;
  std::vector<Seen>
      history_;  // distinct tokens, so a step costs their number and not the vocabulary
  std::unordered_map<int32_t, uint32_t> index_;
};

// The log-probability of a given token, and the `best` most likely ones, from raw logits. Throws
// Error("invalid_parameter") for a token or a number out of range, Error("execution_failed") on NaN
// or +inf logits.
SampleResult token_logprobs(const float* logits, int vocab_size, int32_t token, int best,
                            const KernelTable& kernels);

}  // namespace ei

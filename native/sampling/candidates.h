// Which tokens of a vocabulary row stay in the draw: top-k, top-p and min-p without sorting the
// row.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/kernels.h"

namespace ei {

// Tokens in id order. Wherever tokens are ranked, the order is: higher logit, then lower id.
struct Candidates {
  std::vector<int32_t> ids;
  std::vector<float> logits;
  std::vector<float> weights;          // exp((logit - max) / temperature)
  std::vector<uint32_t> active, rest;  // working space, kept from token to token
};

// The k best tokens of x[n], or all that are not -inf if those are fewer. Fills ids and logits.
// O(n) with a small constant: the k-th largest maximum of short runs bounds the k-th largest logit.
void select_top(const KernelTable& t, const float* x, int n, int k, Candidates& out);

// All tokens of x[n] with logit >= threshold that are not -inf. Fills ids and logits.
void select_above(const KernelTable& t, const float* x, int n, float threshold, Candidates& out);

// Fills weights.
void weigh(const KernelTable& t, float max, float inv_temperature, Candidates& c);

double weight_sum(const Candidates& c);

// Keeps the shortest run of best tokens whose weights sum to at least `mass`: all, if they cannot.
void keep_mass(double mass, Candidates& c);

// Keeps tokens with weight >= least.
void keep_weight(float least, Candidates& c);

}  // namespace ei

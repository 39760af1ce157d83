#include "sampling/candidates.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace ei {
namespace {

// The last token that is kept, in rank order.
struct Cut {
  float logit;
  int32_t id;
};

// Drops every token that ranks below the cut; id order is kept.
void keep_through(const Cut& cut, Candidates& c) {
  const bool weighted = !c.weights.empty();
  size_t kept = 0;
  for (size_t i = 0; i < c.ids.size();
       ++i) {  // written always, advanced if kept: no branch to miss
    const float x = c.logits[i];
    const int32_t id = c.ids[i];
    c.ids[kept] = id;
    c.logits[kept] = x;
    if (weighted) c.weights[kept] = c.weights[i];
    kept += static_cast<size_t>((x > cut.logit) | ((x == cut.logit) & (id <= cut.id)));
  }
  c.ids.resize(kept);
  c.logits.resize(kept);
  if (weighted) c.weights.resize(kept);
}

constexpr int kBins = 1024;

// Which bin, from the best logit down; never increases with the logit.
int bin_of(double best, double scale, float logit) {
  return static_cast<int>((best - static_cast<double>(logit)) * scale);
}

// The token at which amounts, added in rank order, reach the target; false if they never do.
// Bins by logit are added up until the target falls into one, which is then binned more finely:
// O(n) even where thousands of logits are equal or nearly so.
template <typename Amount>
bool find_cut(Candidates& c, double target, Amount amount, Cut* cut) {
  std::vector<uint32_t>&active = c.active, &rest = c.rest;
  active.resize(c.ids.size());
  for (size_t i = 0; i < active.size(); ++i) active[i] = static_cast<uint32_t>(i);
  double before = 0.0;  // what ranks above every active token
  bool equal = false;
  while (active.size() > 256) {
    float best = c.logits[active.front()], worst = best;
    for (const uint32_t i : active) {
      best = std::max(best, c.logits[i]);
      worst = std::min(worst, c.logits[i]);
    }
    equal = best == worst;
    if (equal) break;
    const double scale = (kBins - 1) / (static_cast<double>(best) - static_cast<double>(worst));
    double sums[kBins] = {};
    for (const uint32_t i : active) sums[bin_of(best, scale, c.logits[i])] += amount(i);
    int bin = 0;
    while (bin < kBins && before + sums[bin] < target) before += sums[bin++];
    if (bin == kBins) return false;
    rest.clear();
    for (const uint32_t i : active)
      if (bin_of(best, scale, c.logits[i]) == bin) rest.push_back(i);
    active.swap(rest);
  }
  if (!equal)  // equal logits rank by id, which is their order here
    std::sort(active.begin(), active.end(), [&c](uint32_t a, uint32_t b) {
      return c.logits[a] > c.logits[b] || (c.logits[a] == c.logits[b] && a < b);
    });
  for (const uint32_t i : active) {
    before += amount(i);
    *cut = {c.logits[i], c.ids[i]};
    if (before >= target) return true;
  }
  return false;
}

// A threshold that at least k tokens reach.
float threshold_of_top(const KernelTable& t, const float* x, int n, int k) {
  for (const int run : {64, 16}) {
    const int runs = (n + run - 1) / run;
    if (runs < k) continue;
    std::vector<float> maxima(static_cast<size_t>(runs));
    for (int i = 0; i < runs; ++i)
      maxima[static_cast<size_t>(i)] = t.reduce_max(x + i * run, std::min(run, n - i * run));
    std::nth_element(maxima.begin(), maxima.begin() + (k - 1), maxima.end(), std::greater<float>());
    return maxima[static_cast<size_t>(k - 1)];
  }
  return -std::numeric_limits<float>::infinity();
}

}  // namespace

void select_above(const KernelTable& t, const float* x, int n, float threshold, Candidates& out) {
  threshold = std::max(threshold, std::numeric_limits<float>::lowest());  // never -inf
  out.weights.clear();
  out.ids.resize(4096);  // enough for all but flat rows, which take a second pass
  int count = t.collect_above(x, n, threshold, out.ids.data(), static_cast<int>(out.ids.size()));
  if (static_cast<size_t>(count) > out.ids.size()) {
    out.ids.resize(static_cast<size_t>(count));
    count = t.collect_above(x, n, threshold, out.ids.data(), count);
  }
  out.ids.resize(static_cast<size_t>(count));
  out.logits.resize(out.ids.size());
  for (size_t i = 0; i < out.ids.size(); ++i) out.logits[i] = x[out.ids[i]];
}

void select_top(const KernelTable& t, const float* x, int n, int k, Candidates& out) {
  k = std::min(k, n);
  select_above(t, x, n, threshold_of_top(t, x, n, k), out);
  if (out.ids.size() <= static_cast<size_t>(k)) return;
  Cut cut{};
  if (find_cut(out, k, [](uint32_t) { return 1.0; }, &cut)) keep_through(cut, out);
}

double weight_sum(const Candidates& c) {
  double sums[4] = {};
  const size_t n = c.weights.size();
  size_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (size_t j = 0; j < 4; ++j) sums[j] += c.weights[i + j];
  for (; i < n; ++i) sums[0] += c.weights[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

void weigh(const KernelTable& t, float max, float inv_temperature, Candidates& c) {
  c.weights.resize(c.ids.size());
  t.exp_row(c.logits.data(), static_cast<int>(c.ids.size()), max, inv_temperature,
            c.weights.data());
}

void keep_mass(double mass, Candidates& c) {
  Cut cut{};
  if (find_cut(c, mass, [&c](uint32_t i) { return static_cast<double>(c.weights[i]); }, &cut))
    keep_through(cut, c);
}

void keep_weight(float least, Candidates& c) {
  size_t kept = 0;
  for (size_t i = 0; i < c.ids.size(); ++i) {
    if (c.weights[i] < least) continue;
    c.ids[kept] = c.ids[i];
    c.logits[kept] = c.logits[i];
    c.weights[kept] = c.weights[i];
    ++kept;
  }
  c.ids.resize(kept);
  c.logits.resize(kept);
  c.weights.resize(kept);
}

}  // namespace ei

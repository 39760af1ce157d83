// exp, tanh, sigmoid and the GELUs on VF. Scalar level: libm. Vector levels: own minimax
// polynomials, within 5 ulp (tests/native/test_elementwise.py); NaN in, NaN out.
#pragma once
#include "kernels/simd.h"

namespace ei::EI_NS {
namespace {

#if EI_LEVEL == 0

inline VF vexp(VF x) { return expf(x); }
inline VF vtanh(VF x) { return tanhf(x); }
// x * Phi(x); in double, because erfc magnifies the rounding of its argument in the tail.
inline VF vgelu(VF x) { return static_cast<float>(0.5 * x * erfc(-x * 0.70710678118654752)); }

#else

// exp(x) = 2^n * exp(r), |r| <= ln(2)/2. inf above the range; 0 below -86.9, because denormal
// results cost a microcode assist each and masked scores are all there.
inline VF vexp(VF x) {
  const VMask vanishes = vlt(x, vset(-86.9f));
  const VF c = vmin(vset(89.5f), vmax(vset(-86.9f), x));  // this order lets NaN through
  const VF n = vround(c * vset(1.44269504f));
  VF r = vfnma(n, vset(0.693359375f), c);
  r = vfnma(n, vset(-2.12194440e-4f), r);
  VF q = vset(0.0013814540579915047f);
  q = vfma(q, r, vset(0.00836874544620514f));
  q = vfma(q, r, vset(0.04166838899254799f));
  q = vfma(q, r, vset(0.1666652113199234f));
  q = vfma(q, r, vset(0.4999999403953552f));
  const VF e = vldexp(vfma(r * r, q, r) + vset(1.0f), n);
  return vselect(vanishes, vset(0.0f), e);
}

// 2^x for x <= 0 (or NaN); 0 below -125, as vexp.
inline VF vexp2_down(VF x) {
  const VMask vanishes = vlt(x, vset(-125.0f));
  const VF c = vmax(vset(-125.0f), x);
  const VF n = vround(c);
  const VF f = c - n;
  VF q = vset(0.00015353341586887836f);
  q = vfma(q, f, vset(0.0013398900628089905f));
  q = vfma(q, f, vset(0.009618437848985195f));
  q = vfma(q, f, vset(0.055503323674201965f));
  q = vfma(q, f, vset(0.24022647738456726f));
  q = vfma(q, f, vset(0.6931471824645996f));
  const VF e = vldexp(vfma(q, f, vset(1.0f)), n);
  return vselect(vanishes, vset(0.0f), e);
}

inline VF vtanh(VF x) {
  const VF a = vabs(x);
  const VF s = x * x;
  VF p = vset(-0.0062742396257817745f);
  p = vfma(p, s, vset(0.021071679890155792f));
  p = vfma(p, s, vset(-0.05385230854153633f));
  p = vfma(p, s, vset(0.13332585990428925f));
  p = vfma(p, s, vset(-0.33333316445350647f));
  const VF small = vfma(s * x, p, x);
  const VF large = vset(1.0f) - vset(2.0f) / (vexp(a + a) + vset(1.0f));
  return vselect(vlt(a, vset(0.55f)), small, vcopysign(large, x));
}

// x * Phi(x). With a = |x|: Phi(-a) = exp(-a*a/2) * Q(a), where Q(a) = erfcx(a/sqrt(2))/2 is a
// polynomial in u = (a-3)/(a+3) over (a+3). No cancellation for negative x, unlike 1 + erf.
inline VF vgelu(VF x) {
  const VF a = vmin(vset(14.5f), vabs(x));  // Phi(-14.5) underflows
  const VF d = a + vset(3.0f);
  const VF u = (a - vset(3.0f)) / d;
  VF p = vset(5.445507849799469e-05f);
  p = vfma(p, u, vset(0.00013125385157763958f));
  p = vfma(p, u, vset(-0.0002447546867188066f));
  p = vfma(p, u, vset(-0.0010325240436941385f));
  p = vfma(p, u, vset(0.001024784054607153f));
  p = vfma(p, u, vset(0.006969302427023649f));
  p = vfma(p, u, vset(-0.010462520644068718f));
  p = vfma(p, u, vset(-0.04726268723607063f));
  p = vfma(p, u, vset(0.23001770675182343f));
  p = vfma(p, u, vset(-0.509332001209259f));
  p = vfma(p, u, vset(0.7290837168693542f));
  const VF square = a * a;
  const VF low = vfms(a, a, square);  // what rounding took from a*a
  const VF e = vexp(vset(-0.5f) * square);
  const VF tail = vfnma(vset(0.5f) * low, e, e) * (p / d);
  return x * vselect(vlt(x, vset(0.0f)), tail, vset(1.0f) - tail);
}

#endif

inline VF vsigmoid(VF x) { return vset(1.0f) / (vset(1.0f) + vexp(vset(0.0f) - x)); }
inline VF vsilu(VF x) { return x / (vset(1.0f) + vexp(vset(0.0f) - x)); }

// 0.5*x*(1 + tanh(u)) = x * sigmoid(2u), u = sqrt(2/pi) * (x + 0.044715 x^3): no cancellation.
inline VF vgelu_tanh(VF x) {
  const VF cubic = vset(0.0713548162726f) * (x * x);  // 2*sqrt(2/pi)*0.044715
  const VF t = x * (vset(1.59576912161f) + cubic);
  return x / (vset(1.0f) + vexp(vset(0.0f) - t));
}

inline VF vrelu(VF x) { return vselect(vlt(x, vset(0.0f)), vset(0.0f), x); }

}  // namespace
}  // namespace ei::EI_NS

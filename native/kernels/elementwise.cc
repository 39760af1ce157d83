// Norms, rotary embedding, activations and the arithmetic between them; one row a call.
#include "kernels/vecmath.h"

namespace ei::EI_NS {
namespace {

// y[i] = f(a[i]) and y[i] = f(a[i], b[i]); a vector is read before it is written, so y may be a or
// b.
template <typename F>
inline void map(const float* a, int n, float* y, F f) {
  int i = 0;
  for (; i + kW <= n; i += kW) vstore(y + i, f(vload(a + i)));
  if (i < n) vstore_n(y + i, f(vload_n(a + i, n - i)), n - i);
}

template <typename F>
inline void map(const float* a, const float* b, int n, float* y, F f) {
  int i = 0;
  for (; i + kW <= n; i += kW) vstore(y + i, f(vload(a + i), vload(b + i)));
  if (i < n) vstore_n(y + i, f(vload_n(a + i, n - i), vload_n(b + i, n - i)), n - i);
}

// Sum of f(x[i]) in the lane order of simd.h; f(0) is not called for the padding of the tail.
template <typename F>
inline float lane_sum(const float* x, int n, F f) {
  VF acc[kLaneVectors];
  for (int j = 0; j < kLaneVectors; ++j) acc[j] = vset(0.0f);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int j = 0; j < kLaneVectors; ++j) acc[j] = acc[j] + f(vload(x + i + j * kW));
  float rest[kLanes] = {};
  const int tail = n - i;
  map(x + i, tail, rest, f);
  for (int j = 0; j < kLaneVectors; ++j) acc[j] = acc[j] + vload(rest + j * kW);
  return reduce_lanes(acc);
}

template <KvType kType>
void load_16(const uint16_t* x, int width, float* y) {
  int i = 0;
#if EI_LEVEL > 0
  for (; i + kW <= width; i += kW) vstore(y + i, vload_kv<kType>(x + i));
#endif
  for (; i < width; ++i) y[i] = kv_to_float<kType>(x[i]);
}

void load_floats(const void* x, FloatType type, int width, float* y) {
  if (type == FloatType::kF32)
    memcpy(y, x, static_cast<size_t>(width) * 4);
  else if (type == FloatType::kBf16)
    load_16<KvType::kBf16>(static_cast<const uint16_t*>(x), width, y);
  else
    load_16<KvType::kF16>(static_cast<const uint16_t*>(x), width, y);
}

void store_floats(const float* x, int width, FloatType type, void* y) {
  if (type == FloatType::kF32) {
    memcpy(y, x, static_cast<size_t>(width) * 4);
    return;
  }
  uint16_t* out = static_cast<uint16_t*>(y);
  int i = 0;
  if (type == FloatType::kBf16) {
    for (; i < width; ++i) out[i] = float_to_bf16(x[i]);  // vectorized by the compiler
    return;
  }
#if EI_LEVEL > 0
  for (; i + kW <= width; i += kW) vstore_f16(out + i, vload(x + i));
#endif
  for (; i < width; ++i) out[i] = float_to_half(x[i]);
}

void rms_norm(const float* x, const float* weight, float weight_offset, float eps, int width,
              const float* residual, float* y) {
  const float sum = lane_sum(x, width, [](VF v) { return v * v; });
  const VF inv = vset(1.0f / sqrtf(sum / static_cast<float>(width) + eps));
  const VF offset = vset(weight_offset);
  for (int i = 0; i < width; i += kW) {
    const int n = width - i < kW ? width - i : kW;
    const bool full = n == kW;
    VF v = (full ? vload(x + i) : vload_n(x + i, n)) * inv;
    if (weight != nullptr) v = v * ((full ? vload(weight + i) : vload_n(weight + i, n)) + offset);
    if (residual != nullptr) v = v + (full ? vload(residual + i) : vload_n(residual + i, n));
    if (full) {
      vstore(y + i, v);
    } else {
      vstore_n(y + i, v, n);
    }
  }
}

void layer_norm(const float* x, const float* weight, const float* bias, float eps, int width,
                float* y) {
  const float mean = lane_sum(x, width, [](VF v) { return v; }) / static_cast<float>(width);
  const VF m = vset(mean);
  const float squares = lane_sum(x, width, [m](VF v) {
    const VF d = v - m;
    return d * d;
  });
  const VF inv = vset(1.0f / sqrtf(squares / static_cast<float>(width) + eps));
  for (int i = 0; i < width; i += kW) {
    const int n = width - i < kW ? width - i : kW;
    const bool full = n == kW;
    VF v = ((full ? vload(x + i) : vload_n(x + i, n)) - m) * inv;
    if (weight != nullptr) v = v * (full ? vload(weight + i) : vload_n(weight + i, n));
    if (bias != nullptr) v = v + (full ? vload(bias + i) : vload_n(bias + i, n));
    if (full) {
      vstore(y + i, v);
    } else {
      vstore_n(y + i, v, n);
    }
  }
}

void rope(float* x, int heads, int head_dim, int half, const float* cos, const float* sin,
          bool interleaved) {
  for (int h = 0; h < heads; ++h) {
    float* a = x + static_cast<int64_t>(h) * head_dim;
    if (interleaved) {
      for (int i = 0; i < half; ++i) {
        const float even = a[2 * i];
        const float odd = a[2 * i + 1];
        a[2 * i] = even * cos[i] - odd * sin[i];
        a[2 * i + 1] = odd * cos[i] + even * sin[i];
      }
      continue;
    }
    float* b = a + half;
    int i = 0;
    for (; i + kW <= half; i += kW) {
      const VF c = vload(cos + i), s = vload(sin + i), u = vload(a + i), v = vload(b + i);
      vstore(a + i, u * c - v * s);
      vstore(b + i, v * c + u * s);
    }
    if (i < half) {
      const int n = half - i;
      const VF c = vload_n(cos + i, n), s = vload_n(sin + i, n);
      const VF u = vload_n(a + i, n), v = vload_n(b + i, n);
      vstore_n(a + i, u * c - v * s, n);
      vstore_n(b + i, v * c + u * s, n);
    }
  }
}

void activation(const float* x, int width, Activation a, float* y) {
  switch (a) {
    case Activation::kNone:
      return map(x, width, y, [](VF v) { return v; });
    case Activation::kSilu:
      return map(x, width, y, [](VF v) { return vsilu(v); });
    case Activation::kGelu:
      return map(x, width, y, [](VF v) { return vgelu(v); });
    case Activation::kGeluTanh:
      return map(x, width, y, [](VF v) { return vgelu_tanh(v); });
    case Activation::kSigmoid:
      return map(x, width, y, [](VF v) { return vsigmoid(v); });
    case Activation::kRelu:
      return map(x, width, y, [](VF v) { return vrelu(v); });
  }
}

void glu(const float* gate, const float* up, int width, Activation a, float* y) {
  switch (a) {
    case Activation::kNone:
      return map(gate, up, width, y, [](VF g, VF u) { return g * u; });
    case Activation::kSilu:
      return map(gate, up, width, y, [](VF g, VF u) { return vsilu(g) * u; });
    case Activation::kGelu:
      return map(gate, up, width, y, [](VF g, VF u) { return vgelu(g) * u; });
    case Activation::kGeluTanh:
      return map(gate, up, width, y, [](VF g, VF u) { return vgelu_tanh(g) * u; });
    case Activation::kSigmoid:
      return map(gate, up, width, y, [](VF g, VF u) { return vsigmoid(g) * u; });
    case Activation::kRelu:
      return map(gate, up, width, y, [](VF g, VF u) { return vrelu(g) * u; });
  }
}

void add(const float* a, const float* b, int width, float* y) {
  map(a, b, width, y, [](VF u, VF v) { return u + v; });
}

void mul(const float* a, const float* b, int width, float* y) {
  map(a, b, width, y, [](VF u, VF v) { return u * v; });
}

void scale(const float* x, float factor, int width, float* y) {
  const VF f = vset(factor);
  map(x, width, y, [f](VF v) { return v * f; });
}

void softcap(const float* x, float cap, int width, float* y) {
  const VF c = vset(cap);
  map(x, width, y, [c](VF v) { return c * vtanh(v / c); });
}

void head_gate(const float* x, const float* gate, int heads, int head_dim, float* y) {
  for (int h = 0; h < heads; ++h) {
    const VF g = vset(vfirst(vsigmoid(vset(gate[h]))));
    const int64_t at = static_cast<int64_t>(h) * head_dim;
    map(x + at, head_dim, y + at, [g](VF v) { return v * g; });
  }
}

}  // namespace

void register_elementwise(KernelTable& t) {
  t.load_floats = load_floats;
  t.store_floats = store_floats;
  t.rms_norm = rms_norm;
  t.layer_norm = layer_norm;
  t.rope = rope;
  t.activation = activation;
  t.glu = glu;
  t.add = add;
  t.mul = mul;
  t.scale = scale;
  t.softcap = softcap;
  t.head_gate = head_gate;
}

}  // namespace ei::EI_NS

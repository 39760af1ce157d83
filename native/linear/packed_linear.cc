#include "linear/packed_linear.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <utility>

#include "common/error.h"
#include "isa/isa.h"
#include "linear/rows.h"
#include "linear/threads.h"
#include "team/team.h"

namespace ei {
namespace {

constexpr int64_t kPassRows = 512;        // rows of one pass over the weights; bounds the scratch
constexpr int64_t kLine = 64;             // of the cache: threads' claims lie in lines of their own
constexpr int64_t kTileFloats = 1 << 16;  // results that a thread holds before they leave as 16 bit

thread_local Workspace workspace;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

const uint8_t* row_of(const FloatRows& x, int64_t row) {
  return static_cast<const uint8_t*>(x.data) + row * x.stride * float_bytes(x.type);
}

}  // namespace

LinearThreads linear_threads() {
  const OpenMp* omp = OpenMp::find();
  return omp == nullptr ? LinearThreads{"", 1} : LinearThreads{omp->library(), omp->max_threads()};
}

PackedLinear::PackedLinear(std::vector<Matrix> segments, std::vector<float> bias,
                           const std::string& level, std::optional<bool> bf16_prefill)
    : segments_(std::move(segments)),
      bias_(std::move(bias)),
      kernels_(level.empty() ? ei::kernels() : kernel_table(level)),
      bf16_prefill_(bf16_prefill.value_or(kernels_.bf16_prefill)) {
  if (segments_.empty()) throw Error("invalid_parameter", "A linear needs at least one matrix.");
  k_ = segments_[0].k;
  for (const Matrix& m : segments_) {
    if (m.k != k_)
      throw Error("invalid_parameter", "The matrices of a linear have one K, not " +
                                           std::to_string(k_) + " and " + std::to_string(m.k) +
                                           ".");
    (is_packed(m) ? packed_ : floats_) = true;
    k_pad_ = std::max(k_pad_, round_up(m.k_pad, kActGroup));
    n_ += m.n;
    blocks_ += blocks_of(m);
  }
  if (!bias_.empty() && bias_.size() != static_cast<size_t>(n_))
    throw Error("invalid_parameter", "The bias has " + std::to_string(bias_.size()) +
                                         " values; N is " + std::to_string(n_) + ".");
}

// A thread's own memory: f32 rows, up to two transformed rows, a tile of results, kernel scratch.
struct PackedLinear::Plan {
  int64_t rows, tile, scratch, bytes;
  int tile_blocks;

  Plan(const PackedLinear& l, int64_t count) {
    const int64_t k_pad = l.k_pad_;
    rows = 16 * k_pad * 4;
    tile = round_up(rows + kPrivateRows * (k_pad + k_pad / kActGroup * 8) + 256, 64);
    const int64_t wanted = kTileFloats / count / kBlockN / 8 * 8;
    tile_blocks = static_cast<int>(std::clamp<int64_t>(wanted, 8, round_up(l.blocks_, 8)));
    scratch = tile + round_up(count * tile_stride() * 4, 64);
    bytes = round_up(
        scratch + (l.bf16_prefill_ ? l.kernels_.bf16_scratch_bytes(static_cast<int>(k_pad)) : 0),
        4096);
  }
  // 16 more than a tile's channels: rows at a multiple of 4 KB would share the cache's sets
  int64_t tile_stride() const { return int64_t{tile_blocks} * kBlockN + kBlockN; }
};

// One pass: up to kPassRows rows over all channels, by all threads of a region together.
struct PackedLinear::Pass {
  FloatRows x;  // from the pass's first row on, like y
  int rows, int_rows;
  const float* bias;
  uint8_t* y;
  int64_t y_stride;
  FloatType y_type;
  Plan plan;
  uint8_t* own;     // plan.bytes for each thread
  uint8_t* shared;  // transformed rows
  Claims claims;
  Barrier barrier{};
};

void PackedLinear::run(const FloatRows& x, int64_t rows, int64_t decode_rows, bool with_bias,
                       void* y, int64_t y_stride, FloatType y_type) const {
  const OpenMp* omp = threads_for(rows * n_ * int64_t{k_});
  const int64_t threads = omp != nullptr ? omp->max_threads() : 1;
  for (int64_t row = 0; row < rows; row += kPassRows) {
    const int count = static_cast<int>(std::min(kPassRows, rows - row));
    const int64_t integer = bf16_prefill_ ? decode_rows - row : count;
    const Plan plan(*this, count);
    uint8_t* const memory =
        workspace.reserve(threads * (plan.bytes + kLine) + InputRows::bytes(count, k_pad_));
    auto* const taken = reinterpret_cast<std::atomic<uint64_t>*>(memory);
    const Claims claims{taken, kLine / static_cast<int64_t>(sizeof *taken)};
    for (int64_t t = 0; t < threads; ++t)
      new (&claims.of(static_cast<int>(t))) std::atomic<uint64_t>(0);
    uint8_t* const own = memory + threads * kLine;
    Pass p{{row_of(x, row), x.stride, x.type},
           count,
           static_cast<int>(std::clamp<int64_t>(integer, 0, count)),
           with_bias && !bias_.empty() ? bias_.data() : nullptr,
           static_cast<uint8_t*>(y) + row * y_stride * float_bytes(y_type),
           y_stride,
           y_type,
           plan,
           own,
           own + threads * plan.bytes,
           claims};
    on_threads(omp, [&](int thread, int team) { pass(p, thread, team); });
  }
}

void PackedLinear::pass(Pass& p, int thread, int threads) const {
  const KernelTable& kt = kernels_;
  uint8_t* const own = p.own + thread * p.plan.bytes;
  float* const temp = reinterpret_cast<float*>(own);
  const bool alone = p.rows <= kPrivateRows && (p.int_rows == p.rows || !packed_);
  InputRows in(alone ? own + p.plan.rows : p.shared, p.rows, p.int_rows,
               alone ? kPrivateRows : p.int_rows, k_, k_pad_);

  // --- input rows ---
  const bool f32 = p.x.type == FloatType::kF32;
  const auto row = [&](int64_t r, float* to) -> const float* {
    if (f32) return reinterpret_cast<const float*>(row_of(p.x, r));
    kt.load_floats(row_of(p.x, r), p.x.type, k_, to);
    return to;
  };
  const auto share = [&](int count) {
    const auto cut = [&](int t) { return static_cast<int>(int64_t{count} * t / threads); };
    return alone ? std::pair(0, count) : std::pair(cut(thread), cut(thread + 1));
  };
  if (floats_) {
    float* const converted = alone ? temp : reinterpret_cast<float*>(in.after);
    in.floats = f32 ? row(0, nullptr) : converted;
    in.float_stride = f32 ? p.x.stride : k_;
    const auto [first, last] = share(f32 ? 0 : p.rows);
    for (int r = first; r < last; ++r) row(r, converted + int64_t{r} * k_);
  }
  if (packed_) {
    float* const to = temp + (floats_ && alone ? kPrivateRows * int64_t{k_} : 0);
    const auto [first, last] = share(p.int_rows);
    for (int r = first; r < last; ++r) in.quantize(kt, r, row(r, to));
    const auto [tile0, tile1] = share(in.tile_count());
    for (int t = tile0; t < tile1; ++t) {
      const int r = p.int_rows + 16 * t, count = std::min(16, p.rows - r);
      for (int i = 0; i < count && !f32; ++i) row(r + i, temp + int64_t{i} * k_);
      in.pack(kt, t, count, f32 ? row(r, nullptr) : temp, f32 ? p.x.stride : k_);
    }
  }
  if (!alone) p.barrier.wait(threads);

  // --- channels: f32 results go straight to y, others through a tile ---
  float* const tile = reinterpret_cast<float*>(own + p.plan.tile);
  void* const scratch = own + p.plan.scratch;
  const int64_t tile_stride = p.plan.tile_stride(), size = float_bytes(p.y_type);
  const auto matrix = [&](size_t i) -> const Matrix& { return segments_[i]; };
  share_blocks(blocks_, share_unit(p.rows), thread, threads, p.claims, [&](int begin, int end) {
    for_segments(segments_.size(), matrix, begin, end, [&](size_t i, int b0, int b1, int column) {
      const Matrix& m = matrix(i);
      const Epilogue e{p.bias == nullptr ? nullptr : p.bias + column, false};
      if (p.y_type == FloatType::kF32) {
        in.multiply(kt, m, b0, b1, scratch, reinterpret_cast<float*>(p.y) + column, p.y_stride, e);
        return;
      }
      for (int b = b0; b < b1; b += p.plan.tile_blocks) {
        const int last = std::min(b1, b + p.plan.tile_blocks), channel = b * kBlockN;
        in.multiply(kt, m, b, last, scratch, tile - channel, tile_stride, e);
        const int channels = std::min(m.n, last * kBlockN) - channel;
        uint8_t* out = p.y + (column + channel) * size;
        for (int r = 0; r < p.rows; ++r)
          kt.store_floats(tile + r * tile_stride, channels, p.y_type, out + r * p.y_stride * size);
      }
    });
  });
}

void PackedLinear::lookup(const int64_t* ids, int64_t count, void* y, int64_t y_stride,
                          FloatType y_type) const {
  const Matrix& m = segments_[0];
  for (int64_t i = 0; i < count; ++i)
    if (ids[i] < 0 || ids[i] >= m.n)
      throw Error("invalid_parameter", "Row " + std::to_string(ids[i]) + " is outside 0.." +
                                           std::to_string(m.n - 1) + ".");
  const OpenMp* omp = threads_for(count * k_ * int64_t{16});
  const int64_t threads = omp != nullptr ? omp->max_threads() : 1;
  const int64_t bytes = round_up(int64_t{k_} * 4, 64);
  uint8_t* const memory = workspace.reserve(threads * bytes);
  on_threads(omp, [&](int thread, int team) {
    float* const temp = reinterpret_cast<float*>(memory + thread * bytes);
    for (int64_t i = count * thread / team; i < count * (thread + 1) / team; ++i) {
      const auto id = static_cast<int32_t>(ids[i]);
      kernels_.dequantize_rows(m, &id, 1, 1.0f, temp, k_);
      kernels_.store_floats(temp, k_, y_type,
                            static_cast<uint8_t*>(y) + i * y_stride * float_bytes(y_type));
    }
  });
}

}  // namespace ei

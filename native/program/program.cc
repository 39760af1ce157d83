#include "program/program.h"

#include <algorithm>

#include "isa/isa.h"
#include "linear/rows.h"
#include "program/worker.h"

namespace ei {
namespace {

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

Program::Program(ProgramSpec spec, std::shared_ptr<Team> team, std::shared_ptr<KvPool> pool,
                 std::vector<std::shared_ptr<WeightMap>> maps)
    : spec_(std::move(spec)),
      team_(std::move(team)),
      pool_(std::move(pool)),
      maps_(std::move(maps)),
      kernels_(ei::kernels()) {
  check();
  plan_scratch();
  arena_ = Arena(static_cast<size_t>(spec_.arena_bytes));
  claims_ = std::make_unique<std::atomic<uint64_t>[]>(spec_.ops.size() * team_->threads());
  op_times_.resize(spec_.ops.size());
  cos_.resize(spec_.tables.size());
  sin_.resize(spec_.tables.size());

  plan_row_ops();
  // How far back a group's layers look: the widest window, 0 when some layer sees everything.
  if (pool_ != nullptr) {
    group_window_.assign(pool_->groups().size(), 0);
    std::vector<uint8_t> unlimited(pool_->groups().size());
    for (const Op& op : spec_.ops) {
      if (op.kind != OpKind::kAttention) continue;
      if (op.window == 0) unlimited[op.group] = 1;
      group_window_[op.group] =
          unlimited[op.group] ? 0 : std::max(group_window_[op.group], op.window);
    }
  }
}

void Program::plan_scratch() {
  int64_t k = 1;
  for (const Op& op : spec_.ops) {
    if (op.kind != OpKind::kLinear) continue;
    k = std::max<int64_t>(k, op.weights[0].matrix.k);
    for (const Weight& w : op.weights) packed_ = packed_ || is_packed(w.matrix);
  }
  max_k_pad_ = round_up(k, 128);
  const int64_t rows = round_up(std::max(spec_.max_rows, spec_.max_outputs), 16);
  shared_ = Arena(static_cast<size_t>(InputRows::bytes(rows, max_k_pad_)));

  int group_heads = 1;
  for (const Op& op : spec_.ops) {
    if (op.kind != OpKind::kAttention) continue;
    group_heads = std::max(group_heads, op.heads / op.kv_heads);
    kv_heads_ = kv_heads_ == 0 ? op.kv_heads : std::min(kv_heads_, op.kv_heads);
  }
  max_tile_rows_ = std::clamp(kTileVectors / group_heads, kTileRows, kMaxTileRows);
  int64_t attention = 0;
  for (const Op& op : spec_.ops)
    if (op.kind == OpKind::kAttention)
      attention = std::max(attention, kernels_.prefill_scratch_floats(
                                          max_tile_rows_, op.heads / op.kv_heads, op.head_dim));
  const int64_t bf16 =
      kernels_.bf16_scratch_bytes ? kernels_.bf16_scratch_bytes(static_cast<int>(max_k_pad_)) : 0;
  private_rows_ = round_up(16 * max_k_pad_ * 4 + max_k_pad_ * 4 + 4096, 4096);
  private_stride_ = private_rows_ + round_up(std::max(bf16, attention * 4), 4096);
  private_ = Arena(static_cast<size_t>(private_stride_ * team_->threads()));
}

int64_t Program::scratch_bytes() const {
  return static_cast<int64_t>(shared_.size() + private_.size() + partials_.size() * sizeof(float));
}

std::vector<Program::Memory> Program::memory() const {
  const auto arena = [](const char* name, const Arena& a) {
    return Memory{name, false, a.data(), static_cast<int64_t>(a.size())};
  };
  const auto floats = [](const char* name, const std::vector<float>& v) {
    return Memory{name, true, v.data(), static_cast<int64_t>(v.capacity() * sizeof(float))};
  };
  std::vector<Memory> all = {arena("activations", arena_), arena("scratch", shared_),
                             arena("scratch", private_), floats("attention partials", partials_)};
  for (const auto* angles : {&cos_, &sin_})
    for (const auto& table : *angles) all.push_back(floats("RoPE tables", table));
  return all;
}

const float* Program::row(int buffer, int row) const {
  const Buffer& b = spec_.buffers.at(buffer);
  return reinterpret_cast<const float*>(arena_.data() + b.offset) + row * b.stride;
}

void Program::set_profiling(bool on) {
  std::lock_guard<std::mutex> lock(turn_);
  profiling_ = on;
  std::fill(op_times_.begin(), op_times_.end(), OpTimes{});
  step_times_ = {};
}

void Program::step(const StepInput& input) {
  std::unique_lock<std::mutex> lock(turn_, std::try_to_lock);
  if (!lock.owns_lock())
    throw Error("execution_failed", "A step of this program is already running.");
  const Clock::time_point begin = Clock::now();
  check_step(input);
  prepare(input);
  team_->run_elastic([](void* self, int thread,
                        int threads) { static_cast<Program*>(self)->run(thread, threads); },
                     this);
  if (profiling_) {
    step_times_.prepare += seconds(operations_begin_ - begin);
    step_times_.join += seconds(Clock::now() - operations_end_);
  }
  in_ = nullptr;
  last_rows_ = input.rows;
  last_outputs_ = input.outputs;
  for (const auto& map : maps_) map->check();
}

void Program::prepare(const StepInput& in) {
  in_ = &in;
  for (size_t i = 0; i < spec_.ops.size() * team_->threads(); ++i)
    claims_[i].store(0, std::memory_order_relaxed);
  decode_outputs_ = 0;
  while (decode_outputs_ < in.outputs && in.output_rows[decode_outputs_] < in.decode_rows)
    ++decode_outputs_;

  // Tiles as long as every thread finds some; results do not depend on their length.
  const int64_t pieces = static_cast<int64_t>(in.rows - in.decode_rows) * kv_heads_;
  const int64_t shared = pieces / (kTilesPerThread * team_->threads());
  const int length =
      std::max(kTileRows, static_cast<int>(std::min<int64_t>(shared, max_tile_rows_)));
  tiles_.clear();
  for (int r = in.decode_rows; r < in.rows;) {
    int n = 1;
    while (r + n < in.rows && n < length && in.sequence[r + n] == in.sequence[r]) ++n;
    tiles_.push_back({r, n});
    r += n;
  }
  embed_index_.assign(in.rows, -1);
  for (int r = 0, next = 0; r < in.rows; ++r)
    if (in.tokens[r] < 0) embed_index_[r] = next++;

  for (size_t t = 0; t < spec_.tables.size(); ++t) {
    const size_t n = spec_.tables[t].inverse_frequency.size() * in.rows;
    if (cos_[t].size() < n) {
      cos_[t].resize(n);
      sin_[t].resize(n);
    }
  }
  // The widest split attention of this step decides the space for partial results.
  size_t floats = 0;
  for (const Op& op : spec_.ops) {
    if (op.kind != OpKind::kAttention) continue;
    size_t items = 0;
    for (int r = 0; r < in.decode_rows; ++r) {
      const int end = op.full ? in.groups[op.group].lengths[in.sequence[r]] : in.visible_end[r];
      items += (end + kAttentionSplit - 1) / kAttentionSplit + 1;
    }
    floats = std::max(floats, items * op.heads * (op.head_dim + 2));
  }
  if (partials_.size() < floats) partials_.resize(floats);
}

void Program::run(int thread, int threads) {
  Worker w{thread, threads, team_->barrier(), private_.data() + thread * private_stride_};
  fill_rope_tables(w);
  const bool timing = profiling_ && thread == 0;
  if (timing) w.last = operations_begin_ = Clock::now();
  for (size_t i = 0; i < spec_.ops.size(); ++i) {
    const Op& op = spec_.ops[i];
    if (timing) w.times = &op_times_[i];
    if (barrier_before_[i]) w.wait();
    if (rows_in(space_of(op)) > 0) {
      if (op.kind == OpKind::kLinear)
        run_linear(op, i, w);
      else if (op.kind == OpKind::kAttention)
        run_attention(op, i, w);
      else
        run_rows(op, i, w);
    }
    w.lap(&OpTimes::work);
  }
  if (timing) operations_end_ = w.last;
}

}  // namespace ei

// An operation list over named buffers, and the executor: one call runs one step of a whole model.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/arena.h"
#include "kernels/kernels.h"
#include "kv/pool.h"
#include "program/weight_map.h"
#include "team/share.h"
#include "team/team.h"

namespace ei {

// A matrix or vector together with whatever keeps its memory alive.
struct Weight {
  Matrix matrix{};
  std::shared_ptr<const void> owner;
};
struct Vector {
  const float* data = nullptr;
  int64_t size = 0;
  std::shared_ptr<const void> owner;
  // Where in a weight file it lies, or was converted from; nothing reads through this.
  struct Source {
    const uint8_t* data = nullptr;
    int64_t bytes = 0;
  } source;
};

// Rows of a step live in one of two spaces: every row of the step, or the rows whose outputs are
// wanted.
enum class Space : int32_t { kRows = 0, kOutputs = 1 };

struct Buffer {
  int32_t width = 0;   // floats per row
  int64_t stride = 0;  // width rounded up to a cache line
  Space space = Space::kRows;
  int64_t offset = 0;  // bytes into the arena; planned by liveness, buffers may share memory
};

// Columns [column, column+width) of a buffer; buffer -1: none.
struct Ref {
  int32_t buffer = -1;
  int32_t column = 0;
  int32_t width = 0;
};

enum class OpKind : int32_t {
  kEmbed,    // out = rows of weights[0] by token id, times factor; rows with token -1 come from the
             // step
  kLinear,   // out = [segments](prologue(in)), segments side by side; + bias; + out when accumulate
  kRmsNorm,  // per head of head_dim; + out when accumulate
  kLayerNorm,
  kRope,       // in place on out
  kKvStore,    // in: keys, in2: values
  kAttention,  // in: queries
  kActivation,
  kGlu,  // act(in)*in2
  kAdd,
  kMul,
  kScale,
  kSoftcap,
  kHeadGate,  // in*sigmoid(in2[head])
  kGather,    // rows space -> outputs space
};

struct Op {
  OpKind kind = OpKind::kAdd;
  Ref in, in2, out;
  std::vector<Weight> weights;  // kLinear: segments; kEmbed: one
  std::vector<Vector> biases;   // kLinear: one a segment, empty vectors where there is none
  Vector weight, bias;          // norms
  int32_t prologue = -1;  // kLinear: index into Program prologues, a row operation fused in front
  bool accumulate = false;
  float eps = 0, weight_offset = 0, factor = 1, softcap = 0;
  int32_t heads = 1, head_dim = 0, kv_heads = 0;
  Activation activation = Activation::kNone;
  int32_t table = -1;            // kRope
  bool interleaved = false;      // kRope
  int32_t group = 0, layer = 0;  // kKvStore, kAttention
  int32_t window = 0;            // kAttention: 0 sees everything before; else that many positions
  bool full = false;             // kAttention: all of the context, whatever the row's position
};

// cos and sin of positions[axis[i]] * inverse_frequency[i], times attention_factor.
struct RopeTable {
  std::vector<float> inverse_frequency;
  std::vector<int32_t> axis;
  float attention_factor = 1;
};

struct ProgramSpec {
  int32_t max_rows = 0;
  int32_t max_outputs = 0;
  int32_t position_axes = 1;
  int32_t embed_width = 0;  // width of embedding rows given from outside; 0: none
  int64_t arena_bytes = 0;
  std::vector<Buffer> buffers;
  std::vector<Op> ops;
  std::vector<Op> prologues;
  std::vector<RopeTable> tables;
};

using Clock = std::chrono::steady_clock;

// Where thread 0 spent its time, in seconds.
struct OpTimes {
  double work = 0;
  double input = 0;  // kLinear: norm or gate in front, quantization or packing of its rows
  double wait = 0;   // at barriers, before the operation and inside it
};
struct StepTimes {
  double prepare = 0;  // checks, tables, waking the team
  double join = 0;     // waiting for the other threads at the end
};

// The rows of one step. Rows [0, decode_rows) use decode numerics, the rest prefill numerics;
// outputs likewise. All pointers are checked by Program::step against these counts.
struct StepInput {
  int32_t rows = 0, decode_rows = 0, sequences = 0;
  const int32_t* tokens = nullptr;  // [rows], -1: the next embedding row
  const float* embeds = nullptr;    // [embed_rows][embed_width]
  int32_t embed_rows = 0;
  const int32_t* positions = nullptr;    // [position_axes][rows]
  const int32_t* cache_index = nullptr;  // [rows]
  const int32_t* visible_end = nullptr;  // [rows]
  const int32_t* sequence = nullptr;     // [rows]
  const int32_t* output_rows = nullptr;  // [outputs], those of decode rows first
  int32_t outputs = 0;
  struct GroupTable {
    const int32_t* blocks = nullptr;  // [sequences][stride]
    int32_t stride = 0;
    const int32_t* lengths = nullptr;  // [sequences]: context length, for full attention
  };
  std::vector<GroupTable> groups;  // one for each group of the pool
};

class Program {
 public:
  // Checks every reference, shape and weight; throws Error("execution_failed") on a program that
  // does not hold together.
  Program(ProgramSpec spec, std::shared_ptr<Team> team, std::shared_ptr<KvPool> pool,
          std::vector<std::shared_ptr<WeightMap>> maps);

  // Runs one step. Throws Error("invalid_parameter") on input that does not fit the program, and
  // Error("weights_lost") when a mapped weight file could not be read.
  void step(const StepInput& input);

  const float* row(int buffer, int row) const;
  const ProgramSpec& spec() const { return spec_; }
  int64_t activation_bytes() const { return static_cast<int64_t>(arena_.size()); }
  int64_t scratch_bytes() const;
  // Every piece of memory that grows with the model or the step.
  struct Memory {
    const char* name;
    bool heap;  // from the C library's allocator, not a mapping of its own
    const void* data;
    int64_t bytes;
  };
  std::vector<Memory> memory() const;
  const KernelTable& kernels() const { return kernels_; }
  int last_outputs() const { return last_outputs_; }
  int last_rows() const { return last_rows_; }

  // Seconds by operation since profiling was switched on, and of the step around them.
  void set_profiling(bool on);
  const std::vector<OpTimes>& op_times() const { return op_times_; }
  const StepTimes& step_times() const { return step_times_; }

 private:
  struct Worker;  // one thread's view of the running step
  struct Tile {   // consecutive prefill rows of one sequence
    int32_t row, rows;
  };

  void check() const;
  void check_op(const Op& op, bool prologue) const;
  void check_step(const StepInput& in) const;
  void plan_scratch();
  void prepare(const StepInput& in);
  void run(int thread, int threads);

  struct Heads {  // [begin, end) of an operation's heads
    int begin, end;
  };
  // How many heads a row operation may work on apart; 1 where it needs the whole row.
  int heads_of(const Op& op) const;
  bool share_data(const Op& a, const Op& b) const;
  void plan_row_ops();
  void store_rows(const Op& op, int first, int last, Heads heads);
  void run_rows(const Op& op, size_t index, Worker& w);
  void run_row(const Op& op, int row, Heads heads, float* out);
  void run_linear(const Op& op, size_t index, Worker& w);
  void run_attention(const Op& op, size_t index, Worker& w);
  void attention_decode(const Op& op, Worker& w);
  void attention_prefill(const Op& op, size_t index, Worker& w);
  void fill_rope_tables(Worker& w);

  float* at(const Ref& r, int row) const {
    const Buffer& b = spec_.buffers[r.buffer];
    return reinterpret_cast<float*>(arena_.data() + b.offset) + row * b.stride + r.column;
  }
  Space space_of(const Op& op) const {
    return spec_.buffers[op.out.buffer < 0 ? op.in.buffer : op.out.buffer].space;
  }
  Claims claims(size_t op) const { return {&claims_[op], static_cast<int64_t>(spec_.ops.size())}; }
  int rows_in(Space s) const { return s == Space::kRows ? in_->rows : in_->outputs; }
  int decode_rows_in(Space s) const {
    return s == Space::kRows ? in_->decode_rows : decode_outputs_;
  }

  ProgramSpec spec_;
  std::shared_ptr<Team> team_;
  std::shared_ptr<KvPool> pool_;
  std::vector<std::shared_ptr<WeightMap>> maps_;
  const KernelTable& kernels_;
  std::mutex turn_;

  Arena arena_;    // activations
  Arena shared_;   // quantized or packed input rows of the running linear
  Arena private_;  // per thread
  int64_t private_stride_ = 0;
  int64_t private_rows_ = 0;     // bytes of a thread's input rows; kernel scratch follows them
  int64_t max_k_pad_ = 0;        // widest linear input, padded to 128
  std::vector<float> partials_;  // split attention: m, l, acc
  std::vector<uint8_t> barrier_before_;
  std::vector<int32_t> heads_apart_;  // how row operations divide a row among threads; 1: not
  std::unique_ptr<std::atomic<uint64_t>[]> claims_;  // [threads][operations]
  std::vector<int32_t> group_window_;                // 0: some layer sees everything

  // the running step
  const StepInput* in_ = nullptr;
  int decode_outputs_ = 0;
  std::vector<Tile> tiles_;
  int kv_heads_ = 0;     // the fewest of any attention
  bool packed_ = false;  // some linear has packed weights
  int max_tile_rows_ = 0;
  std::vector<int32_t> embed_index_;           // per row, -1 for a token
  std::vector<std::vector<float>> cos_, sin_;  // per rope table: [rows][half]
  int last_rows_ = 0, last_outputs_ = 0;

  bool profiling_ = false;
  std::vector<OpTimes> op_times_;
  StepTimes step_times_;
  Clock::time_point operations_begin_, operations_end_;
};

// A prefill tile takes so many query vectors (rows times the heads of a KV head) that widening a
// block of the pool costs little beside what they multiply, within these numbers of rows.
constexpr int kTileVectors = 128, kTileRows = 32, kMaxTileRows = 128;
constexpr int kTilesPerThread = 4;
constexpr int kAttentionSplit =
    256;  // tokens; splits lie at absolute multiples, for every batch alike

}  // namespace ei

// Everything that can be wrong with a program or with the input of a step, found before a kernel
// runs.
#include <algorithm>
#include <string>

#include "program/program.h"

namespace ei {
namespace {

[[noreturn]] void bad_program(const std::string& what) {
  throw Error("execution_failed", "Malformed program: " + what + ".");
}
[[noreturn]] void bad_step(const std::string& what) {
  throw Error("invalid_parameter", what + ".");
}

void require(bool ok, const char* what) {
  if (!ok) bad_program(what);
}

std::string text(int64_t n) { return std::to_string(n); }

}  // namespace

void Program::check() const {
  require(spec_.max_rows >= 1 && spec_.max_rows <= (1 << 20), "max_rows must be 1 to 2^20");
  require(spec_.max_outputs >= 0 && spec_.max_outputs <= (1 << 20),
          "max_outputs must be 0 to 2^20");
  require(spec_.position_axes >= 1 && spec_.position_axes <= 4, "1 to 4 position axes");
  require(team_ != nullptr, "no team");
  require(!spec_.ops.empty(), "no operations");
  for (const Buffer& b : spec_.buffers) {
    const int64_t rows = b.space == Space::kRows ? spec_.max_rows : spec_.max_outputs;
    require(b.width >= 1 && b.stride >= b.width && b.offset >= 0 && b.offset % 64 == 0 &&
                b.offset + rows * b.stride * 4 <= spec_.arena_bytes,
            "a buffer lies outside the arena");
  }
  for (const RopeTable& t : spec_.tables) {
    require(!t.inverse_frequency.empty() && t.axis.size() == t.inverse_frequency.size(),
            "a RoPE table needs one axis for each frequency");
    for (int32_t a : t.axis)
      require(a >= 0 && a < spec_.position_axes, "a RoPE axis does not exist");
  }
  for (const Op& op : spec_.prologues) check_op(op, true);
  for (const Op& op : spec_.ops) check_op(op, false);
}

void Program::check_op(const Op& op, bool prologue) const {
  const auto buffer = [&](const Ref& r) {
    require(r.buffer >= 0 && r.buffer < static_cast<int>(spec_.buffers.size()),
            "an operand has no buffer");
    const Buffer& b = spec_.buffers[r.buffer];
    require(r.column >= 0 && r.width >= 1 && r.width <= b.width - r.column,
            "an operand leaves its buffer");
  };
  const auto vector = [&](const Vector& v, int64_t n) {
    require(v.data == nullptr || v.size == n, "a weight vector has the wrong length");
  };
  const auto same_space = [&](const Ref& a, const Ref& b) {
    require(spec_.buffers[a.buffer].space == spec_.buffers[b.buffer].space,
            "operands live in different row spaces");
  };
  if (op.kind != OpKind::kRope && op.kind != OpKind::kEmbed) buffer(op.in);
  if (!prologue && op.kind != OpKind::kKvStore) buffer(op.out);
  if (!prologue && op.kind != OpKind::kKvStore && op.kind != OpKind::kRope &&
      op.kind != OpKind::kEmbed && op.kind != OpKind::kGather)
    same_space(op.in, op.out);
  const int64_t out_width = prologue ? op.in.width : op.out.width;

  switch (op.kind) {
    case OpKind::kEmbed:
      require(!prologue, "embed cannot be a prologue");
      require(spec_.buffers[op.out.buffer].space == Space::kRows, "embed fills rows of the step");
      require(op.weights.size() <= 1, "embed takes one matrix");
      require(!op.weights.empty() || spec_.embed_width > 0,
              "embed needs a matrix or embedding rows");
      if (!op.weights.empty()) require(op.weights[0].matrix.k == op.out.width, "embedding width");
      require(spec_.embed_width == 0 || spec_.embed_width == op.out.width, "embedding row width");
      break;
    case OpKind::kLinear: {
      require(!prologue && !op.weights.empty(), "linear needs segments");
      require(op.biases.size() == op.weights.size(), "one bias slot for each segment");
      int64_t n = 0;
      for (size_t i = 0; i < op.weights.size(); ++i) {
        const Matrix& m = op.weights[i].matrix;
        require(m.n >= 1 && m.k >= 1 && m.codes != nullptr, "an empty matrix");
        require(m.k == op.weights[0].matrix.k, "segments of one linear have different K");
        vector(op.biases[i], m.n);
        n += m.n;
      }
      require(op.out.width == n, "linear output width");
      int64_t k = op.in.width;
      if (op.prologue >= 0) {
        require(op.prologue < static_cast<int>(spec_.prologues.size()),
                "a prologue does not exist");
        same_space(spec_.prologues[op.prologue].in, op.out);
        k = spec_.prologues[op.prologue].in.width;
      }
      require(k == op.weights[0].matrix.k, "linear input width");
      break;
    }
    case OpKind::kRmsNorm:
      require(op.heads >= 1 && op.head_dim >= 1 && int64_t{op.heads} * op.head_dim == op.in.width,
              "norm heads");
      require(out_width == op.in.width, "norm output width");
      require(!(prologue && op.accumulate), "a prologue cannot accumulate");
      vector(op.weight, op.head_dim);
      break;
    case OpKind::kLayerNorm:
      require(out_width == op.in.width, "norm output width");
      vector(op.weight, op.in.width);
      vector(op.bias, op.in.width);
      break;
    case OpKind::kRope: {
      require(!prologue, "rope cannot be a prologue");
      require(op.table >= 0 && op.table < static_cast<int>(spec_.tables.size()),
              "a RoPE table does not exist");
      require(spec_.buffers[op.out.buffer].space == Space::kRows, "rope works on rows of the step");
      const int64_t half = static_cast<int64_t>(spec_.tables[op.table].inverse_frequency.size());
      require(op.heads >= 1 && op.head_dim >= 2 * half &&
                  int64_t{op.heads} * op.head_dim == op.out.width,
              "RoPE heads");
      break;
    }
    case OpKind::kKvStore:
    case OpKind::kAttention: {
      require(!prologue && pool_ != nullptr, "attention needs a KV pool");
      require(op.group >= 0 && op.group < static_cast<int>(pool_->groups().size()),
              "a KV group does not exist");
      const KvGroupSpec& g = pool_->groups()[op.group];
      require(op.layer >= 0 && op.layer < g.layers, "a KV layer does not exist");
      require(spec_.buffers[op.in.buffer].space == Space::kRows,
              "attention works on rows of the step");
      if (op.kind == OpKind::kKvStore) {
        buffer(op.in2);
        require(op.in.width == g.kv_heads * g.head_dim && op.in2.width == op.in.width, "KV width");
      } else {
        require(op.head_dim == g.head_dim && op.kv_heads == g.kv_heads,
                "attention heads differ from the pool's");
        require(op.heads >= 1 && op.heads % op.kv_heads == 0,
                "query heads are not a multiple of KV heads");
        require(op.in.width == op.heads * op.head_dim && op.out.width == op.in.width,
                "attention width");
        require(op.window >= 0, "a negative window");
      }
      break;
    }
    case OpKind::kActivation:
    case OpKind::kScale:
    case OpKind::kSoftcap:
      require(out_width == op.in.width, "output width");
      break;
    case OpKind::kGlu:
    case OpKind::kAdd:
    case OpKind::kMul:
      buffer(op.in2);
      same_space(op.in, op.in2);
      require(op.in2.width == op.in.width && out_width == op.in.width, "operand widths");
      break;
    case OpKind::kHeadGate:
      buffer(op.in2);
      same_space(op.in, op.in2);
      require(op.heads >= 1 && int64_t{op.heads} * op.head_dim == op.in.width &&
                  op.in2.width == op.heads && out_width == op.in.width,
              "head gate widths");
      break;
    case OpKind::kGather:
      require(!prologue, "gather cannot be a prologue");
      require(spec_.buffers[op.in.buffer].space == Space::kRows &&
                  spec_.buffers[op.out.buffer].space == Space::kOutputs,
              "gather goes from rows to outputs");
      require(op.in.width == op.out.width, "gather width");
      break;
  }
}

void Program::check_step(const StepInput& in) const {
  if (in.rows < 1 || in.rows > spec_.max_rows)
    bad_step("A step has 1 to " + text(spec_.max_rows) + " rows, not " + text(in.rows));
  if (in.decode_rows < 0 || in.decode_rows > in.rows) bad_step("decode_rows must be 0 to rows");
  if (in.sequences < 1) bad_step("A step needs at least one sequence");
  if (in.outputs < 0 || in.outputs > spec_.max_outputs)
    bad_step("A step has at most " + text(spec_.max_outputs) + " outputs, not " + text(in.outputs));

  int64_t vocabulary = 0;
  for (const Op& op : spec_.ops)
    if (op.kind == OpKind::kEmbed && !op.weights.empty()) vocabulary = op.weights[0].matrix.n;
  int given = 0;
  for (int r = 0; r < in.rows; ++r) {
    if (in.tokens[r] >= vocabulary)
      bad_step("Token id " + text(in.tokens[r]) + " is outside the vocabulary of " +
               text(vocabulary));
    given += in.tokens[r] < 0;
    if (in.sequence[r] < 0 || in.sequence[r] >= in.sequences)
      bad_step("A row names a sequence that is not in the step");
    if (in.cache_index[r] < 0 || in.visible_end[r] < 0)
      bad_step("A row has a negative cache position");
  }
  if (given > 0 && spec_.embed_width == 0)
    bad_step("Row tokens are negative, and this program takes no embedding rows");
  if (given != in.embed_rows)
    bad_step(text(given) + " rows ask for embedding rows, " + text(in.embed_rows) + " were given");

  for (int i = 0; i < in.outputs; ++i) {
    if (in.output_rows[i] < 0 || in.output_rows[i] >= in.rows)
      bad_step("An output names a row that is not in the step");
    if (i > 0 && in.output_rows[i] < in.decode_rows && in.output_rows[i - 1] >= in.decode_rows)
      bad_step("Outputs of decode rows come before those of prefill rows");
  }
  if (pool_ == nullptr) return;
  const auto& groups = pool_->groups();
  if (in.groups.size() != groups.size())
    bad_step("The pool has " + text(groups.size()) + " groups, the step " + text(in.groups.size()) +
             " block tables");

  // Which blocks the program touches, by group: stored rows, and what rows see.
  std::vector<uint8_t> stores(groups.size()), reads(groups.size()), reads_full(groups.size());
  for (const Op& op : spec_.ops) {
    if (op.kind == OpKind::kKvStore) stores[op.group] = 1;
    if (op.kind == OpKind::kAttention) (op.full ? reads_full : reads)[op.group] = 1;
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    const StepInput::GroupTable& t = in.groups[g];
    if (!stores[g] && !reads[g] && !reads_full[g]) continue;
    const auto check_range = [&](int sequence, int64_t begin, int64_t end) {
      if (end <= begin) return;
      const int64_t last = (end - 1) / kKvBlock;
      if (last >= t.stride)
        bad_step("A block table has " + text(t.stride) + " entries; position " + text(end - 1) +
                 " needs more");
      for (int64_t b = begin / kKvBlock; b <= last; ++b) {
        const int32_t block = t.blocks[static_cast<int64_t>(sequence) * t.stride + b];
        if (block < 0 || block >= groups[g].blocks)
          bad_step("Block " + text(b) + " of a sequence is not in the pool (entry " + text(block) +
                   ")");
      }
    };
    if (reads_full[g])
      for (int s = 0; s < in.sequences; ++s) check_range(s, 0, t.lengths[s]);
    for (int r = 0; r < in.rows; ++r) {
      if (stores[g]) check_range(in.sequence[r], in.cache_index[r], int64_t{in.cache_index[r]} + 1);
      // Neighbouring rows see nearly the same blocks: check each sequence's widest range once a
      // tile.
      if (reads[g] && (r + 1 == in.rows || in.sequence[r + 1] != in.sequence[r] || r % 16 == 15)) {
        int first = r;
        while (first > 0 && in.sequence[first - 1] == in.sequence[r] && first % 16 != 0) --first;
        int64_t begin = INT64_MAX, end = 0;
        for (int i = first; i <= r; ++i) {
          const int window = group_window_[g];
          begin = std::min<int64_t>(begin,
                                    window > 0 ? std::max(0, in.cache_index[i] + 1 - window) : 0);
          end = std::max<int64_t>(end, in.visible_end[i]);
        }
        check_range(in.sequence[r], begin, end);
      }
    }
  }
}

}  // namespace ei

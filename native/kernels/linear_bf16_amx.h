// linear_bf16 with AMX. Work comes in stages: one panel of 32 channels over one stretch of k and
// one stretch of rows, in 2x2 tiles of 16x16. While a stage multiplies, the vector units dequantize
// the panel of the next one, a little after every step of k.
#pragma once
#include "kernels/amx_tiles.h"
#include "kernels/bf16_panel.h"

namespace ei::EI_NS {
namespace {

// Activations of a stage (1 MB) and two panels (256 KB) stay in a second-level cache of 2 MB. The
// stretches of k depend on k alone: their sums are added up in y in ascending order.
constexpr int kStageSteps = 64;  // of 32 values of k
constexpr int kStageRows = 256;
constexpr int kPanelChannels = kBlockN * kPanelBlocks;
constexpr int kStepLines = 16 * kPanelBlocks;  // a panel is [step][block][16 lines of 64 bytes]

inline int64_t bf16_scratch_bytes(int) { return int64_t{2} * kStageSteps * kStepLines * 64; }

inline void prefetch_for_write(const float* p) { __asm__ volatile("prefetchw (%0)" : : "r"(p)); }

struct Stage {
  int row, rows;    // stretch of rows
  int step, steps;  // stretch of k
  int block, blocks;
};

// Walks the stages: rows outermost, so that their activations stay cached, then k, then panels.
class Stages {
 public:
  Stages(int rows, int steps, int block_begin, int block_end)
      : rows_(rows), steps_(steps), begin_(block_begin), end_(block_end) {
    const int stretches = (steps + kStageSteps - 1) / kStageSteps;
    stage_steps_ = (steps + stretches - 1) / stretches;
    block_ = begin_;
  }
  bool next(Stage* s) {
    if (row_ >= rows_ || begin_ >= end_) return false;
    *s = {row_,   least(kStageRows, rows_ - row_),   step_, least(stage_steps_, steps_ - step_),
          block_, least(kPanelBlocks, end_ - block_)};
    block_ += kPanelBlocks;
    if (block_ >= end_) {
      block_ = begin_;
      step_ += stage_steps_;
      if (step_ >= steps_) {
        step_ = 0;
        row_ += kStageRows;
      }
    }
    return true;
  }

 private:
  static int least(int a, int b) { return a < b ? a : b; }
  int rows_, steps_, begin_, end_, stage_steps_;
  int row_ = 0, step_ = 0, block_;
};

// Dequantizes a stage's panel in units, spread evenly over the steps of the stage before it.
template <int kBits, bool kMin>
class PanelWriter {
 public:
  // steps: how many steps of k there will be to spread the units over.
  void start(const Matrix& w, const Stage& s, __m512i* panel, int steps) {
    w_ = &w;
    panel_ = panel;
    first_block_ = s.block;
    first_unit_ = s.step * kUnitsPerGroup;
    units_ = s.steps * kUnitsPerGroup;
    left_ = units_ * s.blocks;
    rate_ = left_;
    twice_ = left_ > steps;
    slots_ = twice_ ? 2 * steps : steps;
    credit_ = 0;
    index_ = -1;
    unit_ = units_;
  }
  void stop() {
    left_ = rate_ = 0;
    twice_ = false;
  }
  // Where the tile unit still has work queued, between the products of a step.
  void middle() {
    if (twice_) end();
  }
  void end() {
    credit_ += rate_;
    while (credit_ >= slots_) {
      credit_ -= slots_;
      unit();
    }
  }
  void finish() {
    while (left_ > 0) unit();
  }

 private:
  void unit() {
    if (left_ <= 0) return;
    --left_;
    if (unit_ == units_) {  // one block after the other: the codes are one stream
      unit_ = 0;
      ++index_;
      block_ = block_of(*w_, first_block_ + index_);
    }
    __m512i* out =
        panel_ + unit_ / kUnitsPerGroup * kStepLines + index_ * 16 + unit_ % kUnitsPerGroup * 4;
    dequantize_unit<kBits, kMin>(block_, first_unit_ + unit_, out);
    ++unit_;
  }

  const Matrix* w_ = nullptr;
  __m512i* panel_ = nullptr;
  Block block_{};
  int first_block_ = 0, first_unit_ = 0, units_ = 0, left_ = 0, rate_ = 0, slots_ = 1, credit_ = 0;
  bool twice_ = false;
  int index_ = 0, unit_ = 0;
};

// out[16*A][32] = rows (A tiles of 16) times B blocks of the panel. The lines of y that will take
// the result are fetched meanwhile: they lie in as many pages as there are rows.
template <int A, int B, class Writer>
inline void multiply(const __m512i* panel, int steps, const uint16_t* x, int64_t row_block,
                     Writer& writer, const float* y, int64_t y_stride, int rows, float* out,
                     int64_t out_stride) {
  EI_TILE_ZERO(0);
  EI_TILE_ZERO(1);
  EI_TILE_ZERO(2);
  EI_TILE_ZERO(3);
  for (int s = 0; s < steps; ++s) {
    EI_TILE_LOAD(6, panel, 64);
    EI_TILE_STREAM(4, x, 64);
    EI_TILE_DPBF16(0, 4, 6);
    if (B == 2) {
      EI_TILE_LOAD(7, panel + 16, 64);
      EI_TILE_DPBF16(1, 4, 7);
    }
    writer.middle();
    if (A == 2) {
      EI_TILE_STREAM(5, x + row_block, 64);
      EI_TILE_DPBF16(2, 5, 6);
      if (B == 2) EI_TILE_DPBF16(3, 5, 7);
    }
    if (s < rows) {
      prefetch_for_write(y + s * y_stride);
      if (B == 2) prefetch_for_write(y + s * y_stride + 16);
    }
    writer.end();
    panel += kStepLines;
    x += 512;
  }
  EI_TILE_STORE(0, out, 4 * out_stride);
  if (B == 2) EI_TILE_STORE(1, out + 16, 4 * out_stride);
  if (A == 2) {
    EI_TILE_STORE(2, out + 16 * out_stride, 4 * out_stride);
    if (B == 2) EI_TILE_STORE(3, out + 16 * out_stride + 16, 4 * out_stride);
  }
}

template <int kBits, bool kMin>
void linear_stages(const Matrix& w, const uint16_t* x, int rows, int block_begin, int block_end,
                   __m512i* scratch, float* y, int64_t y_stride, const Epilogue& e) {
  const int steps = (w.k + 31) / 32;
  const int64_t row_block = static_cast<int64_t>(steps) * 512;
  __m512i* panels[2] = {scratch, scratch + kStageSteps * kStepLines};
  PanelWriter<kBits, kMin> writer;
  Stages stages(rows, steps, block_begin, block_end);
  Stage stage, following;
  bool more = stages.next(&stage);
  if (!more) return;
  writer.start(w, stage, panels[0], 1);
  writer.finish();
  for (int turn = 0; more; turn ^= 1, stage = following) {
    more = stages.next(&following);
    if (more)
      writer.start(w, following, panels[turn ^ 1], (stage.rows + 31) / 32 * stage.steps);
    else
      writer.stop();
    const int first = stage.block * kBlockN;
    const int left = w.n - first;
    const int channels = left < stage.blocks * kBlockN ? left : stage.blocks * kBlockN;
    const float* bias = e.bias && stage.step == 0 ? e.bias + first : nullptr;
    const bool accumulate = e.accumulate || stage.step > 0;
    for (int r = stage.row; r < stage.row + stage.rows; r += 32) {
      alignas(64) float buffer[32 * kPanelChannels];
      const uint16_t* tile = x + r / 16 * row_block + static_cast<int64_t>(stage.step) * 512;
      const int count = stage.row + stage.rows - r < 32 ? stage.row + stage.rows - r : 32;
      float* y_out = y + r * y_stride + first;
      const bool direct =
          count % 16 == 0 && channels == stage.blocks * kBlockN && !bias && !accumulate;
      float* out = direct ? y_out : buffer;
      const int64_t out_stride = direct ? y_stride : kPanelChannels;
      if (count > 16 && stage.blocks == 2)
        multiply<2, 2>(panels[turn], stage.steps, tile, row_block, writer, y_out, y_stride, count,
                       out, out_stride);
      else if (count > 16)
        multiply<2, 1>(panels[turn], stage.steps, tile, row_block, writer, y_out, y_stride, count,
                       out, out_stride);
      else if (stage.blocks == 2)
        multiply<1, 2>(panels[turn], stage.steps, tile, row_block, writer, y_out, y_stride, count,
                       out, out_stride);
      else
        multiply<1, 1>(panels[turn], stage.steps, tile, row_block, writer, y_out, y_stride, count,
                       out, out_stride);
      for (int i = 0; i < count && !direct; ++i)
        store_channels(buffer + kPanelChannels * i, channels, bias, accumulate,
                       y_out + i * y_stride);
    }
    writer.finish();
  }
}

inline void linear_bf16(const Matrix& w, const uint16_t* x, int rows, int block_begin,
                        int block_end, void* scratch, float* y, int64_t y_stride,
                        const Epilogue& e) {
  const int blocks = (w.n + kBlockN - 1) / kBlockN;
  if (block_end > blocks) block_end = blocks;
  __m512i* panels = static_cast<__m512i*>(scratch);
  configure_tiles();
  for_form(w, [&]<int kBits, bool kMin>() {
    linear_stages<kBits, kMin>(w, x, rows, block_begin, block_end, panels, y, y_stride, e);
  });
  release_tiles();
}

}  // namespace
}  // namespace ei::EI_NS

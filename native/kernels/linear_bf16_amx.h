// linear_bf16 with AMX: 2x2 tiles of 16x16 over a panel of 32 channels.
#pragma once
#include "kernels/bf16_panel.h"

namespace ei::EI_NS {
namespace {

inline int64_t bf16_scratch_bytes(int k_pad) {
  return static_cast<int64_t>(k_pad) * kBlockN * kPanelBlocks * 2;
}

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// All eight tiles 16 rows of 64 bytes. Through inline assembly because GCC 12's intrinsic declares
// only 8 of the 64 bytes as read, and the stores behind the rest may be dropped.
inline void configure_tiles() {
  TileConfig c;
  for (int t = 0; t < 8; ++t) {
    c.row_bytes[t] = 64;
    c.rows[t] = 16;
  }
  __asm__ volatile("ldtilecfg %0" : : "m"(c));
}

// Tile instructions as volatile assembly with a memory clobber: compilers' intrinsics do not all
// tell that a tile load reads memory, and the panel is written by ordinary stores just before.
#define EI_TILE_LOAD(t, base, stride) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"(base), "r"(int64_t{stride}) : "memory")
#define EI_TILE_STORE(t, base, stride)                 \
  __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" \
                   :                                   \
                   : "r"(base), "r"(int64_t{stride})   \
                   : "memory")
#define EI_TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t : :)
#define EI_TILE_DPBF16(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)

inline void release_tiles() { __asm__ volatile("tilerelease"); }

// 16*A rows and 32 channels: out[16*A][32].
template <int A>
inline void multiply(const __m512i* panel, int64_t panel_block, int steps, const uint16_t* x,
                     float* out) {
  EI_TILE_ZERO(0);
  EI_TILE_ZERO(1);
  if (A == 2) {
    EI_TILE_ZERO(2);
    EI_TILE_ZERO(3);
  }
  const int64_t row_block = static_cast<int64_t>(steps) * 512;
  for (int s = 0; s < steps; ++s) {
    EI_TILE_LOAD(6, panel + 16 * s, 64);
    EI_TILE_LOAD(7, panel + panel_block + 16 * s, 64);
    EI_TILE_LOAD(4, x + s * 512, 64);
    EI_TILE_DPBF16(0, 4, 6);
    EI_TILE_DPBF16(1, 4, 7);
    if (A == 2) {
      EI_TILE_LOAD(5, x + row_block + s * 512, 64);
      EI_TILE_DPBF16(2, 5, 6);
      EI_TILE_DPBF16(3, 5, 7);
    }
  }
  EI_TILE_STORE(0, out, 128);
  EI_TILE_STORE(1, out + 16, 128);
  if (A == 2) {
    EI_TILE_STORE(2, out + 16 * 32, 128);
    EI_TILE_STORE(3, out + 16 * 32 + 16, 128);
  }
}

inline void linear_bf16(const Matrix& w, const uint16_t* x, int rows, int block_begin,
                        int block_end, void* scratch, float* y, int64_t y_stride,
                        const Epilogue& e) {
  __m512i* panel = static_cast<__m512i*>(scratch);
  const int steps = (w.k + 31) / 32;
  const int64_t panel_block = static_cast<int64_t>(steps) * 16;
  configure_tiles();
  for (int b = block_begin; b < block_end; b += kPanelBlocks) {
    const int blocks = block_end - b < kPanelBlocks ? block_end - b : kPanelBlocks;
    const int first = b * kBlockN;
    const int left = w.n - first;
    const int channels = left < blocks * kBlockN ? left : blocks * kBlockN;
    if (channels <= 0) break;
    for (int i = 0; i < blocks; ++i) {
      const Block block = block_of(w, b + i);
      for (int g = 0; g < steps; ++g)
        dequantize_group(block, w.type, g, panel + i * panel_block + 16 * g);
    }
    // a lone last block multiplies itself twice; the second half of the result is not stored
    const int64_t second = blocks == 2 ? panel_block : 0;
    const float* bias = e.bias ? e.bias + first : nullptr;
    for (int r = 0; r < rows; r += 32) {
      alignas(64) float out[32 * 32];
      const uint16_t* tile = x + static_cast<int64_t>(r / 16) * steps * 512;
      if (rows - r > 16)
        multiply<2>(panel, second, steps, tile, out);
      else
        multiply<1>(panel, second, steps, tile, out);
      const int count = rows - r < 32 ? rows - r : 32;
      for (int i = 0; i < count; ++i)
        store_channels(out + 32 * i, channels, bias, e.accumulate, y + (r + i) * y_stride + first);
    }
  }
  release_tiles();
}

}  // namespace
}  // namespace ei::EI_NS

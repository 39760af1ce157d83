// The AMX instructions used here, as inline assembly: GCC 12's ldtilecfg intrinsic declares only 8
// of its 64 bytes as read, so the stores behind the rest may be dropped, and its tile loads do not
// say that they read memory.
#pragma once
#ifdef EI_EMULATE_AMX
#include "kernels/amx_tiles_emulated.h"
#else
#include <cstdint>

#define EI_TILE_LOAD(t, base, stride)                             \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t                \
                   :                                              \
                   : "r"(base), "r"(static_cast<int64_t>(stride)) \
                   : "memory")
// for operands that are read once before they would fall out of the first-level cache
#define EI_TILE_STREAM(t, base, stride)                           \
  __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #t              \
                   :                                              \
                   : "r"(base), "r"(static_cast<int64_t>(stride)) \
                   : "memory")
#define EI_TILE_STORE(t, base, stride)                            \
  __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)"            \
                   :                                              \
                   : "r"(base), "r"(static_cast<int64_t>(stride)) \
                   : "memory")
#define EI_TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t : :)
#define EI_TILE_DPBF16(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)
#define EI_TILE_DPBSSD(c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)

namespace ei::EI_NS {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// All eight tiles 16 rows of 64 bytes.
inline void configure_tiles() {
  TileConfig c;
  for (int t = 0; t < 8; ++t) {
    c.row_bytes[t] = 64;
    c.rows[t] = 16;
  }
  __asm__ volatile("ldtilecfg %0" : : "m"(c));
}

inline void release_tiles() { __asm__ volatile("tilerelease"); }

}  // namespace
}  // namespace ei::EI_NS
#endif

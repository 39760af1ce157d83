// Packed linears for prompt rows on bf16 matrix hardware: a panel of 32 channels is dequantized to
// bf16 once and multiplied with every row of the call. The scalar level is the reference.
#include "kernels/kernels.h"
#include "kernels/linear_common.h"

#if EI_LEVEL >= 5
#include "kernels/linear_bf16_amx.h"
#elif EI_LEVEL >= 4
#include "kernels/linear_bf16_avx512.h"
#else
#include "kernels/linear_bf16_scalar.h"
#endif

namespace ei::EI_NS {
namespace {

// The tile order of pack_rows_bf16: row r, k -> [(r/16)*steps + k/32][r%16][k%32].
void pack_rows_bf16(const float* x, int64_t x_stride, int rows, int k, int k_pad, uint16_t* out) {
  const int steps = (k + 31) / 32;
  const int padded_rows = (rows + 15) / 16 * 16;
  for (int r = 0; r < padded_rows; ++r) {
    uint16_t* tile_row = out + (static_cast<int64_t>(r / 16) * steps * 16 + r % 16) * 32;
    for (int s = 0; s < steps; ++s, tile_row += 16 * 32) {
      const int left = r < rows ? k - s * 32 : 0;
      const int count = left < 32 ? left : 32;
      if (count < 32) std::memset(tile_row, 0, 64);
      if (count > 0) round_to_bf16(x + r * x_stride + s * 32, count, tile_row);
    }
  }
}

}  // namespace

void register_linear_bf16(KernelTable& t) {
  t.pack_rows_bf16 = pack_rows_bf16;
  t.linear_bf16 = linear_bf16;
  t.bf16_scratch_bytes = bf16_scratch_bytes;
  // vdpbf16ps multiplies a quarter (Intel) or half (Zen 4) of what vpdpbusd does a cycle: without
  // tiles prompts stay integer
  t.bf16_prefill = EI_LEVEL >= 5;
}

}  // namespace ei::EI_NS

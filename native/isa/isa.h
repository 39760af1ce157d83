// What this CPU and this OS really allow, and the kernel table that follows from it.
#pragma once
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace ei {

struct CpuFeatures {
  std::string vendor;
  std::string brand;
  bool avx2 = false;  // AVX2, FMA, F16C with YMM state enabled by the OS
  bool avx_vnni = false;
  bool avx512 = false;  // F, BW, DQ, VL, VNNI with ZMM state enabled
  bool avx512_bf16 = false;
  bool amx = false;  // tile, bf16, int8, tile state enabled and permitted to this process
};

const CpuFeatures& cpu_features();            // probed once
std::vector<std::string> available_levels();  // lowest first
// The level in use: EDGE_INFER_ISA if set, else the best. Throws Error("device_unsuitable") when
// the override names an unknown level or one that this machine lacks. Read once, at first use.
const std::string& active_level();
const KernelTable& kernel_table(const std::string& level);  // throws as above
const KernelTable& kernels();                               // of active_level()

}  // namespace ei

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "isa/isa.h"

namespace ei {
namespace {

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf = 0) {
  Registers r;
  // clang declares it int, g++ unsigned
  if (static_cast<uint32_t>(__get_cpuid_max(leaf & 0x80000000u, nullptr)) < leaf) return r;
  __cpuid_count(leaf, subleaf, r.eax, r.ebx, r.ecx, r.edx);
  return r;
}

uint64_t xcr0() {
  uint32_t lo = 0, hi = 0;
  __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  return (static_cast<uint64_t>(hi) << 32) | lo;
}

bool bit(uint32_t word, int n) { return (word >> n) & 1u; }

// Linux hands out the tile registers only on request (arch_prctl, since 5.16).
bool amx_permission() {
  constexpr int kArchReqXcompPerm = 0x1023;
  constexpr int kXfeatureTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
}

CpuFeatures probe() {
  CpuFeatures f;
  const Registers vendor = cpuid(0);
  char name[13] = {};
  std::memcpy(name, &vendor.ebx, 4);
  std::memcpy(name + 4, &vendor.edx, 4);
  std::memcpy(name + 8, &vendor.ecx, 4);
  f.vendor = name;
  for (uint32_t leaf = 0x80000002u; leaf <= 0x80000004u; ++leaf) {
    const Registers r = cpuid(leaf);
    char part[17] = {};
    std::memcpy(part, &r.eax, 4);
    std::memcpy(part + 4, &r.ebx, 4);
    std::memcpy(part + 8, &r.ecx, 4);
    std::memcpy(part + 12, &r.edx, 4);
    f.brand += part;
  }

  const Registers one = cpuid(1);
  if (!bit(one.ecx, 27)) return f;  // no OSXSAVE: xgetbv itself would fault
  const uint64_t state = xcr0();
  const bool ymm = (state & 0x6) == 0x6;
  const bool zmm = (state & 0xe6) == 0xe6;
  const bool tiles = (state & 0x60000) == 0x60000;
  const Registers seven = cpuid(7);
  const Registers seven1 = seven.eax >= 1 ? cpuid(7, 1) : Registers{};

  f.avx2 = ymm && bit(one.ecx, 28) && bit(one.ecx, 12) && bit(one.ecx, 29) && bit(seven.ebx, 5);
  f.avx_vnni = f.avx2 && bit(seven1.eax, 4);
  f.avx512 = f.avx2 && zmm && bit(seven.ebx, 16) && bit(seven.ebx, 17) && bit(seven.ebx, 30) &&
             bit(seven.ebx, 31) && bit(seven.ecx, 11);
  f.avx512_bf16 = f.avx512 && bit(seven1.eax, 5);
  f.amx = f.avx512_bf16 && tiles && bit(seven.edx, 24) && bit(seven.edx, 22) &&
          bit(seven.edx, 25) && amx_permission();
  return f;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = probe();
  return features;
}

}  // namespace ei

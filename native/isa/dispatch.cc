#include <cstdlib>
#include <map>

#include "common/error.h"
#include "isa/isa.h"

namespace ei {
namespace {

const char* const kLevels[] = {"scalar", "avx2", "avx2vnni", "avx512", "avx512bf16", "amx"};

bool available(const std::string& level) {
  const CpuFeatures& f = cpu_features();
  if (level == "scalar") return true;
  if (level == "avx2") return f.avx2;
  if (level == "avx2vnni") return f.avx_vnni;
  if (level == "avx512") return f.avx512;
  if (level == "avx512bf16") return f.avx512_bf16;
#ifdef EI_EMULATE_AMX
  if (level == "amx") return f.avx512_bf16;
#else
  if (level == "amx") return f.amx;
#endif
  return false;
}

std::string join(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& p : parts) out += (out.empty() ? "" : ", ") + p;
  return out;
}

// Every table is built when first asked for; registering only stores pointers and runs no code of
// the level itself.
std::map<std::string, KernelTable> build_tables() {
  std::map<std::string, KernelTable> tables;
  KernelTable t{};
  t.name = "scalar";
  scalar::register_linear_int8(t);
  scalar::register_linear_float(t);
  scalar::register_linear_bf16(t);
  scalar::register_elementwise(t);
  scalar::register_attention(t);
  scalar::register_sampling(t);
  scalar::register_peaks(t);
  tables["scalar"] = t;

  t.name = "avx2";
  avx2::register_linear_int8(t);
  avx2::register_linear_float(t);
  avx2::register_elementwise(t);
  avx2::register_attention(t);
  avx2::register_sampling(t);
  avx2::register_peaks(t);
  tables["avx2"] = t;

  KernelTable v = t;
  v.name = "avx2vnni";
  avx2vnni::register_linear_int8(v);
  avx2vnni::register_peaks(v);
  tables["avx2vnni"] = v;

  t.name = "avx512";
  avx512::register_linear_int8(t);
  avx512::register_linear_float(t);
  avx512::register_elementwise(t);
  avx512::register_attention(t);
  avx512::register_sampling(t);
  avx512::register_peaks(t);
  tables["avx512"] = t;

  t.name = "avx512bf16";
  avx512bf16::register_linear_bf16(t);
  avx512bf16::register_attention(t);
  avx512bf16::register_peaks(t);
  tables["avx512bf16"] = t;

  t.name = "amx";
  amx::register_linear_bf16(t);
  amx::register_attention(t);
  amx::register_peaks(t);
  tables["amx"] = t;
  return tables;
}

}  // namespace

std::vector<std::string> available_levels() {
  std::vector<std::string> out;
  for (const char* level : kLevels)
    if (available(level)) out.emplace_back(level);
  return out;
}

const KernelTable& kernel_table(const std::string& level) {
  static const std::map<std::string, KernelTable> tables = build_tables();
  const auto it = tables.find(level);
  if (it == tables.end())
    throw Error("device_unsuitable", "ISA level '" + level + "' is unknown; this machine has " +
                                         join(available_levels()) + ".");
  if (!available(level))
    throw Error("device_unsuitable", "ISA level '" + level + "' is not available on this CPU (" +
                                         cpu_features().brand + "); it has " +
                                         join(available_levels()) + ".");
  return it->second;
}

const std::string& active_level() {
  static const std::string level = [] {
    const char* wanted = std::getenv("EDGE_INFER_ISA");
    if (wanted != nullptr && *wanted != '\0') {
      kernel_table(wanted);
      return std::string(wanted);
    }
    return available_levels().back();
  }();
  return level;
}

const KernelTable& kernels() {
  static const KernelTable& table = kernel_table(active_level());
  return table;
}

}  // namespace ei

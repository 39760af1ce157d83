#include "team/openmp.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

namespace ei {
namespace {

template <class F>
bool symbol(void* handle, const char* name, F*& out) {
  out = reinterpret_cast<F*>(dlsym(handle, name));
  return out != nullptr;
}

// Shared objects of this process whose file name begins with one of the names.
std::vector<std::string> loaded(std::vector<const char*> names) {
  struct Search {
    const std::vector<const char*>& names;
    std::vector<std::string> found;
  } search{names, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        Search& s = *static_cast<Search*>(data);
        const char* slash = std::strrchr(info->dlpi_name, '/');
        const char* base = slash != nullptr ? slash + 1 : info->dlpi_name;
        for (const char* name : s.names)
          if (std::strncmp(base, name, std::strlen(name)) == 0)
            s.found.emplace_back(info->dlpi_name);
        return 0;
      },
      &search);
  return search.found;
}

}  // namespace

bool OpenMp::load(void* handle) {
  if (!symbol(handle, "GOMP_parallel", parallel_) ||
      !symbol(handle, "omp_get_max_threads", max_threads_) ||
      !symbol(handle, "omp_get_num_threads", num_threads_) ||
      !symbol(handle, "omp_get_thread_num", thread_num_) ||
      !symbol(handle, "omp_in_parallel", in_parallel_))
    return false;
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(parallel_), &info) != 0 && info.dli_fname != nullptr)
    library_ = info.dli_fname;
  return true;
}

const OpenMp* OpenMp::find() {
  static std::mutex mutex;
  static std::unique_ptr<OpenMp> found;
  std::lock_guard<std::mutex> lock(mutex);
  if (found != nullptr) return found.get();
  auto candidate = std::make_unique<OpenMp>();
  // The global scope comes first for torch too, so that a preloaded runtime is found in place of
  // the bundled one; then what torch's own library depends on; then any runtime that is loaded.
  if (candidate->load(RTLD_DEFAULT)) {
    found = std::move(candidate);
    return found.get();
  }
  for (const std::string& path : loaded({"libtorch_cpu", "libgomp", "libiomp5", "libomp"})) {
    void* handle = dlopen(path.c_str(), RTLD_NOLOAD | RTLD_LAZY);
    if (handle == nullptr) continue;
    if (candidate->load(handle)) {
      found = std::move(candidate);  // the handle stays open with it
      return found.get();
    }
    dlclose(handle);
  }
  return nullptr;
}

int OpenMp::max_threads() const { return in_parallel_() != 0 ? 1 : max_threads_(); }

void OpenMp::run(void (*function)(void*, int, int), void* context) const {
  if (max_threads() <= 1) {
    function(context, 0, 1);
    return;
  }
  struct Region {
    const OpenMp& omp;
    void (*function)(void*, int, int);
    void* context;
  } region{*this, function, context};
  parallel_(
      [](void* data) {
        const Region& r = *static_cast<Region*>(data);
        r.function(r.context, r.omp.thread_num_(), r.omp.num_threads_());
      },
      &region, 0, 0);
}

}  // namespace ei

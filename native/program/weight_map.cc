#include "program/weight_map.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>

namespace ei {
namespace {

// What the SIGBUS handler may look at: plain atomics, no locks, no allocation.
struct Slot {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::atomic<std::atomic<bool>*> lost{nullptr};
};
constexpr int kSlots = 1024;
Slot g_slots[kSlots];
std::mutex g_mutex;
struct sigaction g_previous;
constexpr uintptr_t kPage = 4096;

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Slot& s : g_slots) {
    if (address < s.begin.load() || address >= s.end.load()) continue;
    std::atomic<bool>* lost = s.lost.load();
    void* page = reinterpret_cast<void*>(address & ~(kPage - 1));
    if (lost != nullptr && mmap(page, kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                                0) != MAP_FAILED) {
      lost->store(true);
      return;
    }
  }
  // Not ours: whoever was there before decides.
  if ((g_previous.sa_flags & SA_SIGINFO) && g_previous.sa_sigaction != nullptr) {
    g_previous.sa_sigaction(signal, info, context);
  } else if (g_previous.sa_handler != SIG_DFL && g_previous.sa_handler != SIG_IGN) {
    g_previous.sa_handler(signal);
  } else {
    ::signal(SIGBUS, SIG_DFL);
    ::raise(SIGBUS);
  }
}

int register_map(uint8_t* data, size_t bytes, std::atomic<bool>* lost) {
  std::lock_guard<std::mutex> lock(g_mutex);
  struct sigaction current{};
  sigaction(SIGBUS, nullptr, &current);
  if (current.sa_sigaction != on_bus_error) {
    struct sigaction ours{};
    ours.sa_sigaction = on_bus_error;
    ours.sa_flags = SA_SIGINFO;
    sigemptyset(&ours.sa_mask);
    sigaction(SIGBUS, &ours, &g_previous);
  }
  for (int i = 0; i < kSlots; ++i) {
    if (g_slots[i].lost.load() != nullptr) continue;
    g_slots[i].lost = lost;
    g_slots[i].begin = reinterpret_cast<uintptr_t>(data);
    g_slots[i].end = reinterpret_cast<uintptr_t>(data) + bytes;
    return i;
  }
  throw Error("capacity_exceeded", "More than 1024 weight files are mapped in this process.");
}

void unregister_map(int slot) {
  if (slot < 0) return;
  std::lock_guard<std::mutex> lock(g_mutex);
  g_slots[slot].end = 0;
  g_slots[slot].begin = 0;
  g_slots[slot].lost = nullptr;
}

struct File {
  int fd = -1;
  ~File() {
    if (fd >= 0) close(fd);
  }
};

std::string reason() { return std::strerror(errno); }

void read_all(int fd, uint8_t* to, int64_t bytes, const std::string& path) {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n = pread(fd, to + done, static_cast<size_t>(bytes - done), done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      throw Error("storage_failed", "Reading " + path + " stopped at byte " + std::to_string(done) +
                                        " of " + std::to_string(bytes) + ".");
    done += n;
  }
}

}  // namespace

WeightMap::WeightMap(const std::string& path, WeightMode mode) : path_(path), mode_(mode) {
  File file;
  file.fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file.fd < 0) throw Error("storage_failed", "Cannot open " + path + ": " + reason() + ".");
  struct stat st{};
  if (fstat(file.fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0)
    throw Error("storage_failed", path + " is not a regular file with contents.");
  size_ = st.st_size;

  if (mode == WeightMode::kResident) {
    copy_ = Arena(static_cast<size_t>(size_), /*huge=*/true);
    data_ = copy_.data();
    read_all(file.fd, data_, size_, path);
    return;
  }
  void* p = mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_SHARED, file.fd, 0);
  if (p == MAP_FAILED) throw Error("storage_failed", "Cannot map " + path + ": " + reason() + ".");
  mapped_ = static_cast<size_t>(size_);
  data_ = static_cast<uint8_t*>(p);
  // Where the file system has large folios (ext4 from Linux 6.16, xfs), what is not cached yet is
  // read in pages of 2 MiB: with those of 4 KiB, translating addresses limits a step.
  madvise(data_, mapped_, MADV_HUGEPAGE);
  try {
    slot_ = register_map(data_, mapped_, &lost_);
  } catch (...) {
    munmap(data_, mapped_);
    throw;
  }
  if (mode == WeightMode::kLocked && mlock(data_, mapped_) != 0) {
    const std::string why = reason();
    rlimit limit{};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    unregister_map(slot_);
    munmap(data_, mapped_);
    throw Error("device_unsuitable", "Cannot lock " + std::to_string(size_) +
                                         " bytes of weights (" + why + "); RLIMIT_MEMLOCK is " +
                                         std::to_string(limit.rlim_cur) +
                                         ". Raise it (ulimit -l) or use --weights mapped.");
  }
}

WeightMap::~WeightMap() {
  unregister_map(slot_);
  if (mapped_ != 0) munmap(data_, mapped_);
}

const uint8_t* WeightMap::at(int64_t offset, int64_t bytes) const {
  if (offset < 0 || bytes < 0 || offset > size_ || bytes > size_ - offset)
    throw Error("checkpoint_invalid", path_ + " has " + std::to_string(size_) +
                                          " bytes; a tensor lies at " + std::to_string(offset) +
                                          " with " + std::to_string(bytes) + " bytes.");
  return data_ + offset;
}

}  // namespace ei

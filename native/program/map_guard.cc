#include "program/map_guard.h"

#include <signal.h>
#include <sys/mman.h>

#include <cstdint>
#include <mutex>
#include <utility>

#include "common/error.h"

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

int register_map(const void* data, size_t bytes, std::atomic<bool>* lost) {
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
  std::lock_guard<std::mutex> lock(g_mutex);
  g_slots[slot].end = 0;
  g_slots[slot].begin = 0;
  g_slots[slot].lost = nullptr;
}

}  // namespace

MapGuard::MapGuard(const void* data, size_t bytes, std::string path)
    : path_(std::move(path)), slot_(register_map(data, bytes, &lost_)) {}

MapGuard::~MapGuard() { unregister_map(slot_); }

void MapGuard::refuse() const {
  throw Error("weights_lost", "The weight file " + path_ +
                                  " could not be read any more (truncated, or the disk failed). "
                                  "Restore it and open the model again.");
}

}  // namespace ei

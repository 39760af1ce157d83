// Keeps the process alive when a page of a mapped file cannot be read (the file was truncated, or
// the disk failed): the page then reads as zeros, and whoever used it can refuse the result.
#pragma once
#include <atomic>
#include <cstddef>
#include <string>

namespace ei {

class MapGuard {
 public:
  // Guards [data, data + bytes), a map of the file `path` that somebody else owns and that outlives
  // the guard. Throws Error("capacity_exceeded") beyond 1024 guards.
  MapGuard(const void* data, size_t bytes, std::string path);
  ~MapGuard();
  MapGuard(const MapGuard&) = delete;
  MapGuard& operator=(const MapGuard&) = delete;

  const std::string& path() const { return path_; }
  // True once a page could not be read.
  bool lost() const { return lost_.load(std::memory_order_relaxed); }
  // Throws Error("weights_lost") once a page could not be read.
  void check() const {
    if (lost()) refuse();
  }

 private:
  [[noreturn]] void refuse() const;

  std::string path_;
  int slot_;
  std::atomic<bool> lost_{false};  // written by the signal handler
};

}  // namespace ei

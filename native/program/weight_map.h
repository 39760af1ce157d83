// One weight file in memory: mapped from disk, copied to anonymous memory, or mapped and locked.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

#include "common/arena.h"

namespace ei {

enum class WeightMode { kMapped, kResident, kLocked };

class WeightMap {
 public:
  // Throws Error("storage_failed") when the file cannot be opened, mapped or read,
  // Error("device_unsuitable") when locking is not allowed (with RLIMIT_MEMLOCK).
  WeightMap(const std::string& path, WeightMode mode);
  ~WeightMap();
  WeightMap(const WeightMap&) = delete;
  WeightMap& operator=(const WeightMap&) = delete;

  const uint8_t* data() const { return data_; }
  int64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  WeightMode mode() const { return mode_; }
  // The range [offset, offset+bytes); throws Error("checkpoint_invalid") when it leaves the file.
  const uint8_t* at(int64_t offset, int64_t bytes) const;
  // True once a page of the map could not be read (the file was truncated, or the disk failed). The
  // page then reads as zeros, so the step ends and can be refused instead of the process dying.
  bool lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  std::string path_;
  WeightMode mode_;
  int64_t size_ = 0;
  uint8_t* data_ = nullptr;
  size_t mapped_ = 0;
  Arena copy_;
  int slot_ = -1;
  std::atomic<bool> lost_{false};  // written by the signal handler
};

}  // namespace ei

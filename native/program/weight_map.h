// One weight file in memory: mapped from disk, copied to anonymous memory, or mapped and locked.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "common/arena.h"
#include "program/map_guard.h"

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
  // True once a page of the map could not be read (MapGuard).
  bool lost() const { return guard_ != nullptr && guard_->lost(); }
  // Throws Error("weights_lost") then.
  void check() const {
    if (guard_ != nullptr) guard_->check();
  }

 private:
  std::string path_;
  WeightMode mode_;
  int64_t size_ = 0;
  uint8_t* data_ = nullptr;
  size_t mapped_ = 0;
  Arena copy_;
  std::unique_ptr<MapGuard> guard_;
};

}  // namespace ei

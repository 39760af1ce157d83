// Anonymous memory straight from the kernel: zeroed, touched only as used, given back at once.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "common/error.h"

namespace ei {

class Arena {
 public:
  Arena() = default;
  explicit Arena(size_t bytes, bool huge = false) : bytes_(bytes) {
    if (bytes == 0) return;
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
      throw Error("capacity_exceeded",
                  "The system refused " + std::to_string(bytes) + " bytes of memory.");
    data_ = static_cast<uint8_t*>(p);
    if (huge) madvise(data_, bytes, MADV_HUGEPAGE);
  }
  ~Arena() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  Arena(Arena&& other) noexcept { swap(other); }
  Arena& operator=(Arena&& other) noexcept {
    swap(other);
    return *this;
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  void swap(Arena& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace ei

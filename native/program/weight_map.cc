#include "program/weight_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "program/large_pages.h"

namespace ei {
namespace {

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
  try {
    guard_ = std::make_unique<MapGuard>(data_, mapped_, path);
  } catch (...) {
    munmap(data_, mapped_);
    throw;
  }
  ask_for_large_pages(data_, mapped_);
  if (mode == WeightMode::kLocked && mlock(data_, mapped_) != 0) {
    const std::string why = reason();
    rlimit limit{};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    guard_.reset();
    munmap(data_, mapped_);
    throw Error("device_unsuitable", "Cannot lock " + std::to_string(size_) +
                                         " bytes of weights (" + why + "); RLIMIT_MEMLOCK is " +
                                         std::to_string(limit.rlim_cur) +
                                         ". Raise it (ulimit -l) or use --weights mapped.");
  }
}

WeightMap::~WeightMap() {
  guard_.reset();
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

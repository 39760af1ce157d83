#include "program/large_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>

namespace ei {
namespace {

constexpr size_t kPage = 4096, kLarge = size_t{2} << 20;

enum class Cached { kNothing, kSome, kAll };

// How much of [data, data + bytes), at most 2 MiB, is in the page cache.
Cached cached(uint8_t* data, size_t bytes) {
  std::array<unsigned char, kLarge / kPage> pages{};
  if (mincore(data, bytes, pages.data()) != 0) return Cached::kSome;
  const size_t count = std::count_if(pages.begin(), pages.end(), [](auto p) { return p & 1; });
  return count == 0 ? Cached::kNothing : count == bytes / kPage ? Cached::kAll : Cached::kSome;
}

}  // namespace

void ask_for_large_pages(uint8_t* data, size_t bytes) {
  if (madvise(data, bytes, MADV_HUGEPAGE) != 0) return;
  if (reinterpret_cast<uintptr_t>(data) % kLarge != 0) return;
  // Reading ahead from page to page ends somewhere inside of a large one, which then is never made.
  // Without it the kernel reads a large page for every fault, or, if it knows none, a small one:
  // see which, where nothing is cached.
  uint8_t* const end = data + bytes / kLarge * kLarge;
  uint8_t* at = data;
  while (at < end &&
         !(cached(at, kPage) == Cached::kNothing && cached(at, kLarge) == Cached::kNothing))
    at += kLarge;
  if (at == end || madvise(data, bytes, MADV_RANDOM) != 0) return;
  static_cast<void>(*static_cast<volatile uint8_t*>(at));
  if (cached(at, kLarge) != Cached::kAll) madvise(data, bytes, MADV_NORMAL);
}

}  // namespace ei

// Mapped weights in pages of 2 MiB, which translating addresses hardly costs anything for.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ei {

// Asks that what is not cached yet of a file, mapped as [data, data + bytes), is read into pages of
// 2 MiB, and that those are mapped as such. May read 2 MiB of it, under a MapGuard. Where the file
// system has no large folios (ext4 has from Linux 6.16, xfs), nothing changes.
void ask_for_large_pages(uint8_t* data, size_t bytes);

}  // namespace ei

#include "kv/pool.h"

#include <cstring>

namespace ei {
namespace {
constexpr int64_t kPage = 4096;
}  // namespace

int64_t KvPool::block_bytes(const KvGroupSpec& g, KvType type) {
  const int64_t bytes = kv_block_bytes(type, g.kv_heads, g.head_dim) * g.layers;
  return (bytes + kPage - 1) / kPage * kPage;
}

KvType kv_type_named(const std::string& name) {
  if (name == "f16") return KvType::kF16;
  if (name == "bf16") return KvType::kBf16;
  if (name == "int8") return KvType::kI8;
  throw Error("invalid_parameter", "Unknown KV dtype '" + name + "'; use f16, bf16 or int8.");
}

KvPool::KvPool(std::vector<KvGroupSpec> groups, KvType type)
    : groups_(std::move(groups)), type_(type) {
  int64_t total = 0;
  for (const KvGroupSpec& g : groups_) {
    if (g.layers < 1 || g.layers > 4096 || g.kv_heads < 1 || g.kv_heads > 4096 || g.head_dim < 1 ||
        g.head_dim > 4096 || g.blocks < 1)
      throw Error("invalid_parameter", "A KV group needs at least one layer, head, dim and block.");
    const int64_t stride = block_bytes(g, type);
    int64_t bytes = 0;
    if (__builtin_mul_overflow(stride, static_cast<int64_t>(g.blocks), &bytes) ||
        __builtin_add_overflow(total, bytes, &bytes) || bytes > (int64_t{1} << 46))
      throw Error("capacity_exceeded", "A KV pool of more than 64 TiB was asked for.");
    layouts_.push_back({total, stride, kv_block_bytes(type, g.kv_heads, g.head_dim)});
    total = bytes;
  }
  arena_ = Arena(static_cast<size_t>(total));
}

KvLayer KvPool::layer(int group, int layer) const {
  const KvGroupSpec& g = groups_.at(group);
  const Layout& l = layouts_.at(group);
  if (layer < 0 || layer >= g.layers)
    throw Error("invalid_parameter", "KV layer " + std::to_string(layer) + " of a group with " +
                                         std::to_string(g.layers) + " layers.");
  return {arena_.data() + l.offset + layer * l.layer_stride, l.block_stride, g.kv_heads, g.head_dim,
          type_};
}

void KvPool::check_block(int group, int32_t block) const {
  if (group < 0 || group >= static_cast<int>(groups_.size()) || block < 0 ||
      block >= groups_[group].blocks)
    throw Error("invalid_parameter", "KV block " + std::to_string(block) + " of group " +
                                         std::to_string(group) + " does not exist.");
}

void KvPool::release(int group, const int32_t* blocks, int count) {
  for (int i = 0; i < count; ++i) check_block(group, blocks[i]);
  for (int i = 0; i < count;) {
    const Layout& l = layouts_[group];
    int run = 1;  // neighbours go back in one call
    while (i + run < count && blocks[i + run] == blocks[i] + run) ++run;
    madvise(arena_.data() + l.offset + blocks[i] * l.block_stride,
            static_cast<size_t>(l.block_stride * run), MADV_DONTNEED);
    i += run;
  }
}

void KvPool::copy(int group, int32_t from, int32_t to) {
  check_block(group, from);
  check_block(group, to);
  const Layout& l = layouts_[group];
  uint8_t* base = arena_.data() + l.offset;
  std::memcpy(base + to * l.block_stride, base + from * l.block_stride,
              static_cast<size_t>(l.block_stride));
}

}  // namespace ei

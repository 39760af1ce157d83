// The memory of the paged KV cache. Which block belongs to which sequence is the engine's business;
// the pool knows where a block lies and gives freed blocks back to the system.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/arena.h"
#include "kernels/kernels.h"

namespace ei {

// Layers that share one block table: same heads, same visibility rule.
struct KvGroupSpec {
  int32_t layers;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t blocks;
};

// "f16", "bf16" or "int8"; throws Error("invalid_parameter") for another name.
KvType kv_type_named(const std::string& name);

class KvPool {
 public:
  // Throws Error("invalid_parameter") on a spec that makes no sense, "capacity_exceeded" when the
  // address space is refused.
  KvPool(std::vector<KvGroupSpec> groups, KvType type);

  KvLayer layer(int group, int layer) const;
  // Bytes of one block across all layers of a group, rounded up to pages.
  static int64_t block_bytes(const KvGroupSpec& spec, KvType type);
  int64_t bytes() const { return static_cast<int64_t>(arena_.size()); }
  const std::vector<KvGroupSpec>& groups() const { return groups_; }
  const uint8_t* data() const { return arena_.data(); }
  KvType type() const { return type_; }

  void release(int group, const int32_t* blocks, int count);  // contents are lost, memory returns
  void copy(int group, int32_t from, int32_t to);             // copy on write of a shared block

 private:
  struct Layout {
    int64_t offset;        // of block 0, in bytes
    int64_t block_stride;  // bytes, a whole number of pages
    int64_t layer_stride;  // bytes
  };
  void check_block(int group, int32_t block) const;

  std::vector<KvGroupSpec> groups_;
  std::vector<Layout> layouts_;
  KvType type_;
  Arena arena_;
};

}  // namespace ei

// Memory for lists that live as long as what owns them, given back all at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

namespace structgen {

// An engine has many small lists.  Freed one by one, they would make the allocator consolidate its memory during some
// later, unrelated request, for tens of milliseconds.
class Arena {
 public:
  // Uninitialised memory for `count` values.
  template <class Value>
  Value* allocate(size_t count) {
    static_assert(std::is_trivially_destructible_v<Value> && alignof(Value) <= alignof(std::max_align_t));
    const size_t skipped = (alignof(Value) - reinterpret_cast<size_t>(left_.data()) % alignof(Value)) % alignof(Value);
    if (skipped + count * sizeof(Value) > left_.size()) {
      add_chunk(count * sizeof(Value));
      return allocate<Value>(count);
    }
    const auto start = reinterpret_cast<Value*>(left_.data() + skipped);
    left_ = left_.subspan(skipped + count * sizeof(Value));
    return start;
  }
  // A copy of some values.
  template <class List>
  auto keep(const List& values) {
    using Value = std::remove_cvref_t<decltype(*values.begin())>;
    if (values.empty()) return std::span<const Value>();
    Value* const copy = allocate<Value>(values.size());
    std::uninitialized_copy(values.begin(), values.end(), copy);
    return std::span<const Value>(copy, values.size());
  }
  void clear() {
    chunks_.clear();
    left_ = {};
    bytes_ = 0;
  }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kMinChunk = 1024, kMaxChunk = 32768;  // bytes of a chunk, where one request needs no more

  void add_chunk(size_t needed) {
    const size_t size = std::max(needed, std::clamp(bytes_, kMinChunk, kMaxChunk));
    chunks_.push_back(std::make_unique_for_overwrite<std::byte[]>(size));
    left_ = {chunks_.back().get(), size};
    bytes_ += size;
  }

  std::vector<std::unique_ptr<std::byte[]>> chunks_;
  std::span<std::byte> left_;  // of the last chunk
  size_t bytes_ = 0;
};

}  // namespace structgen

// Values by pairs of numbers, in open addressing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/intern.h"

namespace structgen {

template <class Value>
class PairMap {
 public:
  using Key = std::pair<uint64_t, uint64_t>;

  // Holds at most `most` values: all are dropped before one more is added.
  explicit PairMap(size_t most) : most_(most), slots_(kFewSlots) {}

  size_t size() const { return size_; }
  size_t bytes() const { return size_ == 0 ? 0 : slots_.size() * sizeof(Slot); }
  void clear() {
    slots_ = std::vector<Slot>(kFewSlots);
    size_ = 0;
  }
  const Value* find(const Key& key) const {
    const Slot& slot = slots_[place_of(key)];
    return slot.is_used ? &slot.value : nullptr;
  }
  // Whether the key was not there.
  bool set(const Key& key, const Value& value) {
    size_t at = place_of(key);
    const bool is_new = !slots_[at].is_used;
    if (is_new && size_ >= most_) clear();
    if (is_new && 2 * (size_ + 1) > slots_.size()) enlarge();
    if (is_new) {
      at = place_of(key);
      ++size_;
    }
    slots_[at] = {key, value, true};
    return is_new;
  }
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const Slot& slot : slots_)
      if (slot.is_used) visit(slot.key, slot.value);
  }

 private:
  static constexpr size_t kFewSlots = 16;
  struct Slot {
    Key key;
    Value value{};
    bool is_used = false;
  };

  size_t place_of(const Key& key) const {
    const size_t mask = slots_.size() - 1;
    size_t at = combine(key.first, key.second) & mask;
    while (slots_[at].is_used && slots_[at].key != key) at = (at + 1) & mask;
    return at;
  }
  void enlarge() {
    std::vector<Slot> held(2 * slots_.size());
    held.swap(slots_);
    for (const Slot& slot : held)
      if (slot.is_used) slots_[place_of(slot.key)] = slot;
  }

  size_t most_;
  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace structgen

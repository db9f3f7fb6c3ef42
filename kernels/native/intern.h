// Hash-consing: equal contents get equal ids.  Contents are compared, hashes only narrow the search.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace structgen {

constexpr uint32_t kNone = UINT32_MAX;

inline uint64_t mix(uint64_t value) {  // the finaliser of splitmix64
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}
inline uint64_t combine(uint64_t seed, uint64_t value) { return mix(seed ^ mix(value)); }

// Open addressing from hash to id; whoever owns the contents supplies the comparison.  Slots hold half of the hash: the
// tables of an engine outgrow the caches of a processor, and a look-up costs about one miss in them.
class IdTable {
 public:
  IdTable() : slots_(64) {}

  // The id whose contents `equal` accepts, or kNone.
  template <class Equal>
  uint32_t find(uint64_t hash, Equal&& equal) const {
    for (size_t i = hash & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
      const Slot& slot = slots_[i];
      if (slot.id == kNone) return kNone;
      if (slot.hash == static_cast<uint32_t>(hash) && equal(slot.id)) return slot.id;
    }
  }
  void insert(uint64_t hash, uint32_t id) {
    if ((count_ + 1) * 2 > slots_.size()) grow();
    place(static_cast<uint32_t>(hash), id);
    ++count_;
  }
  void clear() {
    slots_.assign(64, Slot{});
    count_ = 0;
  }
  size_t bytes() const { return slots_.size() * sizeof(Slot); }

 private:
  struct Slot {
    uint32_t hash = 0;
    uint32_t id = kNone;
  };
  void place(uint32_t hash, uint32_t id) {
    size_t i = hash & (slots_.size() - 1);
    while (slots_[i].id != kNone) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = {hash, id};
  }
  void grow() {
    std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots_.size() * 2));
    for (const Slot& slot : old)
      if (slot.id != kNone) place(slot.hash, slot.id);
  }
  std::vector<Slot> slots_;
  size_t count_ = 0;
};

inline uint64_t hash_value(uint8_t value) { return value; }
inline uint64_t hash_value(uint32_t value) { return value; }
inline uint64_t hash_value(const std::pair<uint32_t, uint32_t>& value) {
  return uint64_t{value.first} << 32 | value.second;
}

// Interned sequences of trivially copyable values in one pool.
template <class Value>
class ListPool {
 public:
  using Id = uint32_t;

  Id intern(std::span<const Value> values) {
    const uint64_t hash = hash_of(values);
    const uint32_t found = table_.find(hash, [&](uint32_t id) {
      const auto held = (*this)[id];
      return std::equal(held.begin(), held.end(), values.begin(), values.end());
    });
    if (found != kNone) return found;
    const auto id = static_cast<Id>(ends_.size() - 1);
    pool_.insert(pool_.end(), values.begin(), values.end());
    ends_.push_back(pool_.size());
    table_.insert(hash, id);
    return id;
  }
  std::span<const Value> operator[](Id id) const {
    return {pool_.data() + ends_[id], ends_[id + 1] - ends_[id]};
  }
  size_t size() const { return ends_.size() - 1; }
  size_t bytes() const {
    return pool_.capacity() * sizeof(Value) + ends_.capacity() * sizeof(size_t) + table_.bytes();
  }

 private:
  static uint64_t hash_of(std::span<const Value> values) {
    uint64_t hash = values.size();
    for (const Value& value : values) hash = combine(hash, hash_value(value));
    return hash;
  }
  std::vector<Value> pool_;
  std::vector<size_t> ends_{0};
  IdTable table_;
};

}  // namespace structgen

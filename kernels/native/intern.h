// Hash-consing: equal contents get equal ids.  Contents are compared, hashes only narrow the search.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <type_traits>
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
// tables of an engine outgrow the caches of a processor, and a look-up costs about one miss in them.  The table is
// divided into parts that grow one at a time, so that no insertion waits for a large table to move.
class IdTable {
 public:
  // The id whose contents `equal` accepts, or kNone.
  template <class Equal>
  uint32_t find(uint64_t hash, Equal&& equal) const {
    const std::vector<Slot>& slots = parts_[hash >> kShift].slots;
    if (slots.empty()) return kNone;
    for (size_t i = hash & (slots.size() - 1);; i = (i + 1) & (slots.size() - 1)) {
      const Slot& slot = slots[i];
      if (slot.id == kNone) return kNone;
      if (slot.hash == static_cast<uint32_t>(hash) && equal(slot.id)) return slot.id;
    }
  }
  // Has the processor fetch what find() will look at first.
  void prefetch(uint64_t hash) const {
    const std::vector<Slot>& slots = parts_[hash >> kShift].slots;
    if (!slots.empty()) __builtin_prefetch(&slots[hash & (slots.size() - 1)]);
  }
  void insert(uint64_t hash, uint32_t id) {
    Part& part = parts_[hash >> kShift];
    if ((part.count + 1) * 2 > part.slots.size()) grow(part);
    place(part, static_cast<uint32_t>(hash), id);
    ++part.count;
  }
  void clear() { parts_.assign(kParts, Part{}); }
  size_t bytes() const {
    size_t total = 0;
    for (const Part& part : parts_) total += sizeof part + part.slots.size() * sizeof(Slot);
    return total;
  }

 private:
  static constexpr size_t kParts = 64;
  static constexpr unsigned kShift = 58;
  struct Slot {
    uint32_t hash = 0;
    uint32_t id = kNone;
  };
  struct Part {
    std::vector<Slot> slots;
    size_t count = 0;
  };
  static void place(Part& part, uint32_t hash, uint32_t id) {
    std::vector<Slot>& slots = part.slots;
    size_t i = hash & (slots.size() - 1);
    while (slots[i].id != kNone) i = (i + 1) & (slots.size() - 1);
    slots[i] = {hash, id};
  }
  static void grow(Part& part) {
    std::vector<Slot> old = std::exchange(part.slots, std::vector<Slot>(std::max<size_t>(part.slots.size() * 2, 4)));
    for (const Slot& slot : old)
      if (slot.id != kNone) place(part, slot.hash, slot.id);
  }
  std::vector<Part> parts_{kParts};
};

// From numbers to values that stay where they are; it grows as its table does.
template <class Value>
class NumberMap {
 public:
  const Value* find(uint64_t key) const {
    const uint32_t place = table_.find(mix(key), [&](uint32_t held) { return entries_[held].first == key; });
    return place == kNone ? nullptr : &entries_[place].second;
  }
  bool contains(uint64_t key) const { return find(key) != nullptr; }
  // `key` must not be there yet.
  const Value& insert(uint64_t key, Value value) {
    table_.insert(mix(key), static_cast<uint32_t>(entries_.size()));
    return entries_.emplace_back(key, std::move(value)).second;
  }
  void clear() {
    table_.clear();
    entries_.clear();
  }
  size_t size() const { return entries_.size(); }
  size_t bytes() const { return entries_.size() * sizeof(entries_[0]) + table_.bytes(); }

 private:
  std::deque<std::pair<uint64_t, Value>> entries_;
  IdTable table_;
};

inline uint64_t hash_value(const std::pair<uint32_t, uint32_t>& value) {
  return uint64_t{value.first} << 32 | value.second;
}

// Interned sequences of trivially copyable values in one pool, which never moves them.
template <class Value>
class ListPool {
 public:
  using Id = uint32_t;

  Id intern(std::span<const Value> values) { return intern(values, hash_of(values)); }
  Id intern(std::span<const Value> values, uint64_t hash) {  // of the values
    const uint32_t found = table_.find(hash, [&](uint32_t id) {
      const auto held = (*this)[id];
      return std::equal(held.begin(), held.end(), values.begin(), values.end());
    });
    if (found != kNone) return found;
    const auto id = static_cast<Id>(lists_.size());
    lists_.push_back(store(values));
    table_.insert(hash, id);
    return id;
  }
  std::span<const Value> operator[](Id id) const { return lists_[id]; }
  size_t size() const { return lists_.size(); }
  static uint64_t hash_of(std::span<const Value> values) {
    uint64_t hash = values.size();
    if constexpr (std::is_integral_v<Value>) {
      constexpr size_t kInWord = sizeof(uint64_t) / sizeof(Value);
      for (; !values.empty(); values = values.subspan(std::min(kInWord, values.size()))) {
        uint64_t word = 0;
        std::memcpy(&word, values.data(), std::min(kInWord, values.size()) * sizeof(Value));
        hash = mix(hash ^ word);
      }
    } else {
      for (const Value& value : values) hash = mix(hash ^ hash_value(value));
    }
    return mix(hash);
  }
  void prefetch(uint64_t hash) const { table_.prefetch(hash); }  // for intern()
  size_t bytes() const { return stored_ * sizeof(Value) + lists_.size() * sizeof(lists_[0]) + table_.bytes(); }

 private:
  static constexpr size_t kChunk = 16384;

  std::span<const Value> store(std::span<const Value> values) {
    if (values.empty()) return {};
    if (chunks_.empty() || values.size() > left_.size()) {
      const size_t size = std::max(values.size(), std::min(kChunk, std::max<size_t>(stored_, 64)));
      chunks_.push_back(std::make_unique<Value[]>(size));
      left_ = {chunks_.back().get(), size};
      stored_ += size;
    }
    const std::span<Value> place = left_.first(values.size());
    std::copy(values.begin(), values.end(), place.begin());
    left_ = left_.subspan(values.size());
    return place;
  }
  std::vector<std::unique_ptr<Value[]>> chunks_;
  std::span<Value> left_;  // of the last chunk
  size_t stored_ = 0;
  std::deque<std::span<const Value>> lists_;
  IdTable table_;
};

}  // namespace structgen

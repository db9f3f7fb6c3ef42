// Hash-consing: equal contents get equal ids.  Contents are compared, hashes only narrow the search.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/pages.h"
#include "base/portable.h"

namespace structgen {

constexpr uint32_t kNone = UINT32_MAX;

inline uint64_t mix(uint64_t value) {  // the finaliser of splitmix64
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}
inline uint64_t combine(uint64_t seed, uint64_t value) { return mix(seed ^ mix(value)); }

// Open addressing from hash to id; the owner of the contents supplies the comparison.  Slots hold half of the hash: the
// tables of an engine outgrow the processor's caches, and a look-up costs about one cache miss.  The table is
// divided into parts of bounded size, by the first bits of these halves, and a part that is full is split in two, so
// that no insertion waits for a large table to move (R. Fagin, J. Nievergelt, N. Pippenger and H. R. Strong,
// "Extendible hashing", 1979).
class IdTable {
 public:
  struct Slot {
    uint32_t hash, id;  // kNone and kNone: empty
  };

  // The id whose contents `equal` accepts, or kNone.
  template <class Equal>
  uint32_t find(uint64_t hash, Equal&& equal) const {
    const Slot* const slot = slot_of(hash, equal);
    return slot == nullptr ? kNone : slot->id;
  }
  // The slot of that id; else the empty one where it belongs, for insert_at() before any other insertion; null where
  // there is none.
  template <class Equal>
  Slot* slot_of(uint64_t hash, Equal&& equal) const {
    if (parts_.empty()) return nullptr;
    const auto half = static_cast<uint32_t>(hash);
    const Part& part = parts_[index_of(half)];
    for (size_t i = half & part.mask;; i = (i + 1) & part.mask) {
      Slot& slot = part.slots[i];
      if (slot.id == kNone || (slot.hash == half && equal(slot.id))) return &slot;
    }
  }
  // Prefetches the memory that find() will read first.
  void prefetch(uint64_t hash) const {
    if (parts_.empty()) return;
    const auto half = static_cast<uint32_t>(hash);
    const Part& part = parts_[index_of(half)];
    structgen::prefetch(&part.slots[half & part.mask]);
  }
  void insert_at(Slot* slot, uint64_t hash, uint32_t id) {
    const auto half = static_cast<uint32_t>(hash);
    Owned* const owned = slot == nullptr ? nullptr : &owned_[parts_[index_of(half)].owned];
    if (owned == nullptr || !has_room(*owned)) return insert(hash, id);
    *slot = {half, id};
    ++owned->count;
  }
  void insert(uint64_t hash, uint32_t id) {
    const auto half = static_cast<uint32_t>(hash);
    if (parts_.empty()) parts_.push_back(make_part(kFewSlots, 0));
    while (!has_room(owned_[parts_[index_of(half)].owned])) enlarge(half);
    put(parts_[index_of(half)], {half, id});
  }
  // Makes room for so many more at once, if there are fewer yet.
  void reserve(size_t more) {
    if (more < slots_) return;
    std::vector<Slot> held;
    for (size_t i = 0; i < parts_.size(); ++i)
      if (i == 0 || parts_[i].owned != parts_[i - 1].owned) held.insert(held.end(), parts_[i].slots, parts_[i].slots + parts_[i].mask + 1);
    clear();
    const size_t slots = std::bit_ceil(2 * (more + held.size()));
    while (slots >> bits_ > kMaxSlots && bits_ < kMaxBits) ++bits_;
    parts_.reserve(size_t{1} << bits_);
    owned_.reserve(size_t{1} << bits_);
    const auto each = static_cast<uint32_t>(std::clamp<size_t>(slots >> bits_, kFewSlots, kMaxSlots));
    for (size_t part = 0; part < size_t{1} << bits_; ++part) parts_.push_back(make_part(each, bits_));
    for (const Slot& slot : held)
      if (slot.id != kNone) insert(slot.hash, slot.id);
  }
  void clear() {
    owned_.clear();
    parts_.clear();
    bits_ = 0;
    slots_ = 0;
  }
  size_t bytes() const { return parts_.size() * sizeof(Part) + owned_.size() * sizeof(owned_[0]) + slots_ * sizeof(Slot); }

 private:
  static constexpr uint32_t kFewSlots = 4, kMaxSlots = 512;  // of a part as long as it can be split
  static constexpr uint8_t kMaxBits = 16;
  struct Part {  // the same at all indices that begin with its first bits
    Slot* slots;
    uint32_t mask;
    uint32_t owned;
  };
  struct Owned {
    std::unique_ptr<Slot[]> slots;
    uint32_t count = 0, size = 0;
    uint8_t bits = 0;  // that are equal in all its halves
  };

  size_t index_of(uint32_t half) const { return (uint64_t{half} << bits_) >> 32; }
  static bool has_room(const Owned& owned) { return (owned.count + 1) * 2 <= owned.size; }
  Part make_part(uint32_t slots, uint8_t bits) {
    owned_.push_back({});
    return renew(static_cast<uint32_t>(owned_.size() - 1), slots, bits);
  }
  Part renew(uint32_t owned, uint32_t slots, uint8_t bits) {
    owned_[owned] = {std::make_unique_for_overwrite<Slot[]>(slots), 0, slots, bits};
    std::memset(owned_[owned].slots.get(), 0xFF, slots * sizeof(Slot));  // empty ones
    slots_ += slots;
    return {owned_[owned].slots.get(), slots - 1, owned};
  }
  void put(const Part& part, Slot slot) {
    size_t i = slot.hash & part.mask;
    while (part.slots[i].id != kNone) i = (i + 1) & part.mask;
    part.slots[i] = slot;
    ++owned_[part.owned].count;
  }
  // Makes room for `half`: its part gets twice the slots, or is split.  Parts with too many equal first bits to be split
  // go on growing.
  void enlarge(uint32_t half) {
    const Part old = parts_[index_of(half)];
    const uint32_t size = old.mask + 1;
    const uint8_t before = owned_[old.owned].bits;
    const bool is_split = size >= kMaxSlots && before < kMaxBits;
    if (is_split && before == bits_) {
      std::vector<Part> twice;
      twice.reserve(parts_.size() * 2);
      for (const Part& part : parts_) twice.insert(twice.end(), 2, part);
      parts_ = std::move(twice);
      ++bits_;
    }
    const std::unique_ptr<Slot[]> held = std::move(owned_[old.owned].slots);
    slots_ -= size;
    const auto bits = static_cast<uint8_t>(before + is_split);
    const Part low = renew(old.owned, is_split ? size : 2 * size, bits);
    const Part high = is_split ? make_part(size, bits) : low;
    const size_t count = size_t{1} << (bits_ - before), first = index_of(half) & ~(count - 1);
    for (size_t i = 0; i < count; ++i) parts_[first + i] = i < count / 2 ? low : high;
    for (uint32_t i = 0; i < size; ++i)
      if (held[i].id != kNone) put(parts_[index_of(held[i].hash)], held[i]);
  }

  std::vector<Part> parts_;   // by the first `bits_` bits
  std::vector<Owned> owned_;  // each once
  uint8_t bits_ = 0;
  size_t slots_ = 0;
};

// From numbers to values that stay where they are; it grows as its table does.
template <class Value>
class NumberMap {
 public:
  const Value* find(uint64_t key) const {
    const uint32_t found = table_.find(mix(key), [&](uint32_t held) { return entries_[held].first == key; });
    return found == kNone ? nullptr : &entries_[found].second;
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
  size_t bytes() const { return entries_.bytes() + table_.bytes(); }

 private:
  Pages<std::pair<uint64_t, Value>> entries_;
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
    IdTable::Slot* const slot = table_.slot_of(hash, [&](uint32_t id) {
      const auto held = (*this)[id];
      return std::equal(held.begin(), held.end(), values.begin(), values.end());
    });
    if (slot != nullptr && slot->id != kNone) return slot->id;
    const auto id = static_cast<Id>(lists_.size());
    lists_.push_back(store(values));
    table_.insert_at(slot, hash, id);
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
  void reserve(size_t lists) { table_.reserve(lists); }
  size_t bytes() const { return stored_ * sizeof(Value) + lists_.bytes() + table_.bytes(); }

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
    const std::span<Value> copy = left_.first(values.size());
    std::copy(values.begin(), values.end(), copy.begin());
    left_ = left_.subspan(values.size());
    return copy;
  }
  std::vector<std::unique_ptr<Value[]>> chunks_;
  std::span<Value> left_;  // of the last chunk
  size_t stored_ = 0;
  Pages<std::span<const Value>> lists_;
  IdTable table_;
};

}  // namespace structgen

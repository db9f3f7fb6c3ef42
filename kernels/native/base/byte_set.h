// A set of byte values, as 256 bits.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace structgen {

struct ByteSet {
  std::array<uint64_t, 4> words{};

  static ByteSet range(unsigned low, unsigned high) {
    ByteSet set;
    for (unsigned value = low; value <= high; ++value) set.insert(static_cast<uint8_t>(value));
    return set;
  }
  static ByteSet all() {
    ByteSet set;
    set.words.fill(~uint64_t{0});
    return set;
  }

  bool contains(uint8_t value) const { return words[value >> 6] >> (value & 63) & 1; }
  void insert(uint8_t value) { words[value >> 6] |= uint64_t{1} << (value & 63); }
  void erase(uint8_t value) { words[value >> 6] &= ~(uint64_t{1} << (value & 63)); }
  bool empty() const { return (words[0] | words[1] | words[2] | words[3]) == 0; }
  unsigned size() const {
    unsigned count = 0;
    for (uint64_t word : words) count += static_cast<unsigned>(std::popcount(word));
    return count;
  }
  // The smallest byte; the set must not be empty.
  uint8_t first() const {
    for (unsigned i = 0; i < 4; ++i)
      if (words[i]) return static_cast<uint8_t>(i * 64 + static_cast<unsigned>(std::countr_zero(words[i])));
    return 0;
  }
  // The smallest byte from `value` on; 256 if there is none.
  unsigned next(unsigned value) const {
    for (unsigned i = value >> 6; i < 4; ++i) {
      const uint64_t word = i == value >> 6 ? words[i] >> (value & 63) << (value & 63) : words[i];
      if (word) return i * 64 + static_cast<unsigned>(std::countr_zero(word));
    }
    return 256;
  }
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (unsigned i = 0; i < 4; ++i)
      for (uint64_t word = words[i]; word; word &= word - 1)
        visit(static_cast<uint8_t>(i * 64 + static_cast<unsigned>(std::countr_zero(word))));
  }

  ByteSet& operator|=(const ByteSet& other) {
    for (unsigned i = 0; i < 4; ++i) words[i] |= other.words[i];
    return *this;
  }
  ByteSet& operator&=(const ByteSet& other) {
    for (unsigned i = 0; i < 4; ++i) words[i] &= other.words[i];
    return *this;
  }
  friend ByteSet operator|(ByteSet a, const ByteSet& b) { return a |= b; }
  friend ByteSet operator&(ByteSet a, const ByteSet& b) { return a &= b; }
  friend ByteSet operator~(ByteSet a) {
    for (uint64_t& word : a.words) word = ~word;
    return a;
  }
  bool operator==(const ByteSet&) const = default;
};

}  // namespace structgen

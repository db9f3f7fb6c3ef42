// How many symbols of each group the strings of a term have.
//
// Bounds on such counts decide without any search that many intersections are empty: a length and a longer pattern, or
// a date and what holds more dashes than a date (after Parikh 1966, who counts the symbols of whole languages).
#pragma once

#include <array>

#include "terms/term.h"

namespace structgen {

constexpr size_t kSymbolGroups = 8;

// Bounds of the count of each group, over all strings of a term; kNone is unbounded.
struct SymbolCounts {
  std::array<uint32_t, kSymbolGroups> min{}, max{};
  bool contradictory() const {
    for (size_t group = 0; group < kSymbolGroups; ++group)
      if (min[group] > max[group]) return true;
    return false;
  }
};

class SymbolCounter {
 public:
  explicit SymbolCounter(const TermStore& terms) : terms_(terms) {}

  // Bounds for all strings of a regular term; they need not be attained.  O(parts that were not queried before).
  const SymbolCounts& of(TermId term);
  void forget() { known_.clear(); }
  size_t bytes_used() const { return known_.bytes(); }

 private:
  const TermStore& terms_;
  NumberMap<SymbolCounts> known_;
};

// The first group: characters, counted by the bytes that begin one.
constexpr size_t kCharacters = 0;

}  // namespace structgen

// Tokens by the number of characters that they take of a repeated class.
#pragma once

#include <array>
#include <map>
#include <span>

#include "masks/engine.h"

namespace structgen {

// For the state `C* T`.  A token is inside the class, or leaves it for T after some characters.  So `C{min,max} T`
// allows the tokens that are inside with at most max characters begun, and those that leave after min to max.
struct Engine::CountTable {
  static constexpr size_t kFewTokens = 600;
  using Lists = std::vector<std::vector<uint32_t>>;  // by number of characters

  uint16_t groups = 0;    // all characters of these are in the class
  Lists within;           // tokens of those characters
  Lists inside, closing;  // other tokens
  Lists exits;            // nodes of the vocabulary's trie where T may end within a token
  Distance missing = 0;   // bytes that complete the text after any token that leaves the class, at most
  std::map<uint32_t, std::shared_ptr<const Words>> masks;  // by maximum, with minimum 0
  std::map<std::pair<uint32_t, uint32_t>, const Row*> rows;

  static void put(Lists& lists, uint32_t count, std::span<const uint32_t> values) {
    if (values.empty()) return;
    if (lists.size() <= count) lists.resize(count + 1);
    if (values.size() == 1) lists[count].push_back(values[0]);
    else lists[count].insert(lists[count].end(), values.begin(), values.end());
  }
  std::array<const Lists*, 3> token_lists() const { return {&within, &inside, &closing}; }
  // Bounds beyond these make no difference.
  uint32_t max_closing() const { return static_cast<uint32_t>(std::max(closing.size(), exits.size())); }
  uint32_t max() const { return static_cast<uint32_t>(std::max({within.size(), inside.size(), closing.size(), exits.size()})); }
  size_t longer_than(uint32_t count) const {
    size_t total = 0;
    for (const Lists* lists : token_lists())
      for (size_t k = size_t{count} + 1; k < lists->size(); ++k) total += (*lists)[k].size();
    return total;
  }
  size_t size() const {
    size_t total = 0;
    for (const Lists* lists : token_lists())
      for (const auto& list : *lists) total += list.size();
    return total;
  }
  size_t bytes() const { return (size() + max() * 6) * 4; }
};

}  // namespace structgen

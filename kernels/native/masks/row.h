// Mask rows: sets of tokens, as a bitmask that rows may share and a short list of corrections.  The lists lie in the
// arena of an engine.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/intern.h"

namespace structgen {

using Words = std::vector<uint32_t>;  // a bitmask

struct Row {
  std::shared_ptr<const Words> mask;  // none: the empty set
  std::span<const uint32_t> added;    // tokens besides
  std::span<const uint32_t> removed;  // tokens of the mask that are not meant
  uint32_t exits = kNone;             // list of the nodes of the trie where the state's own automaton can end within a token

  // Where rules are called after the first bytes of many tokens: the trie of what is left of these, and the state there.
  // The row leaves out the tokens that go on, for the rules have rows that many callers share.
  std::span<const std::pair<uint32_t, uint32_t>> onward;

  // After any text that begins one of the tokens, so many bytes complete the state's own automaton, at most; kNone: unknown.
  uint32_t reach = kNone;
  // The same after any of the tokens that the row has.
  uint32_t missing = kNone;

  bool empty() const { return !mask && added.empty(); }
  size_t bytes() const { return sizeof(Row) + (added.size() + removed.size() + 2 * onward.size()) * 4; }

  // Prefetches the memory that write() and merge() read.
  void prefetch() const;
  // Replaces all `count` words.
  void write(uint32_t* words, size_t count) const;
  // Adds the tokens to those that are there.
  void merge(uint32_t* words) const;
};

}  // namespace structgen

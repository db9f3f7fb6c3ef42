// Which two tokens byte-pair encoding writes side by side: the conflict test on merge trees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/intern.h"

namespace structgen {

// The tokens of a piece are what the tokenizer writes iff each token is what its own bytes are encoded as, and so is each
// adjacent pair.  A pair is not iff, while its bytes are encoded, some merge crosses the border: of a part at the right
// edge of the first token with a part at the left edge of the second, earlier than each of them is merged within its
// token.  (T. Vieira et al., "Language Models over Canonical Byte-Pair Encodings", 2025.)
//
// The parts at an edge are a chain: a token, its own part at that edge, the part of that, down to a unit; each but the
// first is taken up by the merge that makes the one before it.
class TokenPairs {
 public:
  struct Merge {
    uint32_t left, right, whole, rank;
  };

  // `merges` by rank, and what makes the parts of one before it; of the pairs of a text that have the least rank the leftmost is merged.  `units`: what a text consists of before anything is merged.  All ids are below `tokens`.
  TokenPairs(size_t tokens, std::span<const Merge> merges, std::span<const uint32_t> units);

  size_t tokens() const { return made_.size(); }
  // Whether the bytes of a token alone are encoded as this token.
  bool reachable(uint32_t token) const { return made_[token] != 0; }
  // Whether a merge crosses the border of two reachable tokens.
  bool conflict(uint32_t left, uint32_t right) const { return conflict(left, right, kNever); }
  // Adds the tokens that must not follow a reachable one within a piece to a mask; linear in their number.
  void add_conflicts(uint32_t token, uint32_t* words) const;

 private:
  static constexpr uint32_t kNever = UINT32_MAX;
  static constexpr size_t kFilterBits = size_t{1} << 21;
  struct Slot {
    uint64_t pair = UINT64_MAX;
    uint32_t rank = kNever;
  };

  static uint64_t key(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }
  uint32_t rank_of(uint32_t left, uint32_t right) const {
    const uint64_t pair = key(left, right), hash = mix(pair);
    const size_t bit = hash >> 40 & (kFilterBits - 1);
    if (!(filter_[bit / 64] >> bit % 64 & 1)) return kNever;
    for (size_t at = hash & mask_;; at = (at + 1) & mask_)
      if (ranks_[at].pair == pair || ranks_[at].pair == UINT64_MAX) return ranks_[at].rank;
  }
  bool conflict(uint32_t left, uint32_t right, uint32_t before) const;
  void index(std::span<const uint32_t> made);

  std::vector<uint8_t> made_;                // of each token: 0 by nothing, 1 a unit, 2 by a merge
  std::vector<uint32_t> left_, right_, taken_;  // of a token made by a merge: its parts, and the rank of that
  std::vector<Slot> ranks_;                  // open addressing
  size_t mask_ = 0;
  std::vector<uint64_t> filter_;  // bits of the pairs that are there: most are not, and a bit lies in a nearer cache
  std::vector<uint8_t> begins_;  // whether a token is the left part of some merge
  // Tokens in the order of a tree in which each lies below its left part, those of a later merge before those of an earlier
  // one.  So the tokens that have a part at their left edge are a range of it, and its first part are those in which the
  // part is taken up by no earlier merge than some one.
  struct Crossing {
    uint32_t rank, begin, end;  // of a merge, and the tokens whose left edge it crosses into
  };
  std::vector<uint32_t> order_;
  std::vector<uint32_t> crossings_begin_;
  std::vector<Crossing> crossings_;  // by left part, late ones first
};

}  // namespace structgen

// What the bytes of tokens do in a recursive transition network: where they lead from each state, and what they leave
// unread for the caller.  `structgen.decode.diffusion.context_free.token_effects` documents the tables.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "masks/trie.h"

namespace structgen {

struct EffectNetwork {
  std::span<const int32_t> next;  // [states, 256]; -1 where the byte is not allowed
  std::span<const uint8_t> final;
  std::span<const std::array<int32_t, 3>> calls;     // state, start of the rule, state after its return
  std::span<const std::array<int32_t, 3>> specials;  // state, token, state after it

  size_t states() const { return final.size(); }
};

// A pair as one number, the first in the high half, so that pairs compare as they should.
using EffectPair = uint64_t;

// Effects by number; 0 is dead everywhere.
struct TokenEffects {
  enum class End { kComplete, kSteps, kEffects, kRecursion };

  std::vector<int32_t> of;  // effect of each token
  // Of each effect: outcomes that are one state from which nothing is called, (source, state); those with which the
  // caller goes on, (source, effect); and all others, (source, stack), all ascending by source.
  std::vector<size_t> single_begin{0}, left_begin{0}, other_begin{0};
  std::vector<EffectPair> single, left, other;
  // A stack is the stack below its top, -1 for none, and its top.
  std::vector<int32_t> below, top;
  size_t steps = 0;
  End end = End::kComplete;
};

// Source: the automaton of a token's bytes over stacks, each different effect of a prefix once.
TokenEffects token_effects(const TokenTrie& tokens, size_t vocabulary_size, const EffectNetwork& network, size_t max_effects, size_t max_steps);

}  // namespace structgen

// Automata written out as tables, for decoders that read all states at once.
//
// Matchers walk the automaton one text at a time and make its states as they go.  A decoder that fills the slots of a
// canvas in any order needs every state and edge in advance: for a regular language the nodes of the machine, which
// are finitely many and deterministic; else the states of the automaton with the calls between them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "automaton/machine.h"
#include "masks/trie.h"

namespace structgen {

// A deterministic automaton over bytes; state 0 is the start.
struct ByteAutomaton {
  std::vector<std::array<int32_t, 256>> next;  // -1: dead
  std::vector<uint8_t> accepting;
  std::vector<std::tuple<uint32_t, uint32_t, uint32_t>> specials;  // state, special token, state after it
  bool complete = true;  // false: there are more states than the limit, and the tables are of no use
};

// Follows all edges from `start`, and gives up beyond `max_states`.
ByteAutomaton unfold(Machine& machine, NodeId start, size_t max_states);

// Which states have equal futures: a number for each state, below the count of different ones.  All states must be
// reachable and alive.
//   next: [states, 256], -1: dead   specials: as in ByteAutomaton
// Complexity: O(m log m) for m transitions, where bytes that all states treat alike count once.
// Source: A. Valmari, P. Lehtinen, "Efficient Minimization of DFAs with Partial Transition Functions" (2008, STACS).
std::vector<int32_t> equal_futures(std::span<const int32_t> next, std::span<const uint8_t> accepting,
                                   std::span<const std::array<int32_t, 3>> specials);

// A recursive transition network over bytes; state 0 is the start.  From a state one byte is read, or a rule is called:
// then its start is entered, and where the rule can end, reading goes on in the state after the call.
struct ByteNetwork {
  std::vector<std::array<int32_t, 256>> next;  // -1: dead
  std::vector<uint8_t> final;
  std::vector<std::tuple<uint32_t, uint32_t, uint32_t>> calls;     // state, start of the rule, state after its return
  std::vector<std::tuple<uint32_t, uint32_t, uint32_t>> specials;  // as above
  std::vector<std::pair<uint32_t, RuleId>> rules;                  // start of each rule that is called, the rule
  bool complete = true;
};

ByteNetwork unfold_calls(Automaton& automaton, TermId term, size_t max_states);

// The partition of a vocabulary by what its tokens do in every state of an automaton.  Class 0 holds what is dead
// everywhere.  Moves of class c: source and target states at [begin[c], begin[c + 1]), by increasing source.
struct TokenClasses {
  std::vector<int32_t> of;  // class of each token
  std::vector<uint32_t> begin;
  std::vector<int32_t> sources, targets;
  bool complete = true;  // false: there are more moves than the limit
};

// Complexity: the nodes of the trie, each times the states in which it is alive.
TokenClasses token_classes(const TokenTrie& tokens, size_t vocabulary_size, std::span<const int32_t> next, size_t states,
                           size_t max_moves);

}  // namespace structgen

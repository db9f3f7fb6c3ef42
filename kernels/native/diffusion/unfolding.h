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
#include <utility>
#include <vector>

#include "automaton/machine.h"
#include "diffusion/byte_kinds.h"
#include "masks/trie.h"

namespace structgen {

// A deterministic automaton over bytes; state 0 is the start.
struct ByteAutomaton {
  std::array<uint8_t, 256> kind_of{};  // the bytes of a kind lead each state to the same one
  std::vector<int32_t> targets;        // [kinds, states], -1: dead
  std::vector<uint8_t> accepting;
  std::vector<std::array<int32_t, 3>> specials;  // state, special token, state after it
  size_t steps = 0;      // elementary steps, of the table alone
  bool complete = true;  // false: there are more states or steps than the limits, and the tables are of no use

  ByteColumns columns() const { return {kind_of, accepting.size(), targets}; }
};

// Follows all edges from the start of a term, and gives up beyond a limit.
ByteAutomaton unfold(Machine& machine, TermId term, size_t max_states, size_t max_steps);

// Which states have equal futures: a number for each state, below the count of different ones.  All states must be
// reachable and alive.
//   specials: as in ByteAutomaton
// Complexity: O(m log m) for m transitions, where bytes of a kind count once.
// Source: A. Valmari, P. Lehtinen, "Efficient Minimization of DFAs with Partial Transition Functions" (2008, STACS).
std::vector<int32_t> equal_futures(const ByteColumns& next, std::span<const uint8_t> accepting, std::span<const std::array<int32_t, 3>> specials);

// The same automaton with one state for those of equal futures, in the order of the first of each.
ByteAutomaton minimal(const ByteAutomaton& automaton);

// Whether a rule that texts of a term may call can call itself, directly or not; and how many terms were looked at.
std::pair<bool, size_t> may_recur(const TermStore& terms, TermId root);

// A recursive transition network over bytes; state 0 is the start.  From a state one byte is read, or a rule is called:
// then its start is entered, and where the rule can end, reading goes on in the state after the call.
struct ByteNetwork {
  std::vector<int32_t> next;  // [states, 256], -1: dead
  std::vector<uint8_t> final;
  std::vector<std::tuple<uint32_t, uint32_t, uint32_t>> calls;     // state, start of the rule, state after its return
  std::vector<std::tuple<uint32_t, uint32_t, uint32_t>> specials;  // as above
  std::vector<std::pair<uint32_t, RuleId>> rules;                  // start of each rule that is called, the rule
  size_t steps = 0;  // elementary steps, as above
  bool complete = true;
};

// Counts `state_steps` for each state besides the steps for where its bytes lead.
ByteNetwork unfold_calls(Automaton& automaton, TermId term, size_t max_states, size_t state_steps = 0, size_t max_steps = SIZE_MAX);

// The partition of a vocabulary by what its tokens do in every state of an automaton.  Class 0 holds what is dead
// everywhere.  Moves of class c: source and target states at [begin[c], begin[c + 1]), by increasing source.
struct TokenClasses {
  std::vector<int32_t> of;  // class of each token
  std::vector<uint32_t> begin;
  std::vector<int32_t> sources, targets;
  size_t steps = 0;      // elementary steps
  bool complete = true;  // false: there are more moves or steps than the limits
};

// Complexity: the nodes of the trie, and for each different effect of a prefix of a token and kind of byte the states in
// which the prefix is alive.
TokenClasses token_classes(const TokenTrie& tokens, size_t vocabulary_size, const ByteColumns& next, size_t max_moves, size_t max_steps);

// Moves between states that are joined to edges with the set of their classes, by source, then target.  A move that is
// there twice belongs to two edges.
struct LabelledEdges {
  std::vector<int32_t> source, target, label;
  std::vector<int64_t> label_begin;  // the classes of label k: [label_begin[k], label_begin[k + 1]), increasing
  std::vector<int32_t> label_class;
};

// moves: source, target, class
LabelledEdges labelled_edges(std::span<const std::array<int32_t, 3>> moves, size_t states);

}  // namespace structgen

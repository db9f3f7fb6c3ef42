// From the nodes of the Python side to a program: names are resolved, and nodes that several parents share met once.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <vector>

#include "automaton/program.h"

namespace structgen {

// The node classes of structgen.grammar.nodes, in this order when they are handed over.
enum class NodeClass : uint8_t {
  kLiteral, kByteClass, kCharClass, kSequence, kChoice, kRepeat, kReference, kRules, kIntersection, kComplement,
  kCapture, kSpecialToken, kJsonString, kShared, kDescribed, kPermutation, kDistinct, kLabel, kTokenSet, kTempered, kBudget,
};
constexpr size_t kNodeClasses = 21;

struct FlatGrammar {
  // A node whose term is worth keeping, with the instruction that makes it.
  struct Kept {
    nanobind::object node;
    uint32_t instruction;
    bool is_leaf;  // of simple terms; else a `Shared` node
  };
  Program program;
  std::vector<Kept> shared;  // those that were met first here
};

class Flattener {
 public:
  explicit Flattener(nanobind::handle classes);  // a sequence of types, as `NodeClass` lists them

  // Flattens a closed grammar, with a stack of its own.  O(nodes), where a node counts once for each scope in which
  // it is met.
  //   known: the terms of shared nodes and leaves that the engine has, as (node, term) by id of the node.
  //   host: what the engine leaves to the Python side.  special_id(vocabulary, node) returns a token id,
  //     token_ranges(vocabulary, node) ranges of them; undefined(name), recursive(node), special_in_regular(node),
  //     distinct_in_regular(node), label_in_regular(node), budget_in_regular(node), unknown(node) and
  //     exceeded(limit, maximum) raise what is wrong.
  //   rewrite: called with each Rules that no other surrounds, returns an equal grammar; or None.
  FlatGrammar flatten(nanobind::handle grammar, nanobind::dict known, nanobind::handle host, nanobind::handle vocabulary,
                      uint64_t max_nodes, nanobind::handle rewrite) const;

  // Takes the nodes of a term, and the tuples that join them, from Python's cycle collector, which then has less to look
  // at: nodes are immutable, so none is a part of a cycle.  Descriptions stay, since they refer to documents.
  // O(nodes that were not taken before).
  void untrack(nanobind::handle term) const;

 private:
  friend class Flattening;
  std::array<nanobind::object, kNodeClasses> classes_;
  // Names of attributes, made once.
  nanobind::object data_, ranges_, items_, item_, min_, max_, name_, rules_, body_, value_, required_, optional_,
      rest_, separator_, is_spare_, is_endless_, kind_, plain_, temperature_, tokens_, characters_;
};

}  // namespace structgen

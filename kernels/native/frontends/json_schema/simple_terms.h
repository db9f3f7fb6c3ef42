// The grammar of a simple JSON Schema, as the planner makes it: the nodes of structgen.grammar.nodes without an object
// for each.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "automaton/program.h"

namespace structgen {

using SimpleNode = uint32_t;  // index into SimpleTerms::nodes

struct SimpleTerms {
  enum class Kind : uint8_t {
    kLeaf,      // low: index into `leaves`
    kLiteral,   // begin, end: bytes of `text`
    kName,      // likewise, of the value of a JSON string
    kSequence,  // begin, end: `parts`, all made earlier
    kChoice,
    kRepeat,      // one part, low to high times; high kNone: no bound
    kCall,        // low: rule
    kDistinct,    // one part, without equal items; low: the Scope
    kPermutation, // each part at most once, in any order, low to high of them; then what stands for others, and the separator
    kOtherNames,  // JSON strings whose value is none of the parts, which are names
  };
  struct Node {
    Kind kind;
    uint32_t begin = 0, end = 0;
    uint32_t low = 0, high = 0;
  };
  struct Rule {
    std::string name;
    SimpleNode body = 0;
  };

  std::vector<Node> nodes;
  std::vector<SimpleNode> parts;
  std::string text;
  std::vector<nanobind::object> leaves;  // terms of the Python side: shared ones, and those of simple types
  std::vector<Rule> rules;
  std::vector<std::string> unknown;  // names in the place of keywords that nobody knows
  SimpleNode result = 0;

  // Not more than what they add to a program that has the leaves already.
  size_t bytes() const { return (nodes.size() - leaves.size()) * sizeof(Instruction) + parts.size() * 4 + text.size(); }
  std::string_view text_of(const Node& node) const { return std::string_view(text).substr(node.begin, node.end - node.begin); }
  std::span<const SimpleNode> parts_of(const Node& node) const { return {parts.data() + node.begin, node.end - node.begin}; }
};

}  // namespace structgen

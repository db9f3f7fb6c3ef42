// Terms of context-free rules without an object for each: what structgen.grammar.nodes has of literals, characters,
// sequences, choices, repetitions and references, put together as structgen.grammar.algebra does.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "automaton/program.h"
#include "base/intern.h"

namespace structgen {

using RuleTerm = uint32_t;  // index of a node; children are made before their parents

// The rules and all their terms.  Terms are compared by identity, as the nodes of the Python side are.
class RuleTerms {
 public:
  enum class Kind : uint8_t {
    kLiteral,   // begin, end: bytes of the text
    kChars,     // begin, end: ranges
    kSequence,  // begin, end: parts
    kChoice,
    kRepeat,  // one part, low to high times; high kNone: no bound
    kCall,    // low: rule
    kLeaf,    // low: a program of its own
  };
  struct Node {
    Kind kind;
    bool has_call = false;     // below it or itself
    bool is_nullable = false;  // known of all nodes once solve_nullable() has run
    uint32_t begin = 0, end = 0;
    uint32_t low = 0, high = 0;
  };
  struct Rule {
    std::string name;
    RuleTerm body = kNone;
    bool is_nullable = false;
  };

  static constexpr RuleTerm kEpsilon = 0, kEmpty = 1;  // the empty text, and no text

  RuleTerms();

  RuleTerm literal(std::string_view data);
  RuleTerm chars(std::span<const CodePoints> ranges);  // sorted, disjoint, without surrogates
  RuleTerm call(uint32_t rule);
  RuleTerm leaf(const Program* program, bool is_nullable);  // which lives as long as this
  RuleTerm repeat(RuleTerm item, uint32_t low, uint32_t high);
  RuleTerm sequence_of(std::span<const RuleTerm> items) { return group(Kind::kSequence, items); }
  RuleTerm choice_of(std::span<const RuleTerm> items) { return group(Kind::kChoice, items); }
  // The items one after the other, spliced while that is short; any one of them, each once.
  RuleTerm joined(std::span<const RuleTerm> items);
  RuleTerm joined(std::initializer_list<RuleTerm> items) { return joined(std::span(items.begin(), items.size())); }
  RuleTerm either(std::span<const RuleTerm> items);

  uint32_t add_rule(std::string name);

  static bool holds_parts(Kind kind) { return kind == Kind::kSequence || kind == Kind::kChoice || kind == Kind::kRepeat; }
  const Node& at(RuleTerm term) const { return nodes_[term]; }
  std::span<const RuleTerm> parts(RuleTerm term) const { return {parts_.data() + nodes_[term].begin, nodes_[term].end - nodes_[term].begin}; }
  std::string_view text(RuleTerm term) const { return std::string_view(text_).substr(nodes_[term].begin, nodes_[term].end - nodes_[term].begin); }
  bool is_nullable(RuleTerm term) const { return nodes_[term].is_nullable; }
  size_t size() const { return nodes_.size(); }

  // Finds which rules and terms the empty text belongs to; terms made later are known at once.  O(nodes).
  void solve_nullable();
  // The program of `body` with the rules that it leads to.  O(nodes of these).
  Program program(RuleTerm body) const;

  std::vector<Rule> rules;

 private:
  friend class RuleProgram;
  RuleTerm group(Kind kind, std::span<const RuleTerm> items);
  RuleTerm add(Node node);
  size_t width(RuleTerm term) const;

  std::vector<Node> nodes_;
  std::vector<RuleTerm> parts_;
  std::string text_;
  std::vector<CodePoints> ranges_;
  std::vector<const Program*> leaves_;
};

}  // namespace structgen

// The rewriting of left-recursive rules, for the two files that it takes: rules and their equations (left_recursion.cpp),
// and the terms that are taken apart for them (left_positions.cpp).
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "frontends/lark/rule_terms.h"

namespace structgen {

struct TooMuch {};  // the result is too large, or not made of what is known here

class Rewriting {
  using Kind = RuleTerms::Kind;
  using Rule = uint32_t;

 public:
  Rewriting(RuleTerms& terms, uint64_t max_nodes) : terms_(terms), max_nodes_(max_nodes), given_(static_cast<Rule>(terms.rules.size())) {}

  void all(RuleTerm body);

 private:
  // A rule with what follows it at the start of a term, in the order in which they were met.
  using Parts = std::vector<std::pair<Rule, RuleTerm>>;

  // A term as `rest`, or a nonempty string of a rule followed by its part.
  struct Split {
    RuleTerm rest;
    Parts parts;
  };

  // Where the text of a new rule comes from: the nonempty strings of `of`, or what turns one of `of` into one of `into`.
  struct Maker {
    enum class Kind : uint8_t { kGiven, kNonempty, kAfter } kind = Kind::kGiven;
    Rule of = 0, into = 0;
  };
  // The equations of a set of rules, X_b = base[b] | X_a step[a][b] | ..., over classes of equal rules.
  struct System {
    std::unordered_map<Rule, Rule> leader;
    std::vector<std::pair<Rule, RuleTerm>> base;
    std::unordered_map<Rule, Parts> step;
  };

  // Left positions

  void starts(RuleTerm term, std::vector<RuleTerm>& out) const;
  void find_cycles();
  void called_below(RuleTerm root, std::vector<bool>& seen, std::vector<Rule>& out) const;

  // The expressions of rules

  bool is_recursive(Rule rule) const { return rule < given_ && cycle_of_[rule] != kNone; }

  RuleTerm expression(Rule rule);
  RuleTerm solution(Rule rule);
  RuleTerm after(Rule source, Rule target);
  RuleTerm after_rule(Rule source, Rule target);
  RuleTerm loop(Rule source);
  const Parts& steps(Rule source);
  const std::unordered_set<Rule>& sources(Rule target);
  Rule nonempty(Rule rule);
  Rule add_rule(const std::string& wish, Maker maker);

  // The equations

  const System& system_of(Rule rule);
  System make_system(const std::vector<Rule>& cycle, uint32_t members);

  // Terms taken apart

  RuleTerm without_empty(RuleTerm root);
  RuleTerm emptied(RuleTerm term);
  Split split(RuleTerm root, uint32_t members);
  Split splitted(RuleTerm term, uint32_t members, const std::unordered_map<RuleTerm, Split>& known);

  template <class SplitOf>
  Split split_sequence(const std::vector<RuleTerm>& items, SplitOf&& split_of);
  Parts merged(const std::vector<Split>& splits);
  std::vector<RuleTerm> tails_of(const std::vector<RuleTerm>& items, size_t last);

  std::vector<RuleTerm> copied(RuleTerm term) const {
    if (!terms_.holds_parts(terms_.at(term).kind)) return {};
    return {terms_.parts(term).begin(), terms_.parts(term).end()};
  }

  // Terms, simplified a little and counted

  RuleTerm sequence(std::initializer_list<RuleTerm> items) { return sequence(std::span(items.begin(), items.size())); }
  RuleTerm sequence(std::span<const RuleTerm> items) {
    if (std::ranges::find(items, RuleTerms::kEmpty) != items.end()) return RuleTerms::kEmpty;
    charge(1 + items.size());
    return terms_.joined(items);
  }
  RuleTerm choice(std::initializer_list<RuleTerm> items) { return choice(std::span(items.begin(), items.size())); }
  RuleTerm choice(std::span<const RuleTerm> items) {
    std::vector<RuleTerm> kept;
    for (RuleTerm item : items)
      if (!is_empty(item)) kept.push_back(item);
    charge(1 + kept.size());
    return kept.empty() ? RuleTerms::kEmpty : terms_.either(kept);
  }
  RuleTerm repeat(RuleTerm item, uint32_t min, uint32_t max) {
    if (max == 0 || (is_empty(item) && min == 0)) return RuleTerms::kEpsilon;
    if (is_empty(item) || (min == 1 && max == 1)) return item;
    return terms_.repeat(item, min, max);
  }
  bool is_empty(RuleTerm term) const { return term == RuleTerms::kEmpty; }
  void charge(size_t count) {
    spent_ += count;
    if (spent_ > max_nodes_) throw TooMuch{};
  }

  RuleTerms& terms_;
  uint64_t max_nodes_;
  uint64_t spent_ = 0;
  Rule given_;                    // rules from here on are new
  std::vector<RuleTerm> bodies_;  // of the rules given
  std::vector<Maker> makers_;
  std::vector<std::vector<Rule>> cycles_;  // sets of rules that reach each other in left position
  std::vector<uint32_t> cycle_of_;
  std::vector<std::optional<System>> systems_;
  std::unordered_map<uint32_t, std::unordered_map<Rule, std::vector<Rule>>> before_;
  std::unordered_map<Rule, std::unordered_set<Rule>> reaching_;
  std::map<std::pair<Rule, Rule>, Rule> after_rules_;
  std::unordered_map<Rule, Rule> nonempty_rules_;
  std::unordered_set<std::string> taken_;
  std::unordered_map<RuleTerm, RuleTerm> without_empty_;
};

}  // namespace structgen

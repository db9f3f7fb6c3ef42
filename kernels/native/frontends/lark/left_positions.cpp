// Terms taken apart: without the empty string, and split at the rules that they can start with.
#include <algorithm>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "frontends/lark/rewriting.h"

namespace structgen {

RuleTerm Rewriting::without_empty(RuleTerm root) {
  std::vector<RuleTerm> stack{root};
  while (!stack.empty()) {
    const RuleTerm term = stack.back();
    if (without_empty_.contains(term)) {
      stack.pop_back();
    } else if (!terms_.is_nullable(term)) {
      without_empty_[term] = term;
    } else {
      const size_t height = stack.size();
      if (terms_.holds_parts(terms_.at(term).kind))
        for (RuleTerm part : terms_.parts(term))
          if (!without_empty_.contains(part)) stack.push_back(part);
      if (stack.size() == height) without_empty_[term] = emptied(term);
    }
  }
  return without_empty_.at(root);
}

RuleTerm Rewriting::emptied(RuleTerm term) {
  const RuleTerms::Node node = terms_.at(term);
  switch (node.kind) {
    case Kind::kLiteral: return RuleTerms::kEmpty;
    case Kind::kCall: return terms_.call(nonempty(node.low));
    case Kind::kRepeat: {
      if (node.high == 0) return RuleTerms::kEmpty;
      return repeat(without_empty_.at(terms_.parts(term)[0]), 1, node.high);
    }
    case Kind::kChoice: {
      std::vector<RuleTerm> ways;
      for (RuleTerm part : terms_.parts(term)) ways.push_back(without_empty_.at(part));
      return choice(ways);
    }
    case Kind::kSequence: {
      const std::vector<RuleTerm> items = copied(term);
      if (items.empty()) return RuleTerms::kEmpty;
      const std::vector<RuleTerm> tails = tails_of(items, items.size() - 1);
      std::vector<RuleTerm> ways;
      for (size_t i = 0; i < items.size(); ++i) ways.push_back(sequence({without_empty_.at(items[i]), tails[i]}));
      return choice(ways);
    }
    default: throw TooMuch{};
  }
}

// An expression split at the rules of a cycle that it can start with.
Rewriting::Split Rewriting::split(RuleTerm root, uint32_t members) {
  std::unordered_map<RuleTerm, Split> known;
  std::vector<std::pair<RuleTerm, bool>> stack{{root, false}};
  std::vector<RuleTerm> next;
  while (!stack.empty()) {
    const auto [term, is_open] = stack.back();
    stack.pop_back();
    if (is_open) {
      Split made = splitted(term, members, known);
      known.insert_or_assign(term, std::move(made));
    } else if (!known.contains(term)) {
      stack.emplace_back(term, true);
      next.clear();
      starts(term, next);
      for (RuleTerm part : next) stack.emplace_back(part, false);
    }
  }
  return known.at(root);
}

Rewriting::Split Rewriting::splitted(RuleTerm term, uint32_t members, const std::unordered_map<RuleTerm, Split>& known) {
  const RuleTerms::Node node = terms_.at(term);
  if (node.kind == Kind::kCall && is_recursive(node.low) && cycle_of_[node.low] == members)
    return {terms_.is_nullable(term) ? RuleTerms::kEpsilon : RuleTerms::kEmpty, {{node.low, RuleTerms::kEpsilon}}};
  std::vector<RuleTerm> next;
  starts(term, next);
  if (std::ranges::none_of(next, [&](RuleTerm part) { return !known.at(part).parts.empty(); })) return {term, {}};
  const auto split_of = [&](RuleTerm part) {
    const auto found = known.find(part);
    return found == known.end() ? Split{part, {}} : found->second;
  };
  const std::vector<RuleTerm> items = copied(term);
  switch (node.kind) {
    case Kind::kChoice: {
      std::vector<Split> splits;
      std::vector<RuleTerm> rests;
      for (RuleTerm item : items) rests.push_back(splits.emplace_back(split_of(item)).rest);
      const RuleTerm rest = choice(rests);
      return {rest, merged(splits)};
    }
    case Kind::kSequence: return split_sequence(items, split_of);
    case Kind::kRepeat: {
      const Split item = known.at(next[0]);
      // A nullable item repeated m to n times is its part that is not empty repeated 0 to n times.
      const uint32_t min = terms_.is_nullable(items[0]) ? 0 : node.low;
      const uint32_t max = node.high == kNone ? kNone : node.high - 1;
      const RuleTerm tail = repeat(items[0], min == 0 ? 0 : min - 1, max);
      const RuleTerm rest = sequence({without_empty(item.rest), tail});
      Split made{min > 0 ? rest : choice({rest, RuleTerms::kEpsilon}), {}};
      for (const auto& [rule, part] : item.parts) made.parts.emplace_back(rule, sequence({part, tail}));
      return made;
    }
    default: throw TooMuch{};
  }
}

template <class SplitOf>
Rewriting::Split Rewriting::split_sequence(const std::vector<RuleTerm>& items, SplitOf&& split_of) {
  std::vector<Split> splits;
  size_t last = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    splits.push_back(split_of(items[i]));
    if (!splits.back().parts.empty()) last = i;
    if (!terms_.is_nullable(items[i])) break;
  }
  splits.resize(last + 1);
  const std::vector<RuleTerm> tails = tails_of(items, last);
  // Where an item before the last is empty, the next one starts the sequence: those cases are apart.
  std::vector<RuleTerm> rests;
  for (size_t i = 0; i <= last; ++i) rests.push_back(sequence({i < last ? without_empty(splits[i].rest) : splits[i].rest, tails[i]}));
  for (size_t i = 0; i <= last; ++i)
    for (auto& [rule, part] : splits[i].parts) part = sequence({part, tails[i]});
  const RuleTerm rest = choice(rests);
  return {rest, merged(splits)};
}

Rewriting::Parts Rewriting::merged(const std::vector<Split>& splits) {
  std::vector<std::pair<Rule, std::vector<RuleTerm>>> found;
  std::unordered_map<Rule, size_t> indices;
  for (const Split& split : splits) {
    for (const auto& [rule, part] : split.parts) {
      const auto [slot, is_new] = indices.try_emplace(rule, found.size());
      if (is_new) found.emplace_back(rule, std::vector<RuleTerm>());
      found[slot->second].second.push_back(part);
    }
  }
  Parts made;
  for (const auto& [rule, parts] : found) made.emplace_back(rule, choice(parts));
  return made;
}

// What follows each of the items 0 to last, each tail sharing the next one.
std::vector<RuleTerm> Rewriting::tails_of(const std::vector<RuleTerm>& items, size_t last) {
  std::vector<RuleTerm> tails{sequence(std::span(items).subspan(last + 1))};
  for (size_t i = last; i > 0; --i) tails.push_back(sequence({items[i], tails.back()}));
  std::ranges::reverse(tails);
  return tails;
}

}  // namespace structgen

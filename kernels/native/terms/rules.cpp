// Rules: their distances, the scopes and budgets below terms, and whether they are left-recursive.
#include <algorithm>
#include <queue>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "terms/permutation.h"
#include "terms/term.h"

namespace structgen {

namespace {

constexpr uint64_t kSolvingSteps = 10;  // for each term

}  // namespace

RuleId TermStore::add_rule(std::string name) {
  rules_.push_back({std::move(name), kEmptyTerm, kUnsolved, Scope::kNone});
  open_rules_.push_back(static_cast<RuleId>(rules_.size() - 1));
  return open_rules_.back();
}

void TermStore::set_rule(RuleId rule, TermId body) {
  rules_[rule].body = body;
  // A body that depends on no unsolved rule settles the rule at once; solve_rules() does the rest.
  if (distances_[body] != kUnsolved) rules_[rule].distance = distances_[body];
}

// The parts of a term that may call rules.
template <class Visit>
void TermStore::for_each_part(TermId id, Visit&& visit) const {
  const Term& term = terms_[id];
  switch (term.kind) {
    case Kind::kSequence: visit(term.b); [[fallthrough]];
    case Kind::kRepeat:
    case Kind::kPermutationPrefix:
    case Kind::kPermutationTail: visit(term.a); break;
    case Kind::kChoice:
      for (TermId part : lists_[term.a]) visit(part);
      break;
    case Kind::kPermutation: {
      const Permutation parts(*this, term);
      visit(parts.separator);
      visit(parts.rest);
      for (uint32_t item : parts.items) visit(Permutation::term_of(item));
      break;
    }
    default: break;
  }
}

TermStore::Scopes TermStore::scopes_below(TermId root) const {
  Scopes found;
  if (!has_scopes_) return found;
  std::unordered_set<TermId> seen;
  std::vector<TermId> work{root};
  while (!work.empty()) {
    const TermId id = work.back();
    work.pop_back();
    if (!seen.insert(id).second) continue;
    const Term& term = terms_[id];
    for_each_part(id, [&](TermId part) { work.push_back(part); });
    if (term.kind == Kind::kCall) {
      found.budgets |= rules_[term.a].tokens != kNone;
      const Scope scope = rules_[term.a].scope;
      if (is_container(scope)) found.containers = std::max(found.containers, scope);
      found.labels |= is_label(scope);
      found.temperatures |= is_tempered(scope);
      work.push_back(rules_[term.a].body);
    } else if (term.kind == Kind::kSpecial) {
      found.token_sets |= (term.a & kTokenSet) != 0;
    }
  }
  return found;
}

bool TermStore::has_budgets_in_scopes(TermId root) const {
  // Calls visit(rule) for all rules that `from` can call.
  const auto walk = [&](std::vector<TermId> from, auto&& visit) {
    std::unordered_set<TermId> seen;
    while (!from.empty()) {
      const TermId id = from.back();
      from.pop_back();
      if (!seen.insert(id).second) continue;
      for_each_part(id, [&](TermId part) { from.push_back(part); });
      if (terms_[id].kind != Kind::kCall) continue;
      visit(rules_[terms_[id].a]);
      from.push_back(rules_[terms_[id].a].body);
    }
  };
  const auto is_scope = [](const Rule& rule) { return is_container(rule.scope) || is_label(rule.scope); };
  std::vector<TermId> budgets, scopes;
  bool found = false;
  walk({root}, [&](const Rule& rule) {
    if (rule.tokens != kNone) budgets.push_back(rule.body);
    if (is_scope(rule)) scopes.push_back(rule.body);
    found |= rule.tokens != kNone && is_scope(rule);
  });
  walk(std::move(budgets), [&](const Rule& rule) { found |= is_scope(rule); });
  walk(std::move(scopes), [&](const Rule& rule) { found |= rule.tokens != kNone; });
  return found;
}

// Rules that were solved call none that were made later, so what is known of them stays.
void TermStore::bound_rules() {
  const auto first = static_cast<RuleId>(rule_budgets_.size()), end = static_cast<RuleId>(rules_.size());
  std::vector<std::pair<uint32_t, RuleId>> order;            // budgets, smallest first
  std::vector<std::vector<RuleId>> callers(end - first);
  rule_budgets_.resize(end, kNone);
  std::unordered_set<TermId> seen;
  std::vector<TermId> work;
  for (RuleId rule = first; rule < end; ++rule) {
    const Rule& held = rules_[rule];
    if (held.tokens != kNone && held.distance < kInfinite) order.emplace_back(held.tokens < held.distance ? 0 : held.tokens, rule);
    seen.clear();
    work.assign(1, held.body);
    while (!work.empty()) {
      const TermId id = work.back();
      work.pop_back();
      if (!seen.insert(id).second) continue;
      for_each_part(id, [&](TermId part) { work.push_back(part); });
      if (terms_[id].kind != Kind::kCall) continue;
      const RuleId callee = terms_[id].a;
      if (callee >= first) callers[callee - first].push_back(rule);
      else if (rule_budgets_[callee] != kNone) order.emplace_back(rule_budgets_[callee], rule);
    }
  }
  std::sort(order.begin(), order.end());
  std::vector<RuleId> open;
  for (const auto& [budget, from] : order) {
    open.assign(1, from);
    while (!open.empty()) {
      const RuleId rule = open.back();
      open.pop_back();
      if (rule_budgets_[rule] != kNone) continue;  // a smaller one is known
      rule_budgets_[rule] = budget;
      open.insert(open.end(), callers[rule - first].begin(), callers[rule - first].end());
    }
  }
}

uint32_t TermStore::least_budget(TermId root) {
  if (!has_budgets_) return kNone;
  if (rule_budgets_.size() < rules_.size()) bound_rules();
  if (term_budgets_.size() < terms_.size()) term_budgets_.resize(terms_.size());
  std::vector<TermId> work{root};
  while (!work.empty()) {
    const TermId id = work.back();
    if (!term_budgets_[id]) {
      uint32_t least = terms_[id].kind == Kind::kCall ? rule_budgets_[terms_[id].a] : kNone;
      const size_t before = work.size();
      for_each_part(id, [&](TermId part) {
        if (term_budgets_[part]) least = std::min(least, *term_budgets_[part]);
        else work.push_back(part);
      });
      if (work.size() != before) continue;
      term_budgets_[id] = least;
    }
    work.pop_back();
  }
  return *term_budgets_[root];
}

TermId TermStore::token_set(std::span<const CodePoints> ranges) {
  if (ranges.empty()) return kEmptyTerm;
  has_scopes_ = true;
  return make({Kind::kSpecial, kTokenSet | token_sets_.intern(ranges), 0, 0});
}

bool TermStore::is_symbol_of(uint32_t symbol, uint32_t token) const {
  if ((symbol & kTokenSet) == 0) return symbol == token;
  const auto ranges = token_sets_[symbol & ~kTokenSet];
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), token, [](uint32_t id, const CodePoints& range) { return id < range.first; });
  return after != ranges.begin() && token <= std::prev(after)->second;
}

Scope TermStore::temperature_scope(double temperature) {
  auto found = std::find(temperatures_.begin(), temperatures_.end(), temperature);
  if (found == temperatures_.end()) {
    constexpr size_t kMaxTemperatures = kAllScopes - kTempered;
    if (temperatures_.size() == kMaxTemperatures) throw LimitError("temperatures", kMaxTemperatures, "telling parts with a temperature of their own apart");
    found = temperatures_.insert(temperatures_.end(), temperature);
  }
  return static_cast<Scope>(kTempered + static_cast<size_t>(found - temperatures_.begin()));
}

void TermStore::solve_rules(Pulse& pulse) {
  // users[x]: unsolved terms with x as a part; due[x]: permutations that require x, where `missing` counts the required
  // parts that are still unsolved; bodies[x]: rules whose body is x.
  std::vector<std::pair<TermId, TermId>> users, due;
  std::unordered_map<TermId, uint32_t> missing;
  std::vector<std::pair<TermId, RuleId>> bodies;
  std::vector<std::pair<RuleId, TermId>> calls;
  using Item = std::pair<Distance, TermId>;
  std::priority_queue<Item, std::vector<Item>, std::greater<>> queue;
  for (RuleId rule : open_rules_)
    if (rules_[rule].distance == kUnsolved) bodies.emplace_back(rules_[rule].body, rule);
  for (TermId id : unsolved_) {
    pulse.beat(kSolvingSteps);
    const Term& term = terms_[id];
    if (term.kind == Kind::kSequence) {
      users.emplace_back(term.a, id);
      users.emplace_back(term.b, id);
    } else if (term.kind == Kind::kChoice) {
      for (TermId item : lists_[term.a]) users.emplace_back(item, id);
    } else if (term.kind == Kind::kRepeat) {
      users.emplace_back(term.a, id);
    } else if (term.kind == Kind::kPermutation) {
      const Permutation parts(*this, term);
      const auto need = [&](TermId part) {
        if (distances_[part] != kUnsolved) return;
        due.emplace_back(part, id);
        ++missing[id];
      };
      uint32_t required = 0;
      for (uint32_t item : parts.items) {
        if (Permutation::is_required(item)) need(Permutation::term_of(item));
        else users.emplace_back(Permutation::term_of(item), id);
        required += Permutation::is_required(item);
      }
      users.emplace_back(parts.rest, id);
      if (std::max(parts.min, required) > 1) need(parts.separator);
    } else if (term.kind == Kind::kCall) {
      calls.emplace_back(term.a, id);
    }
  }
  std::sort(users.begin(), users.end());
  std::sort(due.begin(), due.end());
  std::sort(bodies.begin(), bodies.end());
  std::sort(calls.begin(), calls.end());
  const auto candidate = [&](TermId id) -> Distance {
    const Term& term = terms_[id];
    const auto of = [&](TermId part) { return distances_[part] == kUnsolved ? kInfinite : distances_[part]; };
    if (term.kind == Kind::kSequence) return add(of(term.a), of(term.b));
    if (term.kind == Kind::kRepeat) {
      const Distance item = of(term.a);
      return item == kInfinite ? kInfinite : static_cast<Distance>(std::min<uint64_t>(uint64_t{item} * term.b, kFar));
    }
    if (term.kind == Kind::kCall) return rules_[term.a].distance == kUnsolved ? kInfinite : rules_[term.a].distance;
    if (term.kind == Kind::kPermutation)
      return missing[id] ? kInfinite : PermutationDistances(Permutation(*this, term), of).members();
    return kInfinite;
  };
  for (TermId id : unsolved_) {
    if (distances_[id] != kUnsolved) continue;  // settled before an interruption
    Distance start = candidate(id);
    if (terms_[id].kind == Kind::kChoice)
      for (TermId item : lists_[terms_[id].a])
        if (distances_[item] != kUnsolved) start = std::min(start, distances_[item]);
    if (start < kInfinite) queue.emplace(start, id);
  }
  while (!queue.empty()) {
    pulse.beat(kSolvingSteps);  // may throw: what is settled is right, and the rest is solved anew
    const auto [distance, id] = queue.top();
    queue.pop();
    if (distances_[id] != kUnsolved) continue;
    distances_[id] = distance;
    for (auto user = std::lower_bound(users.begin(), users.end(), std::pair<TermId, TermId>{id, 0});
         user != users.end() && user->first == id; ++user) {
      if (distances_[user->second] != kUnsolved) continue;
      const Distance next = terms_[user->second].kind == Kind::kChoice ? distance : candidate(user->second);
      if (next < kInfinite) queue.emplace(next, user->second);
    }
    for (auto user = std::lower_bound(due.begin(), due.end(), std::pair<TermId, TermId>{id, 0});
         user != due.end() && user->first == id; ++user) {
      if (--missing[user->second] != 0) continue;
      if (const Distance next = candidate(user->second); next < kInfinite) queue.emplace(next, user->second);
    }
    for (auto body = std::lower_bound(bodies.begin(), bodies.end(), std::pair<TermId, RuleId>{id, 0});
         body != bodies.end() && body->first == id; ++body) {
      rules_[body->second].distance = distance;
      for (auto call = std::lower_bound(calls.begin(), calls.end(), std::pair<RuleId, TermId>{body->second, 0});
           call != calls.end() && call->first == body->second; ++call)
        queue.emplace(distance, call->second);
    }
  }
  for (TermId id : unsolved_)
    if (distances_[id] == kUnsolved) distances_[id] = kInfinite;
  for (const auto& [body, rule] : bodies)
    if (rules_[rule].distance == kUnsolved) rules_[rule].distance = kInfinite;
  unsolved_.clear();
  open_rules_.clear();
}

bool TermStore::left_recursive(RuleId first, Pulse& pulse) const {
  // Rules of earlier grammars cannot call these, so a cycle lies among the rules from `first` on.
  const auto left_calls = [&](RuleId rule) {
    std::vector<RuleId> calls;
    std::unordered_set<TermId> seen;
    std::vector<TermId> work{rules_[rule].body};
    while (!work.empty()) {
      pulse.beat(kSolvingSteps);
      const TermId id = work.back();
      work.pop_back();
      if (distances_[id] == kInfinite || !seen.insert(id).second) continue;
      const Term& term = terms_[id];
      if (term.kind == Kind::kSequence) {
        work.push_back(term.a);
        if (distances_[term.a] == 0) work.push_back(term.b);
      } else if (term.kind == Kind::kChoice) {
        work.insert(work.end(), lists_[term.a].begin(), lists_[term.a].end());
      } else if (term.kind == Kind::kRepeat) {
        work.push_back(term.a);
      } else if (term.kind == Kind::kPermutation) {
        const Permutation parts(*this, term);
        bool nullable = distances_[parts.rest] == 0;
        work.push_back(parts.rest);
        for (uint32_t item : parts.items) {
          work.push_back(Permutation::term_of(item));
          nullable |= distances_[Permutation::term_of(item)] == 0;
        }
        if (nullable) work.push_back(parts.separator);
      } else if (term.kind == Kind::kCall && term.a >= first) {
        calls.push_back(term.a);
      }
    }
    return calls;
  };
  enum : uint8_t { kNew, kOpen, kDone };
  std::vector<uint8_t> colour(rules_.size() - first, kNew);
  for (RuleId root = first; root < rules_.size(); ++root) {
    if (colour[root - first] != kNew) continue;
    std::vector<std::pair<RuleId, std::vector<RuleId>>> stack;
    stack.emplace_back(root, left_calls(root));
    colour[root - first] = kOpen;
    while (!stack.empty()) {
      if (stack.back().second.empty()) {
        colour[stack.back().first - first] = kDone;
        stack.pop_back();
        continue;
      }
      const RuleId callee = stack.back().second.back();
      stack.back().second.pop_back();
      if (colour[callee - first] == kOpen) return true;
      if (colour[callee - first] == kNew) {
        colour[callee - first] = kOpen;
        stack.emplace_back(callee, left_calls(callee));
      }
    }
  }
  return false;
}

}  // namespace structgen

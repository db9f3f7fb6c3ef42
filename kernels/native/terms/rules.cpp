// Rules: their distances, the scopes and budgets below terms, and whether they are left-recursive.
#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "terms/permutation.h"
#include "terms/term.h"

namespace structgen {

namespace {

constexpr unsigned kRounds = 3;
constexpr uint64_t kSolvingSteps = 10, kRoundSteps = 3;  // for each term

// Items by distance, the least first, where none is less than the last that was taken (a radix heap: R. Ahuja,
// K. Mehlhorn, J. Orlin and R. Tarjan, "Faster algorithms for the shortest path problem", 1990).
class RadixQueue {
 public:
  using Item = std::pair<Distance, uint32_t>;
  void push(Distance distance, uint32_t number) {
    buckets_[bucket_of(distance)].emplace_back(distance, number);
    ++size_;
  }
  bool empty() const { return size_ == 0; }
  Item pop() {
    if (buckets_[0].empty()) {
      const auto first = std::ranges::find_if_not(buckets_, &std::vector<Item>::empty);
      last_ = std::ranges::min(*first).first;
      for (const Item& item : *first) buckets_[bucket_of(item.first)].push_back(item);
      first->clear();
    }
    const Item least = buckets_[0].back();
    buckets_[0].pop_back();
    --size_;
    return least;
  }

 private:
  // By the first bit in which it differs from the last distance.
  size_t bucket_of(Distance distance) const { return static_cast<size_t>(std::bit_width(distance ^ last_)); }

  std::array<std::vector<Item>, std::numeric_limits<Distance>::digits + 1> buckets_;
  Distance last_ = 0;
  size_t size_ = 0;
};

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

// The distance of a term that is no choice, from those of its parts and of the bodies of rules.
template <class Of>
Distance TermStore::distance_from(const Term& term, Of&& of) const {
  switch (term.kind) {
    case Kind::kSequence: return add(of(term.a), of(term.b));
    case Kind::kRepeat: {
      const Distance item = of(term.a);
      return item == kInfinite ? kInfinite : static_cast<Distance>(std::min<uint64_t>(uint64_t{item} * term.b, kFar));
    }
    case Kind::kCall: {
      const Rule& rule = rules_[term.a];
      return rule.distance == kUnsolved ? of(rule.body) : rule.distance;
    }
    case Kind::kPermutation: return PermutationDistances(Permutation(*this, term), of).members();
    default: return kInfinite;
  }
}

// The unsolved terms by number, in their order: parts before what they are part of.
struct TermStore::Numbering {
  explicit Numbering(const std::vector<TermId>& unsolved) : terms(unsolved), first(unsolved.empty() ? 0 : unsolved.front()) {
    numbers.resize(unsolved.empty() ? 0 : unsolved.back() - first + 1, kNone);
    for (uint32_t number = 0; number < unsolved.size(); ++number) numbers[unsolved[number] - first] = number;
  }
  uint32_t of(TermId id) const { return id < first || id - first >= numbers.size() ? kNone : numbers[id - first]; }

  const std::vector<TermId>& terms;
  TermId first;
  std::vector<uint32_t> numbers;
};

void TermStore::solve_rules(Pulse& pulse) {
  const Numbering numbering(unsolved_);
  if (!solve_in_rounds(numbering, pulse)) solve_by_distance(numbering, pulse);
  for (TermId id : unsolved_)
    if (distances_[id] == kUnsolved) distances_[id] = kInfinite;
  for (RuleId rule : open_rules_)
    if (rules_[rule].distance == kUnsolved) rules_[rule].distance = distances_[rules_[rule].body];
  unsolved_.clear();
  open_rules_.clear();
}

// Finds all distances by a few rounds over the terms (R. Bellman, "On a routing problem", 1958); false if that takes more,
// as where many rules are called before they are set.
bool TermStore::solve_in_rounds(const Numbering& numbering, Pulse& pulse) {
  std::vector<Distance> found(unsolved_.size(), kInfinite);
  const auto known = [&](TermId part) {
    if (distances_[part] != kUnsolved) return distances_[part];
    const uint32_t number = numbering.of(part);
    return number == kNone ? kInfinite : found[number];
  };
  const auto is_done = [&](TermId id) { return terms_[id].kind != Kind::kCall || distance_from(terms_[id], known) == known(id); };
  for (unsigned round = 0; round < kRounds; ++round) {
    for (uint32_t number = 0; number < found.size(); ++number) {
      pulse.beat(kRoundSteps);
      const Term& term = terms_[unsolved_[number]];
      if (term.kind == Kind::kChoice) {
        for (TermId item : lists_[term.a]) found[number] = std::min(found[number], known(item));
      } else {
        found[number] = distance_from(term, known);
      }
    }
    if (!std::ranges::all_of(unsolved_, is_done)) continue;
    for (uint32_t number = 0; number < found.size(); ++number) distances_[unsolved_[number]] = known(unsolved_[number]);
    return true;
  }
  return false;
}

// Finds the distances one by one, the least first (D. Knuth, "A generalization of Dijkstra's algorithm", 1977).
void TermStore::solve_by_distance(const Numbering& numbering, Pulse& pulse) {
  // Numbers: the unsolved terms, then the open rules.  users[x]: terms with x as a part, rules with x as their body, calls
  // of the rule x; due[x]: permutations that require x, where `missing` counts the required parts that are still unsolved.
  const size_t count = unsolved_.size();
  std::unordered_map<RuleId, uint32_t> number_of_rule;
  for (RuleId rule : open_rules_)
    if (rules_[rule].distance == kUnsolved) number_of_rule.emplace(rule, static_cast<uint32_t>(count + number_of_rule.size()));

  struct Edge {
    uint32_t user, next;  // the next one of the same part
  };
  std::vector<Edge> edges;
  std::vector<uint32_t> users(count + number_of_rule.size(), kNone);
  const auto add_edge = [&](uint32_t part, uint32_t user) {
    if (part == kNone) return;
    edges.push_back({user, users[part]});
    users[part] = static_cast<uint32_t>(edges.size() - 1);
  };
  std::vector<std::pair<uint32_t, uint32_t>> due;
  std::unordered_map<TermId, uint32_t> missing;
  const auto candidate = [&](TermId id) -> Distance {
    if (terms_[id].kind == Kind::kPermutation && missing[id]) return kInfinite;
    return distance_from(terms_[id], [&](TermId part) { return distances_[part] == kUnsolved ? kInfinite : distances_[part]; });
  };
  RadixQueue queue;
  std::vector<Distance> least(count, kInfinite);  // that was queued
  const auto offer = [&](uint32_t number, Distance distance) {
    if (distance >= least[number]) return;
    least[number] = distance;
    queue.push(distance, number);
  };
  for (uint32_t user = 0; user < count; ++user) {
    pulse.beat(kSolvingSteps);
    const TermId id = unsolved_[user];
    if (distances_[id] != kUnsolved) continue;  // settled before an interruption
    const Term& term = terms_[id];
    Distance start = kInfinite;
    const auto add_user = [&](TermId part) {
      if (distances_[part] == kUnsolved) add_edge(numbering.of(part), user);
      else if (term.kind == Kind::kChoice) start = std::min(start, distances_[part]);
    };
    if (term.kind == Kind::kSequence) {
      add_user(term.a);
      add_user(term.b);
    } else if (term.kind == Kind::kChoice) {
      for (TermId item : lists_[term.a]) add_user(item);
    } else if (term.kind == Kind::kRepeat) {
      add_user(term.a);
    } else if (term.kind == Kind::kPermutation) {
      const Permutation parts(*this, term);
      const auto need = [&](TermId part) {
        if (distances_[part] != kUnsolved) return;
        due.emplace_back(numbering.of(part), user);
        ++missing[id];
      };
      uint32_t required = 0;
      for (uint32_t item : parts.items) {
        if (Permutation::is_required(item)) need(Permutation::term_of(item));
        else add_user(Permutation::term_of(item));
        required += Permutation::is_required(item);
      }
      add_user(parts.rest);
      if (std::max(parts.min, required) > 1) need(parts.separator);
    } else if (term.kind == Kind::kCall) {
      const auto rule = number_of_rule.find(term.a);
      if (rule != number_of_rule.end()) add_edge(rule->second, user);
    }
    offer(user, term.kind == Kind::kChoice ? start : candidate(id));
  }
  std::vector<RuleId> rules(number_of_rule.size());
  for (const auto& [rule, number] : number_of_rule) {
    rules[number - count] = rule;
    add_edge(numbering.of(rules_[rule].body), number);
  }
  std::sort(due.begin(), due.end());
  while (!queue.empty()) {
    pulse.beat(kSolvingSteps);  // may throw: what is settled is right, and the rest is solved anew
    const auto [distance, number] = queue.pop();
    if (distances_[unsolved_[number]] != kUnsolved) continue;
    distances_[unsolved_[number]] = distance;
    for (uint32_t edge = users[number]; edge != kNone; edge = edges[edge].next) {
      const uint32_t user = edges[edge].user;
      if (user >= count) {
        rules_[rules[user - count]].distance = distance;
        for (uint32_t call = users[user]; call != kNone; call = edges[call].next) offer(edges[call].user, distance);
      } else if (distances_[unsolved_[user]] == kUnsolved) {
        offer(user, terms_[unsolved_[user]].kind == Kind::kChoice ? distance : candidate(unsolved_[user]));
      }
    }
    for (auto user = std::lower_bound(due.begin(), due.end(), std::pair<uint32_t, uint32_t>{number, 0});
         user != due.end() && user->first == number; ++user)
      if (--missing[unsolved_[user->second]] == 0) offer(user->second, candidate(unsolved_[user->second]));
  }
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

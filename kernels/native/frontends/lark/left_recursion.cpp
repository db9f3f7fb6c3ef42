// Which rules are left-recursive, and what is written instead of them.
#include "frontends/lark/left_recursion.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "frontends/lark/rewriting.h"

namespace structgen {

namespace {

// Numbers in the order in which they came, each once.
class OrderedSet {
 public:
  void add(uint32_t value) {
    if (known_.insert(value).second) values.push_back(value);
  }
  std::vector<uint32_t> values;

 private:
  std::unordered_set<uint32_t> known_;
};

// The strongly connected components of a graph, each before those that lead to it (R. Tarjan, 1972).
std::vector<std::vector<uint32_t>> strongly_connected(const std::vector<std::vector<uint32_t>>& graph) {
  std::vector<uint32_t> index(graph.size(), kNone), low(graph.size()), path;
  std::vector<bool> finished(graph.size());
  std::vector<std::vector<uint32_t>> components;
  std::vector<std::pair<uint32_t, size_t>> work;
  uint32_t count = 0;
  const auto enter = [&](uint32_t node) {
    index[node] = low[node] = count++;
    path.push_back(node);
    work.emplace_back(node, 0);
  };
  for (uint32_t root = 0; root < graph.size(); ++root) {
    if (index[root] == kNone) enter(root);
    while (!work.empty()) {
      auto& [node, next] = work.back();
      if (next < graph[node].size()) {
        const uint32_t target = graph[node][next++];
        if (index[target] == kNone) {
          enter(target);
        } else if (!finished[target]) {
          low[node] = std::min(low[node], index[target]);
        }
        continue;
      }
      const uint32_t done = node;
      work.pop_back();
      if (!work.empty()) low[work.back().first] = std::min(low[work.back().first], low[done]);
      if (low[done] != index[done]) continue;
      std::vector<uint32_t>& component = components.emplace_back();
      do {
        component.push_back(path.back());
        finished[path.back()] = true;
        path.pop_back();
      } while (component.back() != done);
      std::ranges::reverse(component);
    }
  }
  return components;
}

}  // namespace

void Rewriting::all(RuleTerm body) {
  terms_.solve_nullable();
  find_cycles();
  if (cycles_.empty()) return;
  for (const RuleTerms::Rule& rule : terms_.rules) bodies_.push_back(rule.body), taken_.insert(rule.name);
  makers_.resize(given_);
  std::vector<bool> found, seen;
  std::vector<Rule> stack;
  called_below(body, seen, stack);
  while (!stack.empty()) {
    const Rule rule = stack.back();
    stack.pop_back();
    if (rule < found.size() && found[rule]) continue;
    found.resize(terms_.rules.size());
    found[rule] = true;
    const RuleTerm made = expression(rule);
    terms_.rules[rule].body = made;
    called_below(made, seen, stack);
  }
}

// The parts of a term that can start it and have a call below them.
void Rewriting::starts(RuleTerm term, std::vector<RuleTerm>& out) const {
  const RuleTerms::Node& node = terms_.at(term);
  if (!terms_.holds_parts(node.kind) || (node.kind == Kind::kRepeat && node.high == 0)) return;
  for (RuleTerm part : terms_.parts(term)) {
    if (terms_.at(part).has_call) out.push_back(part);
    if (node.kind == Kind::kSequence && !terms_.is_nullable(part)) return;
  }
}

void Rewriting::find_cycles() {
  std::vector<std::vector<uint32_t>> graph(given_);
  std::vector<uint32_t> seen(terms_.size(), kNone);
  std::vector<RuleTerm> stack, next;
  for (Rule rule = 0; rule < given_; ++rule) {
    stack.assign(1, terms_.rules[rule].body);
    while (!stack.empty()) {
      const RuleTerm term = stack.back();
      stack.pop_back();
      if (std::exchange(seen[term], rule) == rule) continue;
      if (terms_.at(term).kind == Kind::kCall) {
        graph[rule].push_back(terms_.at(term).low);
      } else {
        next.clear();
        starts(term, next);
        stack.insert(stack.end(), next.rbegin(), next.rend());
      }
    }
  }
  cycle_of_.assign(given_, kNone);
  for (std::vector<uint32_t>& component : strongly_connected(graph)) {
    if (component.size() == 1 && std::ranges::find(graph[component[0]], component[0]) == graph[component[0]].end()) continue;
    for (Rule rule : component) cycle_of_[rule] = static_cast<uint32_t>(cycles_.size());
    cycles_.push_back(std::move(component));
  }
  systems_.resize(cycles_.size());
}

// Puts the rules that a term calls on the stack, but for those in nodes that were seen before.
void Rewriting::called_below(RuleTerm root, std::vector<bool>& seen, std::vector<Rule>& out) const {
  seen.resize(terms_.size());
  std::vector<RuleTerm> stack{root};
  while (!stack.empty()) {
    const RuleTerm term = stack.back();
    stack.pop_back();
    if (seen[term] || !terms_.at(term).has_call) continue;
    seen[term] = true;
    if (terms_.at(term).kind == Kind::kCall) {
      out.push_back(terms_.at(term).low);
    } else {
      stack.insert(stack.end(), terms_.parts(term).begin(), terms_.parts(term).end());
    }
  }
}

RuleTerm Rewriting::expression(Rule rule) {
  const Maker maker = makers_[rule];
  switch (maker.kind) {
    case Maker::Kind::kAfter: return after_rule(maker.of, maker.into);
    case Maker::Kind::kNonempty: return is_recursive(maker.of) ? solution(maker.of) : without_empty(bodies_[maker.of]);
    case Maker::Kind::kGiven: break;
  }
  if (!is_recursive(rule)) return bodies_[rule];
  if (!terms_.rules[rule].is_nullable) return solution(rule);
  return choice({RuleTerms::kEpsilon, terms_.call(nonempty(rule))});
}

// The nonempty strings of a left-recursive rule.
RuleTerm Rewriting::solution(Rule rule) {
  const System& system = system_of(rule);
  const Rule leader = system.leader.at(rule);
  if (leader != rule) return terms_.call(terms_.rules[leader].is_nullable ? nonempty(leader) : leader);
  std::vector<RuleTerm> ways;
  for (const auto& [source, base] : system.base)
    if (sources(rule).contains(source)) ways.push_back(sequence({base, after(source, rule)}));
  return choice(ways);
}

// What turns a string of `source` into one of `target`.
RuleTerm Rewriting::after(Rule source, Rule target) {
  const Parts& step = steps(source);
  const auto leads_on = [&](const auto& one) { return one.first != source && sources(target).contains(one.first); };
  if (source == target && std::ranges::none_of(step, leads_on)) return loop(source);
  const auto key = std::pair(source, target);
  const auto found = after_rules_.find(key);
  if (found != after_rules_.end()) return terms_.call(found->second);
  const Rule made = add_rule(terms_.rules[target].name + ".after." + terms_.rules[source].name, {Maker::Kind::kAfter, source, target});
  after_rules_.emplace(key, made);
  return terms_.call(made);
}

RuleTerm Rewriting::after_rule(Rule source, Rule target) {
  std::vector<RuleTerm> ways;
  const Parts step = steps(source);
  for (const auto& [other, part] : step)
    if (other != source && sources(target).contains(other)) ways.push_back(sequence({part, after(other, target)}));
  if (source == target) ways.push_back(RuleTerms::kEpsilon);
  const RuleTerm rest = choice(ways);
  return sequence({loop(source), rest});
}

RuleTerm Rewriting::loop(Rule source) {
  for (const auto& [other, part] : steps(source))
    if (other == source) return terms_.repeat(part, 0, kNone);
  return RuleTerms::kEpsilon;
}

// The steps from a class of rules; none where there are none.
const Rewriting::Parts& Rewriting::steps(Rule source) {
  static const Parts none;
  const System& system = system_of(source);
  const auto found = system.step.find(source);
  return found == system.step.end() ? none : found->second;
}

// The classes from which steps lead to `target`, itself included.
const std::unordered_set<Rewriting::Rule>& Rewriting::sources(Rule target) {
  const auto [slot, is_new] = reaching_.try_emplace(target);
  if (!is_new) return slot->second;
  std::unordered_map<Rule, std::vector<Rule>>& before = before_[cycle_of_[target]];
  if (before.empty())
    for (const auto& [source, targets] : system_of(target).step)
      for (const auto& [other, part] : targets) before[other].push_back(source);
  std::unordered_set<Rule>& found = slot->second;
  found.insert(target);
  std::vector<Rule> stack{target};
  while (!stack.empty()) {
    const Rule rule = stack.back();
    stack.pop_back();
    const auto sources = before.find(rule);
    if (sources == before.end()) continue;
    for (Rule source : sources->second)
      if (found.insert(source).second) stack.push_back(source);
  }
  return found;
}

Rewriting::Rule Rewriting::nonempty(Rule rule) {
  const auto found = nonempty_rules_.find(rule);
  if (found != nonempty_rules_.end()) return found->second;
  const Rule made = add_rule(terms_.rules[rule].name + ".nonempty", {Maker::Kind::kNonempty, rule, 0});
  nonempty_rules_.emplace(rule, made);
  return made;
}

Rewriting::Rule Rewriting::add_rule(const std::string& wish, Maker maker) {
  std::string name = wish;
  for (int count = 2; !taken_.insert(name).second; ++count) name = wish + "." + std::to_string(count);
  makers_.push_back(maker);
  return terms_.add_rule(std::move(name));
}

const Rewriting::System& Rewriting::system_of(Rule rule) {
  std::optional<System>& system = systems_[cycle_of_[rule]];
  if (!system) system = make_system(cycles_[cycle_of_[rule]], cycle_of_[rule]);
  return *system;
}

Rewriting::System Rewriting::make_system(const std::vector<Rule>& cycle, uint32_t members) {
  std::unordered_map<Rule, uint32_t> order;
  for (uint32_t i = 0; i < cycle.size(); ++i) order[cycle[i]] = i;
  std::vector<Split> splits;
  for (Rule rule : cycle) splits.push_back(split(bodies_[rule], members));
  // Rules that turn into each other by reading nothing have the same strings.
  std::vector<std::vector<uint32_t>> silent(cycle.size());
  for (uint32_t i = 0; i < cycle.size(); ++i)
    for (const auto& [source, part] : splits[i].parts)
      if (terms_.is_nullable(part)) silent[order.at(source)].push_back(i);
  System system;
  for (const std::vector<uint32_t>& equal : strongly_connected(silent)) {
    const Rule first = cycle[*std::ranges::min_element(equal)];
    for (uint32_t i : equal) system.leader[cycle[i]] = first;
  }
  std::unordered_map<Rule, std::vector<RuleTerm>> bases;
  std::map<std::pair<Rule, Rule>, std::vector<RuleTerm>> steps;
  OrderedSet targets;
  std::vector<std::pair<Rule, Rule>> step_order;
  for (Rule rule : cycle) targets.add(system.leader.at(rule));
  for (uint32_t i = 0; i < cycle.size(); ++i) {
    const Rule target = system.leader.at(cycle[i]);
    bases[target].push_back(without_empty(splits[i].rest));
    for (const auto& [source, part] : splits[i].parts) {
      const Rule from = system.leader.at(source);
      const RuleTerm step = from == target ? without_empty(part) : part;
      if (step == RuleTerms::kEmpty) continue;
      std::vector<RuleTerm>& known = steps[{from, target}];
      if (known.empty()) step_order.emplace_back(from, target);
      known.push_back(step);
    }
  }
  for (Rule target : targets.values) system.base.emplace_back(target, choice(bases.at(target)));
  for (const auto& [from, target] : step_order) system.step[from].emplace_back(target, choice(steps.at({from, target})));
  return system;
}

bool remove_left_recursion(RuleTerms& terms, RuleTerm body, uint64_t max_nodes) {
  try {
    Rewriting(terms, max_nodes).all(body);
  } catch (const TooMuch&) {
    return false;
  }
  return true;
}

}  // namespace structgen

#include "automaton/automaton.h"

#include <algorithm>
#include <stdexcept>

#include "automaton/expansion.h"

namespace structgen {

namespace {

constexpr size_t kFewGroups = 4;
constexpr size_t kMaxProductBytes = size_t{16} << 20;  // that are kept from one call to the next

}  // namespace

ByteMap::ByteMap(const ByteEdges& edges, Arena& arena) : groups_(arena.keep(edges.groups)) {
  if (groups_.size() <= kFewGroups) return;
  auto* const index = arena.allocate<uint16_t>(256);
  std::fill_n(index, 256, kNoGroup);
  for (size_t group = 0; group < groups_.size(); ++group)
    groups_[group].first.for_each([&](uint8_t byte) { index[byte] = static_cast<uint16_t>(group); });
  index_ = index;
}

Automaton::Automaton(const ByteSet& spellable) : terms_(spellable) { forget(); }

void Automaton::forget() {
  meter_ = {};
  states_.clear();
  edge_lists_.clear();
  loops_.clear();
  item_lists_ = {};
  state_of_list_.clear();
  state_of_term_.clear();
  first_codes_.clear();
  code_tails_.clear();
  foreign_codes_.clear();
  unbounded_.clear();
  drop_products();
  rule_starts_.clear();
  loop_bytes_ = 0;
  std::vector<TermId> none;
  intern(none);  // kDead
  states_[kDead].expanded = true;
}

void Automaton::drop_products() {
  edges_.clear();
  single_edges_.clear();
  class_within_.clear();
  symbols_.forget();
  product_bytes_ = 0;
}

void Automaton::trim() {
  if (product_bytes_ + symbols_.bytes_used() > kMaxProductBytes) drop_products();
}

StateId Automaton::intern(std::vector<TermId>& items) {
  for (size_t i = 0; i < items.size();) {
    const Term& term = terms_[items[i]];
    if (term.kind != Kind::kChoice) {
      ++i;
      continue;
    }
    const auto nested = terms_.list(term.a);
    const TermId first = nested[0];
    items.insert(items.end(), nested.begin() + 1, nested.end());
    items[i] = first;
  }
  std::erase_if(items, [&](TermId item) { return terms_.distance(item) == kInfinite; });
  meter_.work(items.size(), kDeriving);
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
  terms_.drop_narrower(items);
  const uint32_t list = item_lists_.intern(items);
  // A list may be there without a state: the charge below throws.
  if (state_of_list_[list] != kNone) return state_of_list_[list];
  meter_.charge("making automaton states");
  State& state = states_.emplace_back();
  state.items = list;
  for (TermId item : items) state.distance = std::min(state.distance, terms_.distance(item));
  const auto id = static_cast<StateId>(states_.size() - 1);
  state_of_list_.at(list) = id;
  return id;
}

StateId Automaton::state_of(TermId term) {
  if (state_of_term_[term] != kNone) return state_of_term_[term];
  std::vector<TermId> items{term};
  const StateId id = intern(items);
  state_of_term_.at(term) = id;
  return id;
}

StateId Automaton::union_of(StateId a, StateId b) {
  if (a == b) return a;
  const auto first = items(a), second = items(b);
  std::vector<TermId> all(first.begin(), first.end());
  all.insert(all.end(), second.begin(), second.end());
  return intern(all);
}

StateId Automaton::rule_start(RuleId rule) {
  if (rule_starts_.size() < terms_.rule_count()) rule_starts_.resize(terms_.rule_count(), kNone);
  if (rule_starts_[rule] == kNone) {
    const StateId start = state_of(terms_.rule_body(rule));
    rule_starts_[rule] = start;
  }
  return rule_starts_[rule];
}

uint32_t Automaton::height(RuleId rule) {
  constexpr uint32_t kOpen = kNone - 1;
  heights_.resize(std::max(heights_.size(), terms_.rule_count()), kNone);
  if (heights_[rule] != kNone) return heights_[rule];
  std::vector<std::pair<RuleId, size_t>> stack{{rule, 0}};
  heights_[rule] = kOpen;
  try {
    while (!stack.empty()) {
      const RuleId current = stack.back().first;
      const State& start = expanded(rule_start(current));
      if (stack.back().second < start.calls.size()) {
        const RuleId callee = start.calls[stack.back().second++].first;
        if (heights_[callee] == kOpen)
          throw std::logic_error("left recursion through rule '" + terms_.rule_name(callee) + "' reached the engine");
        if (heights_[callee] == kNone) {
          heights_[callee] = kOpen;
          stack.emplace_back(callee, 0);
        }
      } else {
        uint32_t best = 0;
        for (const auto& [callee, after] : start.calls) best = std::max(best, heights_[callee] + 1);
        heights_[current] = best;
        stack.pop_back();
      }
    }
  } catch (...) {  // a limit: nothing half known may stay
    for (const auto& [open, next] : stack) heights_[open] = kNone;
    throw;
  }
  return heights_[rule];
}

TermId Automaton::as_term(StateId id) {
  if (states_[id].term == kNone) {
    const auto held = items(id);
    states_[id].term = terms_.choice(std::vector<TermId>(held.begin(), held.end()));
  }
  return states_[id].term;
}

bool Automaton::is_nullable(TermId root) const {
  // Boolean terms may be unsettled here, so their parts decide.  Their nesting is bounded by the lowering.
  const Term& term = terms_[root];
  if (term.kind == Kind::kAnd) {
    for (TermId item : terms_.list(term.a))
      if (!is_nullable(item)) return false;
    return true;
  }
  if (term.kind == Kind::kNot) return !is_nullable(term.a);
  return terms_.distance(root) == 0;
}

bool Automaton::in_string(StateId id) {
  if (states_[id].position == State::Position::kUnknown) {
    const auto is_inside = [&](TermId item) {
      const Term whole = terms_[item];
      if (whole.kind != Kind::kSequence || terms_[whole.a].kind != Kind::kJson) return false;
      const Term tail = terms_[terms_[whole.b].kind == Kind::kSequence ? terms_[whole.b].a : whole.b];
      return tail.kind == Kind::kLiteral && terms_.blob(tail.a)[tail.b] == '"';
    };
    const bool is_it = id != kDead && std::ranges::all_of(items(id), is_inside);
    states_[id].position = is_it ? State::Position::kInString : State::Position::kElsewhere;
  }
  return states_[id].position == State::Position::kInString;
}

size_t Automaton::bytes_used() const {
  return terms_.bytes_used() + states_.bytes() + edge_lists_.bytes() + loop_bytes_ + product_bytes_ + item_lists_.bytes() +
         state_of_term_.bytes() + state_of_list_.bytes() + symbols_.bytes_used() + unbounded_.bytes() + mark_.bytes() + (first_codes_.size() + code_tails_.size()) * 96;
}

}  // namespace structgen

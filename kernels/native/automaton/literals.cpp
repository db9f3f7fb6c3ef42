// States within literals, and within strings that exclude texts: most of them need no expansion.
#include <algorithm>
#include <map>

#include "automaton/automaton.h"
#include "automaton/expansion.h"

namespace structgen {

std::optional<Automaton::LiteralState> Automaton::literal(StateId id) const {
  const State& state = states_[id];
  if (state.expanded && state.next.group_count() != 1) return std::nullopt;  // as of most states that walks meet
  const auto held = item_lists_[state.items];
  if (held.size() != 1) return std::nullopt;
  const Term whole = terms_[held[0]];
  const bool is_sequence = whole.kind == Kind::kSequence;
  const Term head = is_sequence ? terms_[whole.a] : whole;
  if (head.kind != Kind::kLiteral) return std::nullopt;
  return LiteralState{head, is_sequence ? whole.b : kEpsilonTerm};
}

StateId Automaton::after_literal(StateId id, size_t bytes) {
  const auto [head, tail] = *literal(id);
  std::vector<TermId> rest{terms_.sequence(terms_.literal_rest(head.a, head.b + static_cast<uint32_t>(bytes)), tail)};
  return intern(rest);
}

// Most states stand within a literal: one edge, and nothing else.
bool Automaton::expand_literal(StateId id) {
  const auto found = literal(id);
  if (!found) return false;
  const Term head = found->head;
  ByteSet set;
  set.insert(static_cast<uint8_t>(terms_.blob(head.a)[head.b]));
  const StateId target = after_literal(id, 1);
  State& state = states_[id];
  ByteEdges next;
  next.assign(set, target);
  state.next = ByteMap(next, edge_lists_);
  state.live = set;
  state.expanded = true;
  return true;
}

std::optional<Automaton::Excluding> Automaton::excluding(TermId id) const {
  if (terms_[id].kind != Kind::kAnd) return std::nullopt;
  const auto parts = terms_.list(terms_[id].a);
  if (parts.size() != 2) return std::nullopt;
  for (size_t i = 0; i < 2; ++i) {
    if (terms_[parts[i]].kind != Kind::kNot) continue;
    const TermId texts = terms_[parts[i]].a;
    const auto is_text = [&](TermId term) { return terms_[term].kind == Kind::kLiteral || term == kEpsilonTerm; };
    const bool are_texts =
        terms_[texts].kind == Kind::kChoice ? std::ranges::all_of(terms_.list(terms_[texts].a), is_text) : is_text(texts);
    if (are_texts) return Excluding{parts[1 - i], texts};
  }
  return std::nullopt;
}

std::vector<TermId> Automaton::alternatives(TermId term) const {
  if (terms_[term].kind != Kind::kChoice) return {term};
  const auto list = terms_.list(terms_[term].a);
  return {list.begin(), list.end()};
}

std::optional<Automaton::ExcludingState> Automaton::excluding_state(StateId id) {
  const auto held = items(id);
  if (held.size() != 1) return std::nullopt;
  const Term whole = terms_[held[0]];
  if (whole.kind != Kind::kSequence || terms_[whole.a].kind != Kind::kJson || whole.b != quote_) return std::nullopt;
  const auto value = excluding(terms_[whole.a].a);
  if (!value) return std::nullopt;
  return ExcludingState{*value, whole.b};
}

size_t Automaton::leap(StateId id, std::string_view text) {
  if (const auto found = literal(id)) {
    const std::string_view wanted = terms_.blob(found->head.a).substr(found->head.b);
    const size_t same = static_cast<size_t>(std::ranges::mismatch(wanted, text).in1 - wanted.begin());
    return same == wanted.size() ? same : text.size();  // what differs ends the state, however much is read
  }
  const auto found = excluding_state(id);
  if (!found) return 0;
  // Bytes by which the language stays as it is, and that are neither escapes nor the end.
  const StateId language = state_of(found->value.language);
  const StateId free = state_of(terms_.sequence(json(found->value.language), found->tail));
  size_t count = 0;
  for (char letter : text) {
    const auto byte = static_cast<uint8_t>(letter);
    if (byte == '"' || byte == '\\' || expanded(language).next[byte] != language || expanded(free).next[byte] != free) break;
    ++count;
  }
  return count;
}

StateId Automaton::after_leap(StateId id, std::string_view read) {
  if (const auto found = literal(id)) {
    const std::string_view wanted = terms_.blob(found->head.a).substr(found->head.b);
    return wanted.starts_with(read) ? after_literal(id, read.size()) : kDead;
  }
  const auto [value, tail] = *excluding_state(id);
  std::vector<TermId> rests;
  for (TermId text : alternatives(value.texts)) {
    if (text == kEpsilonTerm) continue;
    const Term held = terms_[text];
    if (terms_.blob(held.a).substr(held.b).starts_with(read))
      rests.push_back(terms_.literal_rest(held.a, held.b + static_cast<uint32_t>(read.size())));
  }
  if (rests.empty()) return state_of(terms_.sequence(json(value.language), tail));
  meter_.work(kTermSteps * rests.size(), kDeriving);
  const TermId rest = terms_.conjunction({value.language, terms_.negation(terms_.choice(std::move(rests)))});
  settle(rest, Weight::kPlain);
  std::vector<TermId> items{terms_.sequence(json(rest), tail)};
  return intern(items);
}

// Within the name of a member that must differ from all declared names: where none of them begins, all is as without
// them.
bool Automaton::expand_excluding(StateId id) {
  const auto found_state = excluding_state(id);
  if (!found_state) return false;
  const auto& found = found_state->value;
  const TermId tail = found_state->tail;
  const State& free = expanded(state_of(terms_.sequence(json(found.language), tail)));
  const State& language = expanded(state_of(found.language));
  std::map<uint8_t, std::vector<TermId>> begun;  // what is left of the texts by their first bytes
  ByteSet differing;
  differing.insert('\\');
  for (TermId text : alternatives(found.texts)) {
    if (text == kEpsilonTerm) {
      differing.insert('"');
      continue;
    }
    const Term literal = terms_[text];
    const auto first = static_cast<uint8_t>(terms_.blob(literal.a)[literal.b]);
    if (first == '"' || first == '\\' || !free.live.contains(first)) continue;  // only by an escape, or not at all
    differing.insert(first);
    begun[first].push_back(terms_.literal_rest(literal.a, literal.b + 1));
  }
  std::vector<std::pair<StateId, ByteSet>> edges;
  free.next.for_each([&](const ByteSet& set, StateId target) {
    if (const ByteSet same = set & ~differing; !same.empty()) edges.emplace_back(target, same);
  });
  const auto add_edge = [&](uint8_t byte, TermId rest) {
    std::vector<TermId> items{terms_.sequence(rest, tail)};
    const StateId target = intern(items);
    if (target == kDead) return;
    auto edge = std::find_if(edges.begin(), edges.end(), [&](const auto& known) { return known.first == target; });
    if (edge == edges.end()) edge = edges.insert(edges.end(), {target, ByteSet{}});
    edge->second.insert(byte);
  };
  for (auto& [byte, rests] : begun) {
    const TermId rest = terms_.conjunction({as_term(language.next[byte]), terms_.negation(terms_.choice(std::move(rests)))});
    settle(rest, Weight::kPlain);
    if (terms_.distance(rest) != kInfinite) add_edge(byte, json(rest));
  }
  add_edge('\\', json_escape(terms_[terms_[items(id)[0]].a].a));
  State& state = states_[id];
  ByteEdges next;
  for (const auto& [target, set] : edges) {
    next.assign(set, target);
    state.live |= set;
  }
  state.next = ByteMap(next, edge_lists_);
  state.expanded = true;
  return true;
}

}  // namespace structgen

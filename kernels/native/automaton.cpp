#include "automaton.h"

#include <algorithm>
#include <map>
#include <ranges>
#include <stdexcept>
#include <unordered_set>

#include "expansion.h"

namespace structgen {

namespace {

constexpr size_t kFewGroups = 4;
constexpr size_t kManyForms = 32;
constexpr unsigned kFewBytes = 32;
constexpr size_t kMostProductBytes = size_t{16} << 20;  // that are kept from one call to the next

const ByteSet& unescaped_json() {  // bytes that stand for themselves inside a JSON string
  static const ByteSet set = [] {
    ByteSet bytes = ByteSet::range(0x20, 0xFF);
    bytes.erase('"');
    bytes.erase('\\');
    return bytes;
  }();
  return set;
}

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
  if (product_bytes_ + symbols_.bytes_used() > kMostProductBytes) drop_products();
}

StateId Automaton::intern(std::vector<TermId>& items) {
  for (size_t i = 0; i < items.size(); ++i) {
    const Term& term = terms_[items[i]];
    if (term.kind != Kind::kChoice) continue;
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

// Partial derivatives of one term.  Work items are terms, or guarded pairs (term, after): the concatenation of both
// of which `term` must consume something.  Guards keep a repeated nullable item from counting down without reading.
// With `only`, what does not begin with that byte may be left out.
void Automaton::collect(TermId root, Expansion& out, std::optional<uint8_t> only) {
  const uint32_t epoch = ++epoch_;
  struct Work {
    TermId term;
    TermId after;
    bool guarded;
  };
  std::vector<Work> work{{root, kEpsilonTerm, false}};
  std::unordered_set<uint64_t> seen_guarded;
  while (!work.empty()) {
    meter_.work(kTermSteps, kDeriving);
    const Work item = work.back();
    work.pop_back();
    const auto [id, after, guarded] = item;
    if (terms_.distance(id) == kInfinite) continue;
    if (guarded) {
      if (!seen_guarded.insert(uint64_t{id} << 32 | after).second) continue;
    } else {
      uint32_t& mark = mark_.at(id);
      if (mark == epoch) continue;
      mark = epoch;
    }
    const Term whole = terms_[id];
    const bool is_sequence = whole.kind == Kind::kSequence;
    const TermId head = is_sequence ? whole.a : id;
    const TermId tail = is_sequence ? whole.b : kEpsilonTerm;
    const Term term = terms_[head];
    const auto again = [&, after = after, guarded = guarded](TermId next) { work.push_back({next, after, guarded}); };
    const auto skip_head = [&, after = after, guarded = guarded] {
      if (tail != kEpsilonTerm) work.push_back({tail, after, guarded});
      else if (!guarded) out.final = true;
    };
    const auto rest = [&, after = after](TermId first) { return terms_.sequence(first, terms_.sequence(tail, after)); };
    const auto emit = [&](const ByteSet& set, TermId first) {
      if (only ? set.contains(*only) : !set.empty()) out.forms.emplace_back(rest(first), set);
    };
    const auto alone = [](uint8_t byte) {
      ByteSet set;
      set.insert(byte);
      return set;
    };
    // Whether a part may matter; what it begins with is looked at no further than it shows.
    const auto may_begin = [&](TermId part) {
      if (!only) return true;
      const Term front = terms_[terms_[part].kind == Kind::kSequence ? terms_[part].a : part];
      if (front.kind == Kind::kBytes) return terms_.byte_set(front.a).contains(*only);
      return front.kind != Kind::kLiteral || static_cast<uint8_t>(terms_.blob(front.a)[front.b]) == *only;
    };
    switch (term.kind) {
      case Kind::kEmpty: break;
      case Kind::kEpsilon: skip_head(); break;
      case Kind::kLiteral:
        emit(alone(static_cast<uint8_t>(terms_.blob(term.a)[term.b])), terms_.literal_rest(term.a, term.b + 1));
        break;
      case Kind::kBytes: emit(terms_.byte_set(term.a), kEpsilonTerm); break;
      case Kind::kSequence:  // (a b) tail: one step of re-association
        again(terms_.sequence(term.a, terms_.sequence(term.b, tail)));
        break;
      case Kind::kChoice: {
        const auto list = terms_.list(term.a);
        const std::vector<TermId> items(list.begin(), list.end());
        for (TermId choice : items)
          if (may_begin(choice)) again(terms_.sequence(choice, tail));
        break;
      }
      case Kind::kRepeat: {
        const bool nullable = terms_.distance(term.a) == 0;
        const uint32_t min = nullable ? 0 : term.b;
        if (!may_begin(term.a)) {
          if (min == 0) skip_head();
          break;
        }
        const TermId fewer = terms_.repeat(term.a, min == 0 ? 0 : min - 1, term.c == kNone ? kNone : term.c - 1);
        if (nullable) work.push_back({term.a, rest(fewer), true});
        else again(terms_.sequence(term.a, terms_.sequence(fewer, tail)));
        if (min == 0) skip_head();
        break;
      }
      case Kind::kCall:
        out.calls.emplace_back(term.a, rest(kEpsilonTerm));
        if (terms_.rule_distance(term.a) == 0) skip_head();
        break;
      case Kind::kSpecial: out.specials.emplace_back(term.a, rest(kEpsilonTerm)); break;
      case Kind::kAnd:
      case Kind::kNot: {
        const auto add = [&](const ByteSet& set, TermId target) {
          settle(target, Weight::kPlain);
          if (terms_.distance(target) != kInfinite) emit(set, target);
        };
        if (only) {
          add(alone(*only), derivative(head, *only));
        } else {
          for (const auto& [set, target] : edges(head)) add(set, target);
        }
        if (is_nullable(head)) skip_head();
        break;
      }
      case Kind::kJson: {
        if (only && *only != '\\') {
          const bool is_raw = unescaped_json().contains(*only) && terms_.spellable().contains(*only);
          if (const StateId target = is_raw ? this->after(state_of(term.a), *only) : kDead; target != kDead) emit(alone(*only), json(as_term(target)));
          if (is_nullable(term.a)) skip_head();
          break;
        }
        const State& inner = expanded(state_of(term.a));
        inner.next.for_each([&](const ByteSet& set, StateId target) {
          const ByteSet raw = set & unescaped_json() & terms_.spellable();
          if (!raw.empty()) emit(raw, json(as_term(target)));
        });
        if (const TermId escape = json_escape(term.a); terms_.distance(escape) != kInfinite) emit(alone('\\'), escape);
        if (inner.final) skip_head();
        break;
      }
      case Kind::kPermutation:
      case Kind::kPermutationPrefix: {
        const Openings found = terms_.openings(head);
        meter_.work(kTermSteps * (found.bytes.size() + found.terms.size() + found.consuming.size()), kDeriving);
        for (const auto& [byte, next] : found.bytes) emit(alone(byte), next);
        for (TermId next : found.terms) again(terms_.sequence(next, tail));
        for (const auto& [first, then] : found.consuming) work.push_back({first, rest(then), true});
        if (terms_.distance(head) == 0) skip_head();
        break;
      }
      case Kind::kPermutationTail: again(terms_.sequence(terms_.spelled_out(head), tail)); break;
      case Kind::kJsonEscape: {
        const State& inner = expanded(state_of(term.a));
        for (const SimpleEscape& escape : kSimpleEscapes)
          if (const StateId target = inner.next[escape.value]; target != kDead) emit(alone(escape.letter), json(as_term(target)));
        emit(alone('u'), unicode_escape(term.a));
        break;
      }
    }
  }
}

// What remains of a term after a byte, by which a boolean term may become an unsettled one.
TermId Automaton::derivative(TermId root, uint8_t byte) {
  if (const auto found = edges_.find(root)) {
    const auto edge = std::find_if(found->begin(), found->end(), [&](const Edge& held) { return held.first.contains(byte); });
    return edge == found->end() ? kEmptyTerm : edge->second;
  }
  const Term term = terms_[root];
  if (term.kind == Kind::kNot) return terms_.negation(derivative(term.a, byte));
  if (term.kind != Kind::kAnd) {
    const StateId target = after(state_of(root), byte);
    return target == kDead ? kEmptyTerm : as_term(target);
  }
  const auto list = terms_.list(term.a);
  std::vector<TermId> parts(list.begin(), list.end());
  for (TermId& part : parts) {
    part = derivative(part, byte);
    if (part == kEmptyTerm) return kEmptyTerm;
  }
  return intersection(std::move(parts));
}

// The edge of a state without calls by one byte.
StateId Automaton::after(StateId id, uint8_t byte) {
  if (const auto target = after_alone(id, byte)) return *target;
  return expanded(id).next[byte];
}

std::optional<StateId> Automaton::after_alone(StateId id, uint8_t byte) {
  if (states_[id].expanded || literal(id)) {
    const State& state = expanded(id);
    return state.calls.empty() ? std::optional<StateId>(state.next[byte]) : std::nullopt;
  }
  if (const auto found = single_edges_.find(edge_key(id, byte))) return *found;
  if (excluding_state(id)) return std::nullopt;
  const auto held = items(id);
  Expansion found;
  for (TermId item : std::vector<TermId>(held.begin(), held.end())) collect(item, found, byte);
  if (!found.calls.empty()) return std::nullopt;
  std::vector<TermId> targets;
  for (const auto& [target, set] : found.forms) targets.push_back(target);
  return keep_edge(id, byte, intern(targets));
}

bool Automaton::in_string(StateId id) {
  if (states_[id].place == State::Place::kUnknown) {
    const auto is_inside = [&](TermId item) {
      const Term whole = terms_[item];
      if (whole.kind != Kind::kSequence || terms_[whole.a].kind != Kind::kJson) return false;
      const Term tail = terms_[terms_[whole.b].kind == Kind::kSequence ? terms_[whole.b].a : whole.b];
      return tail.kind == Kind::kLiteral && terms_.blob(tail.a)[tail.b] == '"';
    };
    const bool is_it = id != kDead && std::ranges::all_of(items(id), is_inside);
    states_[id].place = is_it ? State::Place::kInString : State::Place::kElsewhere;
  }
  return states_[id].place == State::Place::kInString;
}

StateId Automaton::keep_edge(StateId id, uint8_t byte, StateId target) {
  product_bytes_ += sizeof(uint64_t) + sizeof(StateId);
  return single_edges_.insert(edge_key(id, byte), target);
}

// The same of an item of a state.  A loop over many alternatives is an item of many states, so what it yields is kept:
// it is returned, not added.
const Expansion* Automaton::collect_item(TermId item, Expansion& out) {
  const Term whole = terms_[item];
  if (whole.kind != Kind::kSequence || terms_[whole.a].kind != Kind::kRepeat) {
    collect(item, out);
    return nullptr;
  }
  if (const auto held = loops_.find(item); held != loops_.end()) return held->second.get();
  Expansion found;
  collect(item, found);
  if (found.forms.size() < kManyForms) {
    out.append(found);
    return nullptr;
  }
  loop_bytes_ += sizeof found + found.forms.size() * sizeof(found.forms[0]);
  return loops_.emplace(item, std::make_shared<const Expansion>(std::move(found))).first->second.get();
}

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

// Within the name of a member that must be none of the declared ones: where no text begins, all is as without them.
bool Automaton::expand_excluding(StateId id) {
  const auto found_state = excluding_state(id);
  if (!found_state) return false;
  const auto [found, tail] = *found_state;
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

void Automaton::expand(StateId id) {
  if (states_[id].expanded || expand_literal(id) || expand_excluding(id)) return;
  Expansion found;
  const auto held = items(id);
  const std::vector<TermId> copy(held.begin(), held.end());
  const Expansion* loop = nullptr;
  TermId loop_item = kEmptyTerm;
  for (TermId item : copy) {
    const Expansion* kept = collect_item(item, found);
    if (!kept) continue;
    if (loop) found.append(*kept);
    else loop = kept, loop_item = item;
  }
  std::vector<Form> forms;
  const auto add_forms = [&](const Expansion& from, const ByteSet& within) {
    for (const auto& [target, set] : from.forms)
      if (const ByteSet inside = set & within; !inside.empty() && terms_.distance(target) != kInfinite) forms.push_back({target, inside});
  };
  add_forms(found, ByteSet::all());
  ByteEdges next;
  ByteSet live;
  if (loop) {
    // Where the other items cannot go on, all is as with the loop alone.
    ByteSet others;
    for (const Form& form : forms) others |= form.set;
    const bool is_alone = copy.size() == 1 || others.size() > kFewBytes;
    add_forms(*loop, is_alone ? ByteSet::all() : others);
    partition(forms, next, live);
    if (!is_alone) {
      const State& alone = expanded(state_of(loop_item));
      const size_t before = next.groups.size();
      alone.next.for_each([&](const ByteSet& set, StateId target) {
        if (const ByteSet rest = set & ~others; !rest.empty()) next.merge(rest, target, before);
      });
      live |= alone.live;
    }
    found.append(*loop);
  } else {
    partition(forms, next, live);
  }
  const auto merged = [&](auto& pairs) {  // one state for all that remains after the same symbol
    std::vector<std::pair<uint32_t, StateId>> result;
    std::sort(pairs.begin(), pairs.end());
    pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
    for (size_t i = 0; i < pairs.size();) {
      std::vector<TermId> rest;
      const uint32_t symbol = pairs[i].first;
      for (; i < pairs.size() && pairs[i].first == symbol; ++i) rest.push_back(pairs[i].second);
      const StateId after = intern(rest);
      if (after != kDead) result.emplace_back(symbol, after);
    }
    return result;
  };
  std::erase_if(found.calls, [&](const auto& call) { return terms_.rule_distance(call.first) == kInfinite; });
  auto calls = merged(found.calls);
  auto specials = merged(found.specials);
  State& state = states_[id];
  state.final = found.final;
  state.next = ByteMap(next, edge_lists_);
  state.live = live;
  state.calls = edge_lists_.keep(calls);
  state.specials = edge_lists_.keep(specials);
  state.only_final = state.final && state.live.empty() && state.calls.empty() && state.specials.empty();
  state.expanded = true;
}

void Automaton::partition(std::vector<Form>& forms, ByteEdges& next, ByteSet& live) {
  std::sort(forms.begin(), forms.end(), [](const Form& a, const Form& b) { return a.target < b.target; });
  size_t kept = 0;
  for (const Form& form : forms) {
    live |= form.set;
    if (kept && forms[kept - 1].target == form.target) forms[kept - 1].set |= form.set;
    else forms[kept++] = form;
  }
  forms.resize(kept);
  meter_.work(kTermSteps * forms.size(), kDeriving);
  ByteSet seen;
  const bool disjoint = std::all_of(forms.begin(), forms.end(), [&](const Form& form) {
    const bool fresh = (seen & form.set).empty();
    seen |= form.set;
    return fresh;
  });
  if (disjoint) {
    for (const Form& form : forms) {
      std::vector<TermId> target{form.target};
      next.assign(form.set, intern(target));
    }
    return;
  }
  // Wide sets refine a partition of the bytes; single bytes, of which an enum has thousands, are only filed.
  std::vector<Form> wide;
  std::vector<std::pair<uint8_t, TermId>> single;
  ByteSet singled;
  for (const Form& form : forms) {
    if (form.set.size() != 1) {
      wide.push_back(form);
      continue;
    }
    single.emplace_back(form.set.first(), form.target);
    singled.insert(form.set.first());
  }
  std::vector<ByteSet> blocks{live & ~singled};
  for (const Form& form : wide) {
    meter_.work(kClassSteps, kDeriving);
    for (size_t i = 0, before = blocks.size(); i < before; ++i) {
      const ByteSet inside = blocks[i] & form.set, outside = blocks[i] & ~form.set;
      if (inside.empty() || outside.empty()) continue;
      blocks[i] = outside;
      blocks.push_back(inside);
    }
  }
  std::vector<TermId> targets;
  const auto add_wide = [&](uint8_t byte) {
    meter_.work(wide.size() / kPairsAStep, kDeriving);
    for (const Form& form : wide)
      if (form.set.contains(byte)) targets.push_back(form.target);
  };
  for (const ByteSet& set : blocks) {
    if (set.empty()) continue;
    targets.clear();
    add_wide(set.first());
    next.assign(set, intern(targets));
  }
  std::sort(single.begin(), single.end());
  for (size_t i = 0; i < single.size();) {
    const uint8_t byte = single[i].first;
    targets.clear();
    for (; i < single.size() && single[i].first == byte; ++i) targets.push_back(single[i].second);
    add_wide(byte);
    ByteSet set;
    set.insert(byte);
    next.assign(set, intern(targets));
  }
}

size_t Automaton::bytes_used() const {
  return terms_.bytes_used() + states_.bytes() + edge_lists_.bytes() + loop_bytes_ + product_bytes_ + item_lists_.bytes() +
         state_of_term_.bytes() + state_of_list_.bytes() + symbols_.bytes_used() + unbounded_.bytes() + mark_.bytes() + (first_codes_.size() + code_tails_.size()) * 96;
}

}  // namespace structgen

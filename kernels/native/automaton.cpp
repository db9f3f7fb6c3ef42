#include "automaton.h"

#include <algorithm>
#include <map>
#include <queue>
#include <ranges>
#include <stdexcept>
#include <tuple>
#include <unordered_set>

namespace structgen {

namespace {

constexpr uint32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF, kFirstAstral = 0x10000;
constexpr size_t kFewGroups = 4;
constexpr size_t kManyForms = 32;
constexpr unsigned kFewBytes = 32;
constexpr size_t kMostProductBytes = size_t{16} << 20;  // that are kept from one call to the next

// Steps of work, in the unit of `Meter`, and what they are spent on.
constexpr uint64_t kTermSteps = 8;    // a term that is looked at or made
constexpr uint64_t kClassSteps = 64;  // a pass over all bytes
constexpr uint64_t kPairsAStep = 8;   // sets of bytes that are compared
constexpr const char* kDeriving = "deriving terms";
constexpr const char* kEmptiness = "deciding whether an intersection or complement is empty";

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

void ByteMap::seal() {
  groups_.shrink_to_fit();
  if (groups_.size() <= kFewGroups) return;
  index_ = std::make_unique<std::array<uint16_t, 256>>();
  index_->fill(kNoGroup);
  for (size_t group = 0; group < groups_.size(); ++group)
    groups_[group].first.for_each([&](uint8_t byte) { (*index_)[byte] = static_cast<uint16_t>(group); });
}

// What an expansion finds at the front of a set of terms.
struct Expansion {
  std::vector<std::pair<TermId, ByteSet>> forms;             // after a byte of the set, the term remains
  std::vector<std::pair<RuleId, TermId>> calls;              // rule, what remains after its return
  std::vector<std::pair<uint32_t, TermId>> specials;         // special token, what remains
  bool final = false;

  void append(const Expansion& other) {
    forms.insert(forms.end(), other.forms.begin(), other.forms.end());
    calls.insert(calls.end(), other.calls.begin(), other.calls.end());
    specials.insert(specials.end(), other.specials.begin(), other.specials.end());
    final |= other.final;
  }
};

Automaton::Automaton(const ByteSet& spellable) : terms_(spellable) { forget(); }

void Automaton::forget() {
  meter_ = {};
  states_.clear();
  loops_.clear();
  item_lists_ = {};
  state_of_list_.clear();
  state_of_term_.clear();
  first_codes_.clear();
  code_tails_.clear();
  foreign_codes_.clear();
  drop_products();
  rule_starts_.clear();
  edge_bytes_ = 0;
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
  if (state_of_list_.size() <= list) state_of_list_.resize(list + 1, kNone);
  if (state_of_list_[list] != kNone) return state_of_list_[list];
  meter_.charge("making automaton states");
  State& state = states_.emplace_back();
  state.items = list;
  for (TermId item : items) state.distance = std::min(state.distance, terms_.distance(item));
  const auto id = static_cast<StateId>(states_.size() - 1);
  state_of_list_[list] = id;
  return id;
}

StateId Automaton::state_of(TermId term) {
  if (term < state_of_term_.size() && state_of_term_[term] != kNone) return state_of_term_[term];
  std::vector<TermId> items{term};
  const StateId id = intern(items);
  if (state_of_term_.size() <= term) state_of_term_.resize(terms_.size(), kNone);
  state_of_term_[term] = id;
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
      if (mark_.size() <= id) mark_.resize(std::max<size_t>(terms_.size(), id + 1), 0);
      if (mark_[id] == epoch) continue;
      mark_[id] = epoch;
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
        for (TermId choice : items) again(terms_.sequence(choice, tail));
        break;
      }
      case Kind::kRepeat: {
        const bool nullable = terms_.distance(term.a) == 0;
        const uint32_t min = nullable ? 0 : term.b;
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
  return terms_.conjunction(std::move(parts));
}

// The edge of a state by one byte.
StateId Automaton::after(StateId id, uint8_t byte) {
  if (states_[id].expanded || literal(id)) return expanded(id).next[byte];
  if (const auto found = single_edges_.find(edge_key(id, byte))) return *found;
  const auto held = items(id);
  Expansion found;
  for (TermId item : std::vector<TermId>(held.begin(), held.end())) collect(item, found, byte);
  std::vector<TermId> targets;
  for (const auto& [target, set] : found.forms)
    if (set.contains(byte)) targets.push_back(target);
  return keep_edge(id, byte, intern(targets));
}

std::optional<StateId> Automaton::after_in_string(StateId id, uint8_t byte) {
  if (const auto found = single_edges_.find(edge_key(id, byte))) return *found;
  if (!unescaped_json().contains(byte) || !terms_.spellable().contains(byte) || excluding_state(id)) return std::nullopt;
  const auto held = items(id);
  const std::vector<TermId> copy(held.begin(), held.end());
  for (TermId item : copy) {
    const Term whole = terms_[item];
    if (whole.kind != Kind::kSequence || terms_[whole.a].kind != Kind::kJson) return std::nullopt;
    const Term tail = terms_[terms_[whole.b].kind == Kind::kSequence ? terms_[whole.b].a : whole.b];
    if (tail.kind != Kind::kLiteral || terms_.blob(tail.a)[tail.b] != '"') return std::nullopt;  // nothing else reads the byte
  }
  if (states_[id].expanded) return states_[id].next[byte];
  std::vector<TermId> targets;
  for (TermId item : copy) {
    const Term whole = terms_[item];
    const StateId target = after(state_of(terms_[whole.a].a), byte);
    if (target != kDead) targets.push_back(terms_.sequence(json(as_term(target)), whole.b));
  }
  return keep_edge(id, byte, intern(targets));
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
  edge_bytes_ += sizeof found + found.forms.size() * sizeof(found.forms[0]);
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
  state.next.assign(set, target);
  state.next.seal();
  state.live = set;
  state.expanded = true;
  edge_bytes_ += state.next.bytes();
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
  if (whole.kind != Kind::kSequence || terms_[whole.a].kind != Kind::kJson || whole.b != terms_.literal("\"")) return std::nullopt;
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
  for (const auto& [target, set] : edges) {
    state.next.assign(set, target);
    state.live |= set;
  }
  state.next.seal();
  state.expanded = true;
  edge_bytes_ += state.next.bytes();
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
  ByteMap next;
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
      const size_t before = next.group_count();
      alone.next.for_each([&](const ByteSet& set, StateId target) {
        if (const ByteSet rest = set & ~others; !rest.empty()) next.merge(rest, target, before);
      });
      live |= alone.live;
    }
    found.append(*loop);
  } else {
    partition(forms, next, live);
  }
  next.seal();
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
  state.next = std::move(next);
  state.live = live;
  state.calls = std::move(calls);
  state.specials = std::move(specials);
  state.only_final = state.final && state.live.empty() && state.calls.empty() && state.specials.empty();
  state.expanded = true;
  edge_bytes_ += state.next.bytes() + (state.calls.capacity() + state.specials.capacity()) * 8;
}

void Automaton::partition(std::vector<Form>& forms, ByteMap& next, ByteSet& live) {
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
  std::vector<std::vector<TermId>> single(256);
  for (const Form& form : forms) {
    if (form.set.size() == 1) single[form.set.first()].push_back(form.target);
    else wide.push_back(form);
  }
  std::array<uint32_t, 256> class_of{};
  uint32_t classes = 1;
  for (const Form& form : wide) {
    meter_.work(kClassSteps, kDeriving);
    std::vector<uint32_t> inside(classes, kNone);
    const uint32_t before = classes;
    std::vector<uint32_t> left(before, 0);
    live.for_each([&](uint8_t byte) { left[class_of[byte]] += !form.set.contains(byte); });
    live.for_each([&](uint8_t byte) {
      if (!form.set.contains(byte)) return;
      uint32_t& renamed = inside[class_of[byte]];
      if (left[class_of[byte]] == 0) return;  // the whole class lies inside
      if (renamed == kNone) renamed = classes++;
      class_of[byte] = renamed;
    });
  }
  std::vector<ByteSet> members(classes);
  live.for_each([&](uint8_t byte) {
    if (single[byte].empty()) members[class_of[byte]].insert(byte);
  });
  const auto targets_of = [&](uint8_t byte) {
    meter_.work(wide.size() / kPairsAStep, kDeriving);
    std::vector<TermId> targets = single[byte];
    for (const Form& form : wide)
      if (form.set.contains(byte)) targets.push_back(form.target);
    return targets;
  };
  for (const ByteSet& set : members) {
    if (set.empty()) continue;
    std::vector<TermId> targets = targets_of(set.first());
    next.assign(set, intern(targets));
  }
  live.for_each([&](uint8_t byte) {
    if (single[byte].empty()) return;
    ByteSet set;
    set.insert(byte);
    std::vector<TermId> targets = targets_of(byte);
    next.assign(set, intern(targets));
  });
}

// The edges of a term by classes of bytes: of a boolean term the derivatives, whose targets may be unsettled.
const std::vector<Automaton::Edge>& Automaton::edges(TermId root) {
  if (const auto found = edges_.find(root)) return *found;
  const Term term = terms_[root];
  std::vector<Edge> result;
  if (term.kind == Kind::kNot) {
    ByteSet rest = ByteSet::all();
    for (const auto& [set, target] : edges(term.a)) {
      result.emplace_back(set, terms_.negation(target));
      rest &= ~set;
    }
    if (!rest.empty()) result.emplace_back(rest, terms_.everything());
  } else if (term.kind == Kind::kAnd) {
    result = product(root);
  } else {
    std::vector<std::pair<ByteSet, StateId>> raw;
    expanded(state_of(root)).next.for_each([&](const ByteSet& set, StateId target) { raw.emplace_back(set, target); });
    for (const auto& [set, target] : raw) result.emplace_back(set, as_term(target));
  }
  // One edge for each target keeps searches small.
  std::sort(result.begin(), result.end(), [](const Edge& a, const Edge& b) { return a.second < b.second; });
  size_t kept = 0;
  for (const Edge& edge : result) {
    if (edge.second == kEmptyTerm) continue;
    if (kept && result[kept - 1].second == edge.second) result[kept - 1].first |= edge.first;
    else result[kept++] = edge;
  }
  result.resize(kept);
  result.shrink_to_fit();
  product_bytes_ += sizeof result + kept * sizeof(Edge);
  return edges_.insert(root, std::move(result));
}

// The edges of an intersection.
std::vector<Automaton::Edge> Automaton::product(TermId root) {
  const auto list = terms_.list(terms_[root].a);
  const std::vector<TermId> items(list.begin(), list.end());
  std::vector<ByteSet> sets{ByteSet::all()};
  std::vector<TermId> targets;  // of each set, as many as items were looked at
  for (size_t depth = 0; depth < items.size(); ++depth) {
    const std::vector<Edge>& own = edges(items[depth]);
    meter_.work(sets.size() * own.size() / kPairsAStep, kEmptiness);
    std::vector<ByteSet> finer;
    std::vector<TermId> finer_targets;
    for (size_t i = 0; i < sets.size(); ++i) {
      for (const auto& [set, target] : own) {
        const ByteSet both = sets[i] & set;
        if (both.empty()) continue;
        finer.push_back(both);
        finer_targets.insert(finer_targets.end(), targets.begin() + i * depth, targets.begin() + (i + 1) * depth);
        finer_targets.push_back(target);
      }
    }
    meter_.work(finer_targets.size(), kEmptiness);
    sets = std::move(finer);
    targets = std::move(finer_targets);
  }
  std::vector<Edge> result;
  for (size_t i = 0; i < sets.size(); ++i) {
    meter_.work(kTermSteps, kEmptiness);
    const auto first = targets.begin() + i * items.size();
    result.emplace_back(sets[i], terms_.conjunction(std::vector<TermId>(first, first + items.size())));
  }
  return result;
}

Distance Automaton::settled_json_distance(TermId value) {
  for (;;) {
    TermId missing = kNone;
    if (const auto distance = terms_.json_distance(value, missing)) return *distance;
    solve_boolean(missing, Weight::kJson);
  }
}

// The same, but kUnsolved where the term holds a JSON string within this one, which only a search can weigh: one that
// is under way may have come from there.
Distance Automaton::json_distance_unless_nested(TermId value) {
  for (;;) {
    TermId missing = kNone;
    if (const auto distance = terms_.json_distance(value, missing)) return *distance;
    const Kind kind = terms_[missing].kind;
    if (kind == Kind::kJson || kind == Kind::kJsonEscape) return kUnsolved;
    solve_boolean(missing, Weight::kJson);
  }
}

void Automaton::settle(TermId term, Weight weight) {
  const bool known = weight == Weight::kPlain ? terms_.distance(term) != kUnsolved : terms_.json_known(term);
  if (known) return;
  if (terms_[term].kind == Kind::kAnd || terms_[term].kind == Kind::kNot) solve_boolean(term, weight);
}

// Whether all texts of some part are texts of a complement, as far as repeated classes tell: nothing is in C{a,b} & ~C*,
// which is what remains of a search for what must not occur once it has occurred.
bool Automaton::is_excluded(std::span<const TermId> items) {
  for (TermId item : items) {
    if (terms_[item].kind != Kind::kNot) continue;
    const TermId inner = terms_[item].a;
    const std::span<const TermId> excluded = terms_[inner].kind == Kind::kChoice ? terms_.list(terms_[inner].a) : std::span(&inner, 1);
    for (TermId alternative : excluded) {
      const Term wide = terms_[alternative];
      if (wide.kind != Kind::kRepeat) continue;
      for (TermId other : items) {
        const Term narrow = terms_[other];
        if (narrow.kind == Kind::kRepeat && narrow.b >= wide.b && narrow.c <= wide.c && is_class_within(narrow.a, wide.a)) return true;
      }
    }
  }
  return false;
}

// Whether `item` is `other`, or all its members are characters that `other` has too.
bool Automaton::is_class_within(TermId item, TermId other) {
  if (item == other) return true;
  const auto [place, is_new] = class_within_.try_emplace(uint64_t{item} << 32 | other, false);
  if (!is_new || !is_char_class(item)) return place->second;
  const auto inner = as_char_class(item), outer = as_char_class(other);
  const auto is_covered = [&](const CodePoints& range) {
    return std::any_of(outer->begin(), outer->end(), [&](const CodePoints& held) { return held.first <= range.first && range.second <= held.second; });
  };
  return place->second = outer && std::all_of(inner->begin(), inner->end(), is_covered);
}

// What a member of a boolean term takes at least: that of any regular part of an intersection.  Parts that would have to
// be explored themselves say nothing.
Automaton::Estimate Automaton::estimate(TermId term, Weight weight) {
  const auto of = [&](TermId part) -> Distance {
    const Kind kind = terms_[part].kind;
    if (kind == Kind::kAnd || kind == Kind::kNot) return 0;
    TermId missing = kNone;
    const Distance known = weight == Weight::kPlain ? terms_.distance(part) : terms_.json_distance(part, missing).value_or(kUnsolved);
    return known == kUnsolved ? 0 : known;
  };
  if (terms_[term].kind != Kind::kAnd) return {of(term), of(term)};
  const SymbolCounts& counts = symbols_.of(term);
  const auto list = terms_.list(terms_[term].a);
  if (counts.contradictory() || is_excluded(list)) return {kInfinite, kInfinite};
  Estimate best{std::min<Distance>(counts.least[kCharacters], kFar), 0};
  for (TermId item : list) {
    const Distance own = of(item);
    best.least = std::max(best.least, own);
    best.remaining += own;
  }
  return best;
}

Distance Automaton::step_weight(const ByteSet& set, Weight weight) const {
  if (weight == Weight::kPlain) return 1;
  Distance least = kInfinite;
  set.for_each([&](uint8_t byte) { least = std::min(least, terms_.json_weight(byte)); });
  return least;
}

// A byte by which a shortest member of a term may begin: one of that part of an intersection which is farthest from its
// end, an ordinary character where there is a choice.
std::optional<uint8_t> Automaton::nearest_byte(TermId root) {
  TermId part = root;
  if (terms_[root].kind == Kind::kAnd) {
    Distance farthest = 0;
    for (TermId item : terms_.list(terms_[root].a)) {
      const Kind kind = terms_[item].kind;
      if (kind == Kind::kAnd || kind == Kind::kNot || terms_.distance(item) == kUnsolved || terms_.distance(item) <= farthest) continue;
      farthest = terms_.distance(item);
      part = item;
    }
  }
  if (part == root) return std::nullopt;
  const auto held = items(state_of(part));
  const auto nearest = std::ranges::min_element(held, {}, [&](TermId item) { return terms_.distance(item); });
  if (nearest == held.end()) return std::nullopt;
  const Distance wanted = terms_.distance(*nearest) - 1;
  Expansion found;
  collect(*nearest, found);
  for (const auto& [target, set] : found.forms) {
    if (terms_.distance(target) != wanted) continue;
    if (set.contains('a')) return uint8_t{'a'};
    std::optional<uint8_t> best;
    set.for_each([&](uint8_t byte) {
      if (!best || terms_.json_weight(byte) < terms_.json_weight(*best)) best = byte;
    });
    return best;
  }
  return std::nullopt;
}

// Settles a boolean term by one way to its end, if that is as short as the parts allow: most searches would find no
// other, and look at all that begins beside it.
bool Automaton::solve_directly(TermId root) {
  constexpr Distance kLongest = 64;
  const Distance whole = estimate(root, Weight::kPlain).least;
  if (whole > kLongest) return false;
  std::vector<TermId> way{root};
  size_t raw_from = 0;  // no byte from there on needs an escape in a JSON string
  for (Distance rest = whole;; --rest) {
    if (is_nullable(way.back())) {
      if (rest != 0) return false;
      break;
    }
    const auto byte = rest == 0 ? std::nullopt : nearest_byte(way.back());
    if (!byte) return false;
    if (terms_.json_weight(*byte) != 1) raw_from = way.size();
    const TermId next = derivative(way.back(), *byte);
    if (const Distance known = terms_.distance(next); known != kUnsolved) {
      if (known != rest - 1) return false;
      if (known != 0 && !(terms_.json_known(next) && settled_json_distance(next) == known)) raw_from = way.size();
      break;
    }
    if (estimate(next, Weight::kPlain).least >= rest) return false;
    way.push_back(next);
  }
  for (size_t i = 0; i < way.size(); ++i) {
    const Distance rest = whole - static_cast<Distance>(i);
    if (terms_.distance(way[i]) == kUnsolved) terms_.set_distance(way[i], rest);
    if (i >= raw_from && !terms_.json_known(way[i])) terms_.set_json_distance(way[i], rest);
  }
  return true;
}

// A* forward over derivatives (Hart, Nilsson and Raphael 1968) until the empty string or a settled term is met.  The
// bound never overestimates but may fall by more than a step, so a term is explored again when a shorter way to it
// is found.  What was visited is dead if nothing is met; otherwise the shortest path is settled, so that following it
// costs nothing later.
void Automaton::solve_boolean(TermId root, Weight weight) {
  if (weight == Weight::kPlain && solve_directly(root)) return;
  struct Visit {
    Distance distance;
    TermId parent;
    Estimate estimate;
  };
  std::unordered_map<TermId, Visit> visited;
  struct Entry {
    Distance bound;  // of the whole path
    Distance distance;
    uint64_t remaining;
    bool goal;
    TermId term;
    bool operator>(const Entry& other) const {
      // Of equals those with the least left to do in all parts, and of these the deepest first.
      return std::tuple(bound, remaining, other.distance) > std::tuple(other.bound, other.remaining, distance);
    }
  };
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  const auto known = [&](TermId term) {
    return weight == Weight::kPlain ? terms_.distance(term) : (terms_.json_known(term) ? settled_json_distance(term) : kUnsolved);
  };
  const auto record = [&](TermId term, Distance distance) {
    if (weight == Weight::kPlain) terms_.set_distance(term, distance);
    else terms_.set_json_distance(term, distance);
  };
  // Whether the rest of a goal, of the given length, needs no escape in a JSON string, as far as is known.
  const auto rest_is_raw = [&](TermId goal, Distance rest) {
    return rest == 0 || (terms_.json_known(goal) && settled_json_distance(goal) == rest);
  };
  // Settles the terms on the way to a goal.  As the value of a JSON string a text weighs no less, and as much where no
  // byte of it must be escaped.
  const auto settle_path = [&](TermId goal, Distance whole) {
    bool is_raw = weight == Weight::kPlain && rest_is_raw(goal, whole - visited.at(goal).distance);
    for (TermId term = goal, next = kNone; term != kNone; next = term, term = visited.at(term).parent) {
      const Distance distance = whole - visited.at(term).distance;
      if (known(term) == kUnsolved) record(term, distance);
      if (next != kNone && is_raw)
        for (const auto& [set, target] : edges(term))
          if (target == next) is_raw = step_weight(set, Weight::kJson) == 1;
      if (is_raw && !terms_.json_known(term)) terms_.set_json_distance(term, distance);
    }
  };
  const auto reach = [&](TermId term, Distance distance, TermId parent) {
    const auto [place, is_new] = visited.try_emplace(term, Visit{distance, parent, {}});
    if (is_new) place->second.estimate = estimate(term, weight);
    else if (place->second.distance <= distance) return;
    else place->second = {distance, parent, place->second.estimate};
    const auto [least, remaining] = place->second.estimate;
    if (least < kInfinite) queue.push({add(distance, least), distance, remaining, false, term});
  };
  reach(root, 0, kNone);
  uint64_t explored = 0;
  while (!queue.empty()) {
    const Entry entry = queue.top();
    queue.pop();
    if (visited.at(entry.term).distance < entry.distance) continue;  // a shorter way was found meanwhile
    if (entry.goal) {
      settle_path(entry.term, entry.bound);
      return;
    }
    const Kind kind = terms_[entry.term].kind;
    Distance rest = known(entry.term);
    if (rest == kUnsolved && kind != Kind::kAnd && kind != Kind::kNot) rest = json_distance_unless_nested(entry.term);
    if (rest == kUnsolved && is_nullable(entry.term)) rest = 0;
    if (rest != kUnsolved) {
      if (rest < kInfinite) queue.push({add(entry.distance, rest), entry.distance, 0, true, entry.term});
      continue;
    }
    if (++explored > regular_limit_)
      throw LimitError("regular_states", regular_limit_, kEmptiness);
    const size_t terms_before = terms_.size();
    for (const auto& [set, target] : edges(entry.term)) {
      reach(target, add(entry.distance, step_weight(set, weight)), entry.term);
      meter_.work(kTermSteps, kEmptiness);
    }
    meter_.work(kTermSteps * (terms_.size() - terms_before), kEmptiness);
  }
  for (const auto& [term, visit] : visited) {  // whatever its members weigh, there are none
    if (terms_.distance(term) == kUnsolved) terms_.set_distance(term, kInfinite);
    if (!terms_.json_known(term)) terms_.set_json_distance(term, kInfinite);
  }
}

// Of several repeated classes of characters, as of a pattern and a length, one: C{a,b} & D{c,d} is (C & D){..,..}.
void Automaton::merge_counted(std::vector<TermId>& items) {
  std::optional<std::vector<CodePoints>> ranges;
  uint32_t min = 0, max = kNone;
  size_t merged = 0;
  const auto is_counted = [&](TermId item) { return terms_[item].kind == Kind::kRepeat && is_char_class(terms_[item].a); };
  for (TermId item : items) {
    if (!is_counted(item)) continue;
    ++merged;
    const Term term = terms_[item];
    const auto other = *as_char_class(term.a);
    min = std::max(min, term.b);
    max = std::min(max, term.c);
    if (!ranges) {
      ranges = other;
      continue;
    }
    std::vector<CodePoints> both;
    for (const auto& [low, high] : *ranges)
      for (const auto& [first, last] : other)
        if (std::max(low, first) <= std::min(high, last)) both.emplace_back(std::max(low, first), std::min(high, last));
    ranges = std::move(both);
  }
  if (merged < 2) return;
  std::erase_if(items, is_counted);
  items.push_back(min > max ? kEmptyTerm : terms_.repeat(terms_.chars(*ranges), min, max));
}

TermId Automaton::conjunction(std::vector<TermId> items) {
  merge_counted(items);
  const TermId term = terms_.conjunction(std::move(items));
  settle(term, Weight::kPlain);
  return terms_.distance(term) == kInfinite ? kEmptyTerm : term;
}

TermId Automaton::negation(TermId item) {
  const TermId term = terms_.negation(item);
  settle(term, Weight::kPlain);
  return terms_.distance(term) == kInfinite ? kEmptyTerm : term;
}

TermId Automaton::json(TermId value) {
  const TermId term = terms_.json(value);
  if (terms_.distance(term) == kUnsolved) terms_.set_distance(term, settled_json_distance(value));
  return terms_.distance(term) == kInfinite ? kEmptyTerm : term;
}

TermId Automaton::json_escape(TermId value) {
  const TermId term = terms_.json_escape(value);
  if (terms_.distance(term) == kUnsolved) terms_.set_distance(term, escape_distance(value));
  return term;
}

Distance Automaton::escape_distance(TermId value) {
  constexpr Distance kSimple = 1, kUnicode = 5, kPair = 11;
  if (const auto found = excluding(value)) {  // hardly ever farther than without the texts
    const Distance least = terms_.distance(json_escape(found->language));
    const State& free = expanded(state_of(found->language));
    ByteSet firsts;
    for (TermId text : alternatives(found->texts))
      if (text != kEpsilonTerm) firsts.insert(static_cast<uint8_t>(terms_.blob(terms_[text].a)[terms_[text].b]));
    for (const SimpleEscape& escape : kSimpleEscapes) {
      const StateId target = free.next[escape.value];
      if (target == kDead || firsts.contains(escape.value)) continue;
      if (add(terms_.distance(json(as_term(target))), kSimple) == least) return least;
    }
  }
  Distance best = kInfinite;
  const StateId start = state_of(value);
  const auto is_simple = [](const ByteSet& set) {
    return std::any_of(std::begin(kSimpleEscapes), std::end(kSimpleEscapes), [&](const SimpleEscape& one) { return set.contains(one.value); });
  };
  expanded(start).next.for_each([&](const ByteSet& set, StateId target) {
    if (set.next(0) < 0x80) best = std::min(best, add(terms_.distance(json(as_term(target))), is_simple(set) ? kSimple : kUnicode));
  });
  // A longer way costs at least as much as an escape by hex digits, and no less than the shortest spelling without the
  // character's own, which takes at most four bytes where they can be written.
  static const ByteSet foreign = ByteSet::range(0x80, 0xBF) | ByteSet::range(0xC2, 0xF4);
  if (best <= kUnicode) return best;
  if ((foreign & ~terms_.spellable()).empty() && best <= add(settled_json_distance(value), kUnicode - 4)) return best;
  for (const Code& code : foreign_codes(start)) {
    if (code.low >= kFirstSurrogate && code.high <= kLastSurrogate) continue;
    best = std::min(best, add(terms_.distance(json(code.rest)), code.low < kFirstAstral ? kUnicode : kPair));
  }
  return best;
}

// The first characters of a term, as ranges of code points in increasing order, with what remains after each.
const std::vector<Automaton::Code>& Automaton::first_codes(TermId term) {
  if (const auto found = first_codes_.find(term); found != first_codes_.end()) return found->second;
  std::vector<Code> codes;
  const StateId start = state_of(term);
  expanded(start);
  for (uint32_t byte = 0; byte < 0x80; ++byte)
    if (const StateId target = states_[start].next[static_cast<uint8_t>(byte)]; target != kDead)
      append(codes, {byte, byte, as_term(target)});
  for (const Code& code : foreign_codes(start)) append(codes, code);
  return first_codes_.emplace(term, std::move(codes)).first->second;
}

void Automaton::append(std::vector<Code>& codes, const Code& next) {
  if (!codes.empty() && codes.back().rest == next.rest && codes.back().high + 1 == next.low) codes.back().high = next.high;
  else codes.push_back(next);
}

// Those beyond ASCII.  In them few states differ, so they are kept by where the lead bytes go.
const std::vector<Automaton::Code>& Automaton::foreign_codes(StateId start) {
  const auto tail = [&](auto&& self, StateId state, unsigned count) -> const std::vector<Code>& {
    // Codes spelled by `count` continuation bytes from `state`; count is at most 3.
    const uint64_t key = uint64_t{state} << 2 | count;
    if (const auto found = code_tails_.find(key); found != code_tails_.end()) return found->second;
    meter_.work(kClassSteps, kDeriving);
    std::vector<Code> result;
    const uint32_t width = uint32_t{1} << (6 * (count - 1));
    for (uint32_t digit = 0; digit < 64; ++digit) {
      const StateId target = expanded(state).next[static_cast<uint8_t>(0x80 | digit)];
      if (target == kDead) continue;
      if (count == 1) {
        append(result, {digit, digit, as_term(target)});
      } else {
        for (const Code& code : self(self, target, count - 1))
          append(result, {digit * width + code.low, digit * width + code.high, code.rest});
      }
    }
    return code_tails_.emplace(key, std::move(result)).first->second;
  };
  meter_.work(kClassSteps, kDeriving);
  constexpr uint32_t kFirstLead = 0xC2, kLastLead = 0xF4;
  std::vector<uint32_t> leads;
  leads.reserve(kLastLead - kFirstLead + 1);
  for (uint32_t byte = kFirstLead; byte <= kLastLead; ++byte) leads.push_back(states_[start].next[static_cast<uint8_t>(byte)]);
  if (const auto found = foreign_codes_.find(leads); found != foreign_codes_.end()) return found->second;
  std::vector<Code> codes;
  for (uint32_t byte = kFirstLead; byte <= kLastLead; ++byte) {
    const StateId target = leads[byte - kFirstLead];
    if (target == kDead) continue;
    const unsigned count = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
    const uint32_t base = (byte & (0x3Fu >> count)) << (6 * count);
    for (const Code& code : tail(tail, target, count)) {
      if (base + code.low < (count == 1 ? 0x80u : count == 2 ? 0x800u : kFirstAstral)) continue;  // overlong
      append(codes, {base + code.low, base + code.high, code.rest});
    }
  }
  return foreign_codes_.emplace(std::move(leads), std::move(codes)).first->second;
}

std::optional<std::vector<CodePoints>> Automaton::as_char_class(TermId term) {
  if (terms_.distance(term) == 0 || !expanded(state_of(term)).calls.empty() || !expanded(state_of(term)).specials.empty())
    return std::nullopt;
  std::vector<CodePoints> ranges;
  for (const Code& code : first_codes(term)) {
    if (code.rest != kEpsilonTerm) return std::nullopt;
    ranges.emplace_back(code.low, code.high);
  }
  return ranges;
}

bool Automaton::is_char_class(TermId term) {
  const auto ranges = as_char_class(term);
  return ranges && terms_.chars(*ranges) == term;
}

// What may follow the `\u` of an escape: four hex digits of a character, or a surrogate pair.
TermId Automaton::unicode_escape(TermId value) {
  std::vector<TermStore::Target> targets;
  std::map<uint32_t, std::vector<TermStore::Target>> partial;  // high surrogate -> low surrogates
  const std::vector<Code> codes = first_codes(value);
  meter_.work(kTermSteps * codes.size(), kDeriving);
  const TermId prefix = terms_.literal("\\u");
  const auto pair_of = [&](std::span<const TermStore::Target> low) {
    return terms_.sequence(prefix, terms_.hex(4, low));
  };
  const auto add_range = [&](uint32_t low, uint32_t high, TermId rest) {
    if (low > high) return;
    if (high < kFirstAstral) {
      targets.push_back({low, high, rest});
      return;
    }
    for (uint32_t code = low; code <= high;) {
      const uint32_t offset = code - kFirstAstral, lead = kFirstSurrogate + (offset >> 10);
      const uint32_t block_end = std::min(high, code | 0x3FF);
      if ((offset & 0x3FF) == 0 && block_end == (code | 0x3FF)) {  // a run of full blocks
        const uint32_t blocks = (high + 1 - code) >> 10;
        const TermStore::Target all[] = {{0xDC00, 0xDFFF, rest}};
        targets.push_back({lead, lead + blocks - 1, pair_of(all)});
        code += blocks << 10;
      } else {
        partial[lead].push_back({0xDC00 + (offset & 0x3FF), 0xDC00 + ((block_end - kFirstAstral) & 0x3FF), rest});
        code = block_end + 1;
      }
    }
  };
  for (const Code& code : codes) {
    const TermId rest = json(code.rest);
    if (rest == kEmptyTerm) continue;
    // Raw byte classes may spell surrogates, which are no characters.
    if (code.low < kFirstSurrogate) add_range(code.low, std::min(code.high, kFirstSurrogate - 1), rest);
    if (code.high > kLastSurrogate) {
      const uint32_t low = std::max(code.low, kLastSurrogate + 1);
      if (low < kFirstAstral) add_range(low, std::min(code.high, kFirstAstral - 1), rest);
      if (code.high >= kFirstAstral) add_range(std::max(low, kFirstAstral), code.high, rest);
    }
  }
  for (const auto& [lead, low] : partial) targets.push_back({lead, lead, pair_of(low)});
  std::sort(targets.begin(), targets.end(), [](const auto& a, const auto& b) { return a.low < b.low; });
  return terms_.hex(4, targets);
}

size_t Automaton::bytes_used() const {
  return terms_.bytes_used() + states_.size() * sizeof(State) + edge_bytes_ + product_bytes_ + item_lists_.bytes() +
         state_of_term_.size() * sizeof(StateId) + symbols_.bytes_used() + mark_.capacity() * 4 + (first_codes_.size() + code_tails_.size()) * 96;
}

}  // namespace structgen

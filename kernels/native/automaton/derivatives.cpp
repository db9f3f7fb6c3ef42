// Edges of states: partial derivatives of terms, and their partition by bytes.
#include <algorithm>
#include <unordered_set>

#include "automaton/automaton.h"
#include "automaton/expansion.h"

namespace structgen {

namespace {

constexpr size_t kManyForms = 32;
constexpr unsigned kFewBytes = 32;

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

// Partial derivatives of one term.  Work items are terms, or guarded pairs (term, after): the concatenation of both,
// where `term` must consume something.  Guards keep a repeated nullable item from counting down without reading.
// With `only`, what does not begin with that byte may be left out.
void Automaton::collect(TermId root, Expansion& out, std::optional<uint8_t> only) {
  const uint32_t epoch = ++epoch_;
  const size_t terms_before = terms_.size();
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
        const TermId whole_set = term.kind == Kind::kPermutation ? head : term.a;
        const size_t left = terms_.list(terms_[whole_set].a).size();  // all are looked at
        meter_.work(left + kTermSteps * (found.bytes.size() + found.terms.size() + found.consuming.size()), kDeriving);
        for (const auto& [byte, next] : found.bytes) emit(alone(byte), next);
        for (TermId next : found.terms) again(terms_.sequence(next, tail));
        for (const auto& [first, then] : found.consuming) work.push_back({first, rest(then), true});
        if (terms_.distance(head) == 0) skip_head();
        break;
      }
      case Kind::kPermutationTail:
        meter_.work(2 * terms_.list(terms_[term.a].a).size(), kDeriving);
        again(terms_.sequence(terms_.spelled_out(head), tail));
        break;
      case Kind::kJsonEscape: {
        const State& inner = expanded(state_of(term.a));
        for (const SimpleEscape& escape : kSimpleEscapes)
          if (const StateId target = inner.next[escape.value]; target != kDead) emit(alone(escape.letter), json(as_term(target)));
        emit(alone('u'), unicode_escape(term.a));
        break;
      }
    }
  }
  meter_.work(kTermSteps * (terms_.size() - terms_before), kDeriving);
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

StateId Automaton::keep_edge(StateId id, uint8_t byte, StateId target) {
  product_bytes_ += sizeof(uint64_t) + sizeof(StateId);
  return single_edges_.insert(edge_key(id, byte), target);
}

// collect() for an item of a state.  A loop over many alternatives is an item of many states, so what it yields is kept:
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
  // Wide sets refine a partition of the bytes; single bytes are only filed, for an enum has thousands.
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

}  // namespace structgen

// States without their large bounds.
//
// A text of at most n bytes meets no bound on a repetition of more than n items, unless the items may be empty.  So a
// state and the same without such bounds allow the same tokens, as long as a token and what completes it are that
// short; and the one without bounds is the same after any number of items.
#include <algorithm>

#include "engine.h"

namespace structgen {

namespace {

constexpr size_t kMostTerms = 256;  // of a state that is looked at

bool is_part(Kind kind) {
  return kind == Kind::kSequence || kind == Kind::kChoice || kind == Kind::kRepeat || kind == Kind::kAnd ||
         kind == Kind::kJson || kind == Kind::kJsonEscape;
}

}  // namespace

// The term without the upper bounds from `least` on, and the smallest of them.  What a complement holds keeps its
// bounds, and so does a term of too many parts.
std::pair<TermId, uint32_t> Engine::unbounded_term(TermId root, uint32_t least) {
  Automaton& automaton = machine_.automaton();
  TermStore& terms = automaton.terms();
  const auto key_of = [&](TermId id) { return uint64_t{id} << 32 | least; };
  std::vector<TermId> stack{root};
  size_t seen = 0;
  const auto value_of = [&](TermId id) { return is_part(terms[id].kind) ? unbounded_.at(key_of(id)) : std::pair(id, kNone); };
  while (!stack.empty()) {
    const TermId id = stack.back();
    const Term term = terms[id];
    if (!is_part(term.kind) || unbounded_.contains(key_of(id))) {
      stack.pop_back();
      continue;
    }
    if (++seen > kMostTerms) return {root, kNone};
    std::vector<TermId> parts{term.a};
    if (term.kind == Kind::kSequence) parts.push_back(term.b);
    if (term.kind == Kind::kChoice || term.kind == Kind::kAnd) parts.assign(terms.list(term.a).begin(), terms.list(term.a).end());
    const size_t before = stack.size();
    for (TermId part : parts)
      if (is_part(terms[part].kind) && !unbounded_.contains(key_of(part))) stack.push_back(part);
    if (stack.size() != before) continue;
    uint32_t bound = kNone;
    for (TermId& part : parts) {
      const auto [free, smallest] = value_of(part);
      part = free;
      bound = std::min(bound, smallest);
    }
    TermId made = id;
    if (term.kind == Kind::kRepeat) {
      const bool drops = term.c != kNone && term.c >= least && terms.distance(term.a) != 0;
      if (drops) bound = std::min(bound, term.c);
      made = terms.repeat(parts[0], term.b, drops ? kNone : term.c);
    } else if (bound != kNone) {
      if (term.kind == Kind::kSequence) made = terms.sequence(parts[0], parts[1]);
      if (term.kind == Kind::kChoice) made = terms.choice(parts);
      if (term.kind == Kind::kAnd) made = automaton.conjunction(parts);
      if (term.kind == Kind::kJson) made = automaton.json(parts[0]);
      if (term.kind == Kind::kJsonEscape) made = automaton.json_escape(parts[0]);
    }
    unbounded_.emplace(key_of(id), std::pair(made, bound));
    stack.pop_back();
  }
  return value_of(root);
}

Engine::Near Engine::unbounded(StateId state, uint32_t least) {
  Automaton& automaton = machine_.automaton();
  const auto held = automaton.items(state);
  std::vector<TermId> items(held.begin(), held.end());
  Near near;
  near.same = kNone;
  for (TermId& item : items) {
    const auto [free, bound] = unbounded_term(item, least);
    item = free;
    near.same = std::min(near.same, bound);
  }
  if (near.same == kNone) return {};
  near.state = automaton.state_of(automaton.terms().choice(std::move(items)));
  return near.state == state ? Near{} : near;
}

// Of `json(C{min,max} & L) '"'` the same without the maximum, which bounds the characters of the whole string.
Engine::Near Engine::without_length(StateId state) {
  Automaton& automaton = machine_.automaton();
  TermStore& terms = automaton.terms();
  const auto items = automaton.items(state);
  if (items.size() != 1) return {};
  const Term whole = terms[items[0]];
  if (whole.kind != Kind::kSequence || whole.b != terms.literal("\"") || terms[whole.a].kind != Kind::kJson) return {};
  const Term value = terms[terms[whole.a].a];
  if (value.kind != Kind::kAnd) return {};
  const auto list = terms.list(value.a);
  std::vector<TermId> parts(list.begin(), list.end());
  uint32_t most = kNone;
  for (TermId& part : parts) {
    const Term term = terms[part];
    if (term.kind != Kind::kRepeat || term.c == kNone || !automaton.is_char_class(term.a)) continue;
    most = std::min(most, term.c);
    part = terms.repeat(term.a, term.b, kNone);
  }
  if (most == kNone || most == 0) return {};
  return {automaton.state_of(terms.sequence(automaton.json(automaton.conjunction(std::move(parts))), whole.b)), most, Near::Way::kLength, {}};
}

// The tokens and exits of the row of `near` that are too long for `state`.  Nearly all are settled by counting; only
// where it is close, `state` itself is asked.
void Engine::cut(StateId state, const Near& near, uint32_t reach, Found& fewer) {
  const Trie& all = tokens_->trie();
  struct Level {
    uint32_t next, stop;
    NodeId free, bound;  // nodes of the two; the second is kNone until it is needed
    uint8_t byte;
    bool escaped;
  };
  std::vector<Level> path{{all.child_begin[0], all.child_begin[1], machine_.local(near.state), machine_.local(state), 0, false}};
  const auto bound_node = [&] {  // of the last level
    size_t known = path.size() - 1;
    while (path[known].bound == kNone) --known;
    for (; known + 1 < path.size(); ++known) path[known + 1].bound = machine_.step(path[known].bound, path[known + 1].byte);
    return path.back().bound;
  };
  while (!path.empty()) {
    if (path.back().next == path.back().stop) {
      path.pop_back();
      continue;
    }
    const uint32_t at = path.back().next++, place = all.child_node[at];
    if (uint32_t{all.depth[place]} + all.height[place] + reach <= near.same) continue;
    const uint8_t byte = all.child_byte[at];
    const NodeId above = path.back().free;
    if (!machine_[above].live.contains(byte)) continue;
    const bool is_leaf = all.is_leaf(place), escaped = path.back().escaped || byte == '\\';
    Found leaf;
    NodeId here = kNone;
    if (is_leaf) add_leaf(all, place, {kNone, above}, leaf);
    else here = machine_.step(above, byte);
    const Distance missing = is_leaf ? leaf.reach : machine_[here].distance;
    const uint32_t chars = all.chars[place];
    if (add(chars, missing) > near.same) {
      // The closing quote is no character of the string.
      const bool too_long = !escaped && chars > near.same + 1;
      if (too_long || !machine_[bound_node()].live.contains(byte)) {
        fewer.tokens.insert(fewer.tokens.end(), all.tokens.begin() + all.token_begin[place],
                            all.tokens.begin() + all.token_begin[all.end[place]]);
        for (uint32_t below = place; below < all.end[place]; ++below) fewer.exits.push_back(below);
        continue;
      }
      fewer.reach = kNone;
    }
    if (is_leaf || machine_[here].only_accepting) continue;
    path.push_back({all.child_begin[place], all.child_begin[place + 1], here, kNone, byte, escaped});
    look_at(path.back().stop - path.back().next);
  }
}

}  // namespace structgen

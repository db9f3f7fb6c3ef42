// What a state lets pass whole: subtrees of a trie that need no walk.
#include <algorithm>

#include "masks/engine.h"

namespace structgen {

// What may follow within a character, by the bytes that it still lacks; the first of them may be limited.
enum Tail : uint8_t { kNoTail, kOne, kTwo, kThree, kTwoAfterE0, kTwoAfterED, kThreeAfterF0, kThreeAfterF4, kTails };

namespace {

constexpr Distance kCharacterTail = character_tail(kForeignGroups);

struct TailEdge {
  ByteSet bytes;
  uint16_t group;  // of the character
  Tail after;
};

// The bytes that go on with well-formed text in each position.
const std::vector<TailEdge>& tail_edges(Tail tail) {
  static const std::array<std::vector<TailEdge>, kTails> edges = [] {
    std::array<std::vector<TailEdge>, kTails> made;
    for (ByteGroup group : kAsciiGroups) {
      ByteSet bytes;
      for (unsigned byte = 0; byte < 0x80; ++byte)
        if (group_of(static_cast<uint8_t>(byte)) == group) bytes.insert(static_cast<uint8_t>(byte));
      made[kNoTail].push_back({bytes, group, kNoTail});
    }
    const auto add = [&](Tail from, unsigned low, unsigned high, Tail after) {
      made[from].push_back({ByteSet::range(low, high), kForeignGroups, after});
    };
    add(kNoTail, 0xC2, 0xDF, kOne);
    add(kNoTail, 0xE0, 0xE0, kTwoAfterE0);
    add(kNoTail, 0xE1, 0xEC, kTwo);
    add(kNoTail, 0xED, 0xED, kTwoAfterED);
    add(kNoTail, 0xEE, 0xEF, kTwo);
    add(kNoTail, 0xF0, 0xF0, kThreeAfterF0);
    add(kNoTail, 0xF1, 0xF3, kThree);
    add(kNoTail, 0xF4, 0xF4, kThreeAfterF4);
    add(kOne, 0x80, 0xBF, kNoTail);
    add(kTwo, 0x80, 0xBF, kOne);
    add(kThree, 0x80, 0xBF, kTwo);
    add(kTwoAfterE0, 0xA0, 0xBF, kOne);
    add(kTwoAfterED, 0x80, 0x9F, kOne);
    add(kThreeAfterF0, 0x90, 0xBF, kTwo);
    add(kThreeAfterF4, 0x80, 0x8F, kTwo);
    return made;
  }();
  return edges[tail];
}

}  // namespace

Engine::Absorption Engine::absorption(Spot at) {
  StateId state = at.state;
  if (state == kNone) {
    const auto configs = machine_.configs(at.node);
    if (configs.size() != 1) return {};
    state = configs[0].first;
  }
  if (!absorptions_[state].known) {
    const Absorption made = cheaply([&] { return compute_absorption(state); });
    absorptions_.at(state) = made;
    absorptions_.at(state).known = true;
  }
  return absorptions_[state];
}

// A state is alive while one of its items is.  None of them may end, so all must be JSON strings where there are
// several: no group that is absorbed there holds a quote.
Engine::Absorption Engine::compute_absorption(StateId state) {
  Automaton& automaton = machine_.automaton();
  const auto held = automaton.items(state);
  const std::vector<TermId> items(held.begin(), held.end());
  Absorption best;
  uint16_t followed = 0;  // groups of the bytes that may follow the class
  for (TermId item : items) {
    const Term whole = automaton.terms()[item];
    if (whole.kind != Kind::kSequence || automaton.terms().distance(whole.b) == 0) return {};
    if (items.size() > 1 && automaton.terms()[whole.a].kind != Kind::kJson) return {};
    Absorption one = item_absorption(whole.a);
    if (items.size() == 1 && one.groups == 0) return {};
    // Of several alternatives, one that is nearer to its end than the class may be gone after the first character.
    const Distance nearest = one.kept == kNone ? automaton.terms().distance(item)
                                               : add(automaton.terms().distance(one.kept), automaton.terms().distance(whole.b));
    one.distance = add(add(nearest, kCharacterTail), one.distance);
    if (std::pair(one.count, std::popcount(one.groups)) > std::pair(best.count, std::popcount(best.groups))) best = one;
    // The same bytes must not also begin what follows, or they could end the automaton.
    followed |= groups_of(machine_[machine_.start(whole.b)].live);
  }
  best.groups &= ~followed;
  if (best.groups == 0) return {};
  if (items.size() > 1) best.may_end = false;
  return best;
}

// Whether every character beyond ASCII leads from `state` to `home`, where it lacks `tail` of one.
bool Engine::returns(StateId state, Tail tail, StateId home) {
  const State& held = machine_.automaton().expanded(state);
  if (tail != kNoTail && (held.final || !held.calls.empty())) return false;
  return std::ranges::all_of(tail_edges(tail), [&](const TailEdge& edge) {
    if (edge.group != kForeignGroups) return true;
    ByteSet missing = edge.bytes;
    bool all = true;
    held.next.for_each([&](const ByteSet& set, StateId target) {
      if (!all || (set & edge.bytes).empty()) return;
      missing &= ~set;
      all = edge.after == kNoTail ? target == home : returns(target, edge.after, home);
    });
    return all && missing.empty();
  });
}

// Groups such that any text of them keeps the automaton alive and cannot end it: what is absorbed, or else leads from
// the state back to itself.  Those beyond ASCII are all there or none.
Engine::Absorption Engine::foreign_absorption(Spot at) {
  const Absorption held = absorption(at);
  if ((held.groups & kForeignGroups) == kForeignGroups) return held;
  if (at.state == kNone) return {};
  const State& state = machine_.automaton().expanded(at.state);
  if (state.final || !state.calls.empty() || !cheaply([&] { return returns(at.state, kNoTail, at.state); })) return {};
  ByteSet looping;
  state.next.for_each([&](const ByteSet& set, StateId target) {
    if (target == at.state) looping |= set;
  });
  Absorption found{.groups = kForeignGroups, .count = kNone, .distance = add(state.distance, kCharacterTail)};
  for (const TailEdge& edge : tail_edges(kNoTail))
    if (edge.after == kNoTail && (edge.bytes & ~looping).empty()) found.groups |= edge.group;
  return found;
}

// The states that texts of some groups lead to, each with the position within a character.
struct Engine::Closure {
  struct Position {
    StateId state;
    Tail tail;
    uint16_t group;  // by which it was reached first
  };
  std::vector<Position> positions;
  uint16_t refused = 0;  // groups without which the rest might do
  Distance distance = 0;
};

// Looks for groups such that every text of their characters keeps the automaton alive and cannot end it, whatever
// states it leads to: the inside of a string that must have a match of some pattern somewhere, for one.  True if there
// are any, and then all these states absorb them.  O(states on the way, up to a small maximum).
bool Engine::close_absorption(StateId start) {
  constexpr size_t kMaxPositions = 96, kMaxStates = 400;  // to look at, and to make for it
  constexpr uint64_t kMaxWork = 40'000;
  if (absorption({start, kNone}).groups != 0 || std::exchange(absorptions_.at(start).is_searched, true)) return absorptions_[start].is_closed;
  Automaton& automaton = machine_.automaton();
  const size_t before = automaton.size();
  const auto lacking = [&](StateId state) {
    uint16_t groups = 0;
    const ByteSet& live = automaton.expanded(state).live;
    for (const TailEdge& edge : tail_edges(kNoTail))
      if (!(edge.bytes & ~live).empty()) groups |= edge.group;
    return groups;
  };
  const auto explore = [&](uint16_t groups) -> std::optional<Closure> {
    Closure found{{{start, kNoTail, 0}}, 0, 0};
    for (size_t i = 0; i < found.positions.size(); ++i) {
      if (found.positions.size() > kMaxPositions || automaton.size() > before + kMaxStates) return std::nullopt;
      const auto [id, tail, group] = found.positions[i];
      const State& state = automaton.expanded(id);
      if (state.final || !state.calls.empty() || !state.specials.empty()) {
        found.refused = group == 0 ? groups : group;
        return found;
      }
      found.distance = std::max(found.distance, state.distance);
      for (const TailEdge& edge : tail_edges(tail)) {
        if (!(edge.group & groups)) continue;
        if (!(edge.bytes & ~state.live).empty()) {
          found.refused |= edge.group;
          continue;
        }
        state.next.for_each([&](const ByteSet& set, StateId target) {
          if ((set & edge.bytes).empty()) return;
          const auto is_it = [&](const Closure::Position& position) { return position.state == target && position.tail == edge.after; };
          if (std::none_of(found.positions.begin(), found.positions.end(), is_it)) found.positions.push_back({target, edge.after, edge.group});
        });
      }
      if (found.refused & groups) return found;
    }
    return found;
  };
  const auto attempt = [&]() -> std::pair<uint16_t, Closure> {
    uint16_t groups = static_cast<uint16_t>(kEveryGroup & ~kMalformed & ~lacking(start));
    // A group that leads where others are lacking, as a quote does, is the first to go.
    uint16_t leaving = 0;
    for (const TailEdge& edge : tail_edges(kNoTail)) {
      if (!(edge.group & groups) || edge.after != kNoTail) continue;
      automaton[start].next.for_each([&](const ByteSet& set, StateId target) {
        if (!(set & edge.bytes).empty() && (lacking(target) & groups)) leaving |= edge.group;
      });
    }
    groups &= ~leaving;
    while (groups != 0) {
      std::optional<Closure> found = explore(groups);
      if (!found) break;
      if (!(found->refused & groups)) return {groups, std::move(*found)};
      groups &= ~found->refused;
    }
    return {};
  };
  const auto [groups, found] = cheaply(attempt, kMaxWork);
  if (groups == 0) return false;
  for (const auto& [state, tail, group] : found.positions) {
    if (tail != kNoTail || absorption({state, kNone}).groups != 0) continue;
    absorptions_.at(state) = {.groups = groups, .count = kNone, .distance = found.distance, .known = true, .is_closed = true, .is_searched = true};
  }
  return true;
}

// Groups of the bytes by which a text within `groups` may go on: those that are live in some state on the way.
uint16_t Engine::absorption_breaks(StateId state, uint16_t groups) {
  constexpr size_t kMaxStates = 32;
  Automaton& automaton = machine_.automaton();
  ByteSet inside;
  for (unsigned byte = 0; byte < 256; ++byte)
    if ((byte < 0x80 ? uint16_t{group_of(static_cast<uint8_t>(byte))} : kForeignGroups) & groups) inside.insert(static_cast<uint8_t>(byte));
  std::vector<StateId> states{state};
  ByteSet live;
  for (size_t i = 0; i < states.size(); ++i) {
    if (states.size() > kMaxStates) return kEveryGroup;
    const State& held = automaton.expanded(states[i]);
    if (!held.calls.empty()) return kEveryGroup;
    live |= held.live;
    held.next.for_each([&](const ByteSet& set, StateId target) {
      if (!(set & inside).empty() && std::find(states.begin(), states.end(), target) == states.end()) states.push_back(target);
    });
  }
  return groups_of(live);
}

// Of `head` in the item `head tail`, as long as `head` does not end.
Engine::Absorption Engine::item_absorption(TermId head_id) {
  Automaton& automaton = machine_.automaton();
  TermStore& terms = automaton.terms();
  Absorption best;
  const Kind kind = terms[head_id].kind;
  if (kind != Kind::kRepeat && kind != Kind::kAnd && kind != Kind::kJson) return best;
  uint16_t allowed = kEveryGroup & ~kMalformed;
  std::vector<TermId> choices{head_id};
  const bool is_json = kind == Kind::kJson;
  if (is_json) {  // what JSON writes as it is
    allowed &= ~(kQuoting | kControl);
    choices[0] = terms[head_id].a;
    if (terms[choices[0]].kind == Kind::kChoice) {
      const auto list = terms.list(terms[choices[0]].a);
      choices.assign(list.begin(), list.end());
    }
  }
  const auto consider = [&](TermId repeated, uint16_t within, bool may_end, TermId kept) {
    const Term term = terms[repeated];
    if (term.kind != Kind::kRepeat) return;
    const auto groups = static_cast<uint16_t>(char_groups(term.a) & within);
    if (groups == 0 || std::pair(term.c, std::popcount(groups)) <= std::pair(best.count, std::popcount(best.groups))) return;
    best.groups = groups;
    best.count = term.c;
    best.may_end = may_end && term.b == 0;
    best.kept = kept;
  };
  const auto front = [&](TermId term) { return terms[term].kind == Kind::kSequence && is_json ? terms[term].a : term; };
  const auto in_place = [&](TermId alternative) { return is_json ? automaton.json(alternative) : alternative; };
  for (TermId choice : choices) {
    if (terms[choice].kind != Kind::kAnd) {
      const bool is_alone = choices.size() == 1;
      consider(front(choice), allowed, is_alone && front(choice) == choice, is_alone ? kNone : in_place(choice));
      continue;
    }
    // `C* & L`: what keeps an alternative of L alive, and lies in C, does so if the two have a text in common.
    const auto list = terms.list(terms[choice].a);
    std::vector<TermId> stars;
    TermId other = kNone;
    uint16_t within = allowed;
    bool simple = true;
    for (TermId part : std::vector<TermId>(list.begin(), list.end())) {
      const Term term = terms[part];
      if (term.kind == Kind::kRepeat && term.b == 0 && term.c == kNone && char_groups(term.a) != 0) {
        stars.push_back(part);
        within &= char_groups(term.a);
      } else {
        simple = simple && other == kNone;
        other = part;
      }
    }
    if (const std::optional<uint8_t> escape = is_json ? way_out(choice) : std::nullopt; escape && choices.size() == 1) {
      // `C* & ~x` where no string of x has some character of C: with that character, every text can be completed.
      best = {.groups = within, .count = kNone, .distance = terms.json_weight(*escape), .is_outside = true};
      return best;
    }
    if (!simple || other == kNone || stars.empty()) continue;
    std::vector<TermId> alternatives{other};
    if (terms[other].kind == Kind::kChoice) {
      const auto held = terms.list(terms[other].a);
      alternatives.assign(held.begin(), held.end());
    }
    for (TermId alternative : alternatives) {
      if (terms[front(alternative)].kind != Kind::kRepeat) continue;
      std::vector<TermId> both = stars;
      both.push_back(alternative);
      const TermId meet = automaton.conjunction(std::move(both));
      if (meet != kEmptyTerm) consider(front(alternative), within, false, in_place(meet));
    }
  }
  return best;
}

// A character by which every text of `stars & complements` stays outside of what is excluded; nothing if the term is
// anything else, or none is known.
std::optional<uint8_t> Engine::way_out(TermId conjunction) {
  const TermStore& terms = machine_.automaton().terms();
  if (terms[conjunction].kind != Kind::kAnd) return std::nullopt;
  uint16_t groups = kEveryGroup;
  ByteSet used;
  const auto list = terms.list(terms[conjunction].a);
  for (TermId part : std::vector<TermId>(list.begin(), list.end())) {
    const Term term = terms[part];
    if (term.kind == Kind::kNot) used |= used_bytes(term.a);
    else if (term.kind == Kind::kRepeat && term.b == 0 && term.c == kNone) groups &= char_groups(term.a);
    else return std::nullopt;
  }
  std::optional<uint8_t> best;
  for (unsigned byte = 0; byte < 0x80; ++byte) {
    const auto one = static_cast<uint8_t>(byte);
    if (used.contains(one) || !(group_of(one) & groups)) continue;
    if (!best || terms.json_weight(one) < terms.json_weight(*best)) best = one;
  }
  return best;
}

// Whether a state is the rest of a JSON string whose value may be anything but the strings of a language that avoids
// some character.
bool Engine::is_outside(StateId state) {
  Automaton& automaton = machine_.automaton();
  const TermStore& terms = automaton.terms();
  const auto items = automaton.items(state);
  if (items.size() != 1 || terms[items[0]].kind != Kind::kSequence) return false;
  const Term head = terms[terms[items[0]].a];
  return head.kind == Kind::kJson && terms[head.a].kind == Kind::kAnd && absorption({state, kNone}).is_outside;
}

// The bytes that strings of a regular term may have, or more.  O(terms below it that were not queried before).
const ByteSet& Engine::used_bytes(TermId root) {
  constexpr size_t kMaxCached = 100'000;
  if (used_bytes_.size() > kMaxCached) used_bytes_.clear();
  const TermStore& terms = machine_.automaton().terms();
  std::vector<TermId> work{root}, parts;
  while (!work.empty()) {
    const TermId id = work.back();
    const Term term = terms[id];
    parts.clear();
    ByteSet used;
    switch (term.kind) {
      case Kind::kEmpty:
      case Kind::kEpsilon: break;
      case Kind::kLiteral:
        for (char byte : terms.blob(term.a).substr(term.b)) used.insert(static_cast<uint8_t>(byte));
        break;
      case Kind::kBytes: used = terms.byte_set(term.a); break;
      case Kind::kSequence: parts = {term.a, term.b}; break;
      case Kind::kRepeat: parts = {term.a}; break;
      case Kind::kChoice: parts.assign(terms.list(term.a).begin(), terms.list(term.a).end()); break;
      case Kind::kAnd: parts = {terms.list(term.a)[0]}; break;  // one of them bounds all
      default: used = ~ByteSet{};
    }
    if (!used_bytes_.contains(id)) {
      const size_t before = work.size();
      for (TermId part : parts)
        if (!used_bytes_.contains(part)) work.push_back(part);
      if (work.size() > before) continue;
      for (TermId part : parts) used |= used_bytes_.at(part);
      used_bytes_.emplace(id, used);
    }
    work.pop_back();
  }
  return used_bytes_.at(root);
}

uint16_t Engine::groups_of(const ByteSet& bytes) const {
  uint16_t groups = 0;
  bytes.for_each([&](uint8_t byte) { groups |= byte < 0x80 ? uint16_t{group_of(byte)} : uint16_t(kForeignGroups | kMalformed); });
  return groups;
}

// The groups whose characters are all in `item`, a class of single characters; none if it is anything else.
uint16_t Engine::char_groups(TermId item) {
  const auto found = char_groups_.find(item);
  if (found != char_groups_.end()) return found->second;
  uint16_t groups = 0;
  if (const auto ranges = machine_.automaton().as_char_class(item)) {
    const auto covers = [&](uint32_t low, uint32_t high) {
      for (const auto& [first, last] : *ranges)
        if (first <= low && high <= last) return true;
      return false;
    };
    for (ByteGroup group : kAsciiGroups) {
      bool all = true;
      for (unsigned byte = 0; byte < 0x80; ++byte)
        if (group_of(static_cast<uint8_t>(byte)) == group) all = all && covers(byte, byte);
      if (all) groups |= group;
    }
    bool spaces = true, others = true;
    uint32_t next = 0x80;  // the first character beyond ASCII that is not looked at yet
    const auto gap = [&](uint32_t low, uint32_t high) {  // characters of no other group up to `low`, then a gap
      if (next < low) others = others && covers(next, low - 1);
      next = high + 1;
    };
    std::vector<std::pair<uint32_t, uint32_t>> gaps(std::begin(kForeignSpaces), std::end(kForeignSpaces));
    for (const auto& [low, high] : gaps) spaces = spaces && covers(low, high);
    gaps.emplace_back(0x2028, 0x2029);
    gaps.emplace_back(0xD800, 0xDFFF);
    gaps.emplace_back(0x110000, 0x110000);
    std::sort(gaps.begin(), gaps.end());
    for (const auto& [low, high] : gaps) gap(low, high);
    if (others) groups |= kForeign;
    if (spaces) groups |= kForeignSpace;
    if (covers(0x2028, 0x2029)) groups |= kLineSeparator;
  }
  char_groups_.emplace(item, groups);
  return groups;
}

}  // namespace structgen

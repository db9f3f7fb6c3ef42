// Intersections and complements: their derivatives, and whether anything is in them.
#include <algorithm>
#include <queue>
#include <tuple>
#include <unordered_map>

#include "automaton/automaton.h"
#include "automaton/expansion.h"

namespace structgen {

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
    finer.reserve(sets.size() + own.size());
    finer_targets.reserve((sets.size() + own.size()) * (depth + 1));
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
  result.reserve(sets.size());
  for (size_t i = 0; i < sets.size(); ++i) {
    meter_.work(kTermSteps, kEmptiness);
    const auto first = targets.begin() + i * items.size();
    result.emplace_back(sets[i], intersection(std::vector<TermId>(first, first + items.size())));
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

// Whether all texts of some part are texts of a complement, as far as repeated classes show: nothing is in C{a,b} & ~C*,
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

// Whether `item` is `other`, or all its strings are characters that `other` has too.
bool Automaton::is_class_within(TermId item, TermId other) {
  if (item == other) return true;
  const auto [slot, is_new] = class_within_.try_emplace(uint64_t{item} << 32 | other, false);
  if (!is_new || !is_char_class(item)) return slot->second;
  const auto inner = as_char_class(item), outer = as_char_class(other);
  const auto is_covered = [&](const CodePoints& range) {
    return std::any_of(outer->begin(), outer->end(), [&](const CodePoints& held) { return held.first <= range.first && range.second <= held.second; });
  };
  return slot->second = outer && std::all_of(inner->begin(), inner->end(), is_covered);
}

// A lower bound on the length of the strings of a boolean term: that of any regular part of an intersection.  Parts that
// would have to be explored themselves contribute nothing.
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
  Estimate best{std::min<Distance>(counts.min[kCharacters], kFar), 0};
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

// A byte that a shortest string of a term may begin with: taken from the part of an intersection that is farthest from
// its end, an ordinary character where there is a choice.
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
  if (solve_without_bounds(root, weight) || (weight == Weight::kPlain && solve_directly(root))) return;
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
    const auto [slot, is_new] = visited.try_emplace(term, Visit{distance, parent, {}});
    if (is_new) slot->second.estimate = estimate(term, weight);
    else if (slot->second.distance <= distance) return;
    else slot->second = {distance, parent, slot->second.estimate};
    const auto [least, remaining] = slot->second.estimate;
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
  for (const auto& [term, visit] : visited) {  // these terms have no strings
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

// An intersection that may be unsettled.  What is left of a pattern is often a loop over the class of a length.
TermId Automaton::intersection(std::vector<TermId> items) {
  const auto repeated = [&](TermId item) { return terms_[item].kind == Kind::kRepeat ? terms_[item].a : kNone; };
  for (size_t i = 1; i < items.size(); ++i) {
    const TermId item = repeated(items[i]);
    if (item == kNone) continue;
    const auto other = std::find_if(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(i), [&](TermId held) { return repeated(held) == item; });
    if (other == items.begin() + static_cast<std::ptrdiff_t>(i) || *other == items[i] || !is_char_class(item)) continue;
    merge_counted(items);
    break;
  }
  return terms_.conjunction(std::move(items));
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

}  // namespace structgen

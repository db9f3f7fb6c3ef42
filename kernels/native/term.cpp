#include "term.h"
#include "permutation.h"

#include <algorithm>
#include <queue>
#include <unordered_map>
#include <unordered_set>

namespace structgen {

namespace {

constexpr uint32_t kSixBits = 6;

uint64_t hash_term(const Term& term) {
  return combine(uint64_t{term.a} << 32 | term.b, uint64_t{term.c} << 32 | static_cast<uint64_t>(term.kind));
}

std::span<const uint8_t> as_bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// The part of `ranges` within [low, high], moved down by `low`.
std::vector<CodePoints> clip(std::span<const CodePoints> ranges, uint32_t low, uint32_t high) {
  std::vector<CodePoints> inside;
  for (const auto& [first, last] : ranges)
    if (first <= high && last >= low) inside.emplace_back(std::max(first, low) - low, std::min(last, high) - low);
  return inside;
}

}  // namespace

Distance TermStore::json_weight(uint8_t byte) const {
  switch (byte) {
    case '"': case '\\': case '\b': case '\t': case '\n': case '\f': case '\r': return 2;
    default: break;
  }
  if (byte < 0x20) return 6;
  if (spellable_.contains(byte)) return 1;
  // The character must be escaped: \uXXXX, or a pair of them.  The lead byte bears what its tail does not.
  if (byte < 0x80) return 6;
  return byte < 0xE0 ? 5 : byte < 0xF0 ? 4 : 9;
}

TermStore::TermStore(const ByteSet& spellable) : spellable_(spellable) {
  make({Kind::kEmpty, 0, 0, 0});
  make({Kind::kEpsilon, 0, 0, 0});
  const TermId any = bytes(ByteSet::all());
  everything_ = repeat(any, 0, kNone);
  const TermId one = bytes(ByteSet::range(0x80, 0xBF));
  continuations_[0] = kEpsilonTerm;
  for (unsigned i = 1; i < 4; ++i) continuations_[i] = sequence(one, continuations_[i - 1]);
}

TermId TermStore::make(const Term& term, std::optional<Distance> distance) {
  const uint64_t hash = hash_term(term);
  const TermId found = table_.find(hash, [&](uint32_t id) { return terms_[id] == term; });
  if (found != kNone) return found;
  const auto id = static_cast<TermId>(terms_.size());
  terms_.push_back(term);
  distances_.push_back(distance ? *distance : structural_distance(term));
  table_.insert(hash, id);
  if (distances_[id] == kUnsolved && term.kind != Kind::kAnd && term.kind != Kind::kNot &&
      term.kind != Kind::kJson && term.kind != Kind::kJsonEscape)
    unsolved_.push_back(id);
  return id;
}

// The distance where the parts decide it; boolean and JSON terms are settled by the automaton, which can derive.
Distance TermStore::structural_distance(const Term& term) const {
  switch (term.kind) {
    case Kind::kEmpty: return kInfinite;
    case Kind::kEpsilon: return 0;
    case Kind::kLiteral: return static_cast<Distance>(blobs_[term.a].size() - term.b);
    case Kind::kBytes: case Kind::kSpecial: return 1;
    case Kind::kSequence: {
      const Distance head = distances_[term.a], tail = distances_[term.b];
      if (head == kInfinite || tail == kInfinite) return kInfinite;
      return head == kUnsolved || tail == kUnsolved ? kUnsolved : add(head, tail);
    }
    case Kind::kChoice: {
      Distance best = kInfinite;
      for (TermId item : lists_[term.a]) {
        if (distances_[item] == kUnsolved) return kUnsolved;
        best = std::min(best, distances_[item]);
      }
      return best;
    }
    case Kind::kRepeat: {
      if (term.b == 0) return 0;
      const Distance item = distances_[term.a];
      if (item == kUnsolved || item == kInfinite) return item;
      return static_cast<Distance>(std::min<uint64_t>(uint64_t{item} * term.b, kFar));
    }
    case Kind::kCall: return rules_[term.a].distance;
    case Kind::kPermutation: {
      const Permutation parts(*this, term);
      bool solved = true;
      const PermutationDistances distances(parts, [&](TermId part) {
        solved &= distances_[part] != kUnsolved;
        return distances_[part];
      });
      return solved ? distances.members() : kUnsolved;
    }
    default: return kUnsolved;
  }
}

void TermStore::prefetch(const Term& term) const { table_.prefetch(hash_term(term)); }

TermId TermStore::literal(std::string_view text) {
  if (text.empty()) return kEpsilonTerm;
  const uint32_t blob = literal_blob(text, blobs_.hash_of(as_bytes(text)));
  return blob == kNone ? kEmptyTerm : literal_rest(blob, 0);
}

uint64_t TermStore::prefetch_blob(std::string_view text) const {
  const uint64_t hash = blobs_.hash_of(as_bytes(text));
  blobs_.prefetch(hash);
  return hash;
}

uint32_t TermStore::literal_blob(std::string_view text, uint64_t hash) {
  if (restricted_) {
    for (char character : text) {
      if (spellable_.contains(static_cast<uint8_t>(character))) continue;
      if (!unspellable_) unspellable_ = static_cast<uint8_t>(character);
      return kNone;
    }
  }
  const uint32_t blob = blobs_.intern(as_bytes(text), hash);
  prefetch({Kind::kLiteral, blob, 0, 0});
  return blob;
}

TermId TermStore::literal_rest(uint32_t blob, uint32_t offset) {
  return offset == blobs_[blob].size() ? kEpsilonTerm : make({Kind::kLiteral, blob, offset, 0});
}

TermId TermStore::bytes(const ByteSet& wanted) {
  const ByteSet set = restricted_ ? wanted & spellable_ : wanted;
  if (set.empty()) {
    if (!wanted.empty() && !unspellable_) unspellable_ = wanted.first();
    return kEmptyTerm;
  }
  uint64_t hash = 0;
  for (uint64_t word : set.words) hash = combine(hash, word);
  uint32_t id = set_table_.find(hash, [&](uint32_t held) { return sets_[held] == set; });
  if (id == kNone) {
    id = static_cast<uint32_t>(sets_.size());
    sets_.push_back(set);
    set_table_.insert(hash, id);
  }
  return make({Kind::kBytes, id, 0, 0});
}

// `count` continuation bytes whose 6 * count bits lie in `ranges`.
TermId TermStore::continuation(unsigned count, std::span<const CodePoints> ranges) {
  if (ranges.empty()) return kEmptyTerm;
  const uint32_t all = (uint32_t{1} << (kSixBits * count)) - 1;
  if (ranges.size() == 1 && ranges[0] == CodePoints{0, all}) return continuations_[count];
  const uint32_t width = uint32_t{1} << (kSixBits * (count - 1));
  std::vector<std::pair<TermId, ByteSet>> groups;
  size_t next = 0;
  for (uint32_t digit = 0; digit < 64; ++digit) {
    const uint32_t low = digit * width, high = low + width - 1;
    while (next < ranges.size() && ranges[next].second < low) ++next;
    if (next == ranges.size()) break;
    if (ranges[next].first > high) continue;
    size_t stop = next;
    while (stop < ranges.size() && ranges[stop].first <= high) ++stop;
    const TermId tail = continuation(count - 1, clip(ranges.subspan(next, stop - next), low, high));
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& held) { return held.first == tail; });
    if (group == groups.end()) group = groups.insert(groups.end(), {tail, ByteSet{}});
    group->second.insert(static_cast<uint8_t>(0x80 | digit));
  }
  std::vector<TermId> parts;
  for (const auto& [tail, set] : groups) parts.push_back(sequence(bytes(set), tail));
  return choice(std::move(parts));
}

TermId TermStore::chars(std::span<const CodePoints> ranges) {
  std::vector<uint32_t> key = {restricted_};
  for (const auto& [low, high] : ranges) key.insert(key.end(), {low, high});
  const uint32_t known = classes_.intern(key);
  if (known >= class_terms_.size()) class_terms_.resize(known + 1, kNone);
  if (class_terms_[known] != kNone) return class_terms_[known];
  const std::optional<uint8_t> before = std::exchange(unspellable_, std::nullopt);
  const TermId term = encoded(ranges);
  if (unspellable_) return term;  // every time that it is met, this has to be told
  unspellable_ = before;
  return class_terms_[known] = term;
}

// The UTF-8 encoding of a class of characters.
TermId TermStore::encoded(std::span<const CodePoints> ranges) {
  struct Form {
    uint32_t low, high, lead;
    unsigned tail;
  };
  constexpr Form forms[] = {{0x80, 0x7FF, 0xC0, 1}, {0x800, 0xFFFF, 0xE0, 2}, {0x10000, 0x10FFFF, 0xF0, 3}};
  ByteSet ascii;
  for (const auto& [low, high] : clip(ranges, 0, 0x7F)) ascii |= ByteSet::range(low, high);
  std::vector<std::pair<TermId, ByteSet>> groups;
  for (const Form& form : forms) {
    for (uint32_t lead = form.low >> (kSixBits * form.tail); lead <= form.high >> (kSixBits * form.tail); ++lead) {
      const uint32_t width = uint32_t{1} << (kSixBits * form.tail);
      std::vector<CodePoints> inside = clip(ranges, std::max(lead * width, form.low), std::min(lead * width + width - 1, form.high));
      if (inside.empty()) continue;
      const uint32_t shift = std::max(lead * width, form.low) - lead * width;
      for (auto& range : inside) range = {range.first + shift, range.second + shift};
      const TermId tail = continuation(form.tail, inside);
      auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& held) { return held.first == tail; });
      if (group == groups.end()) group = groups.insert(groups.end(), {tail, ByteSet{}});
      group->second.insert(static_cast<uint8_t>(form.lead | lead));
    }
  }
  std::vector<TermId> parts;
  if (!ascii.empty()) parts.push_back(bytes(ascii));
  for (const auto& [tail, set] : groups) parts.push_back(sequence(bytes(set), tail));
  return choice(std::move(parts));
}

TermId TermStore::sequence(TermId head, TermId tail) {
  if (head == kEmptyTerm || tail == kEmptyTerm) return kEmptyTerm;
  if (head == kEpsilonTerm) return tail;
  if (tail == kEpsilonTerm) return head;
  if (distances_[head] == kInfinite || distances_[tail] == kInfinite) return kEmptyTerm;
  return make({Kind::kSequence, head, tail, 0});
}

TermId TermStore::sequence(std::span<const TermId> items) {
  if (items.empty()) return kEpsilonTerm;
  // Most of the terms will be new, one after the other: fetch where they go, for each look-up would wait for memory.
  auto next = static_cast<TermId>(terms_.size());
  TermId tail = items.back();
  for (size_t i = items.size() - 1; i-- > 0; tail = next++) prefetch({Kind::kSequence, items[i], tail, 0});
  tail = items.back();
  for (size_t i = items.size() - 1; i-- > 0;) tail = sequence(items[i], tail);
  return tail;
}

TermId TermStore::choice(std::vector<TermId> items) {
  for (size_t i = 0; i < items.size(); ++i) {  // splice nested choices, which hold no further ones
    if (terms_[items[i]].kind != Kind::kChoice) continue;
    const auto nested = lists_[terms_[items[i]].a];
    const std::vector<TermId> copy(nested.begin(), nested.end());
    items[i] = copy[0];
    items.insert(items.end(), copy.begin() + 1, copy.end());
  }
  std::erase_if(items, [&](TermId item) { return distances_[item] == kInfinite; });
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
  if (std::binary_search(items.begin(), items.end(), everything_)) return everything_;
  drop_narrower(items);
  if (items.empty()) return kEmptyTerm;
  if (items.size() == 1) return items[0];
  const uint64_t hash = lists_.hash_of(items);
  lists_.prefetch(hash);
  prefetch({Kind::kChoice, static_cast<uint32_t>(lists_.size()), 0, 0});  // if the list is new
  return make({Kind::kChoice, lists_.intern(items, hash), 0, 0});
}

// Whether `one` is `other` with narrower bounds of repetitions, as far as a look at the first parts tells.  Never true
// of two terms in both directions.
bool TermStore::is_narrower(TermId one, TermId other) const {
  constexpr unsigned kMostParts = 8;
  const auto front = [&](TermId term) { return terms_[term].kind == Kind::kSequence ? terms_[term].a : term; };
  const auto rest = [&](TermId term) { return terms_[term].kind == Kind::kSequence ? terms_[term].b : kEpsilonTerm; };
  for (unsigned part = 0; part < kMostParts; ++part) {
    if (one == other) return true;
    const TermId first = front(one), second = front(other);
    if (first != second) {
      const Term& narrow = terms_[first];
      const Term& wide = terms_[second];
      if (narrow.kind != Kind::kRepeat || wide.kind != Kind::kRepeat || narrow.a != wide.a || narrow.b < wide.b) return false;
      // What follows may begin with the items that `other` has less; with as many, the maximum decides.
      if (narrow.b > wide.b && rest(one) == rest(other) && absorbs(rest(one), narrow.a)) return true;
      if (narrow.c > wide.c) return false;
    }
    one = rest(one);
    other = rest(other);
  }
  return false;
}

// Whether `item term` is narrower than `term`, as far as that is easy to see: the term begins with a loop over more.
bool TermStore::absorbs(TermId term, TermId item) const {
  const Term& loop = terms_[terms_[term].kind == Kind::kSequence ? terms_[term].a : term];
  if (loop.kind != Kind::kRepeat || loop.b != 0 || loop.c != kNone) return false;
  if (loop.a == item) return true;
  const auto parts = [&](const TermId& id) {
    return terms_[id].kind == Kind::kChoice ? list(terms_[id].a) : std::span<const TermId>(&id, 1);
  };
  const auto is_within = [&](TermId one, TermId other) {  // bytes, or characters by their lead bytes
    const Term narrow = terms_[one], wide = terms_[other];
    if (narrow.kind != wide.kind) return false;
    if (narrow.kind == Kind::kBytes) return (byte_set(narrow.a) & ~byte_set(wide.a)).empty();
    if (narrow.kind != Kind::kSequence || narrow.b != wide.b) return false;
    const Term lead = terms_[narrow.a], leads = terms_[wide.a];
    return lead.kind == Kind::kBytes && leads.kind == Kind::kBytes && (byte_set(lead.a) & ~byte_set(leads.a)).empty();
  };
  const auto wide = parts(loop.a);
  return std::ranges::all_of(parts(item), [&](TermId one) {
    return std::ranges::any_of(wide, [&](TermId other) { return one == other || is_within(one, other); });
  });
}

// Drops `C{m,n} T` beside T, where T begins with a loop over all of C: what is left of a pattern without an end once any
// text may follow.
void TermStore::drop_absorbed(std::vector<TermId>& alternatives) const {
  std::vector<TermId> dropped;
  for (TermId item : alternatives) {
    const Term& whole = terms_[item];
    if (whole.kind != Kind::kSequence) continue;
    const Term& front = terms_[whole.a];
    if (front.kind != Kind::kRepeat && front.kind != Kind::kBytes) continue;
    if (!std::binary_search(alternatives.begin(), alternatives.end(), whole.b)) continue;
    if (absorbs(whole.b, front.kind == Kind::kRepeat ? front.a : whole.a)) dropped.push_back(item);
  }
  if (dropped.empty()) return;
  std::erase_if(alternatives, [&](TermId item) { return std::binary_search(dropped.begin(), dropped.end(), item); });
}

void TermStore::drop_narrower(std::vector<TermId>& alternatives) const {
  constexpr size_t kMostCompared = 32;
  if (alternatives.size() < 2) return;
  drop_absorbed(alternatives);
  std::vector<std::pair<TermId, TermId>> repeated;  // what is repeated at the front, alternative
  for (TermId item : alternatives) {
    const Term& whole = terms_[item];
    const Term& front = whole.kind == Kind::kSequence ? terms_[whole.a] : whole;
    if (front.kind == Kind::kRepeat) repeated.emplace_back(front.a, item);
  }
  if (repeated.size() < 2) return;
  std::sort(repeated.begin(), repeated.end());
  std::vector<TermId> dropped;
  for (size_t i = 0; i < repeated.size(); ++i) {
    const size_t first = i > kMostCompared ? i - kMostCompared : 0, last = std::min(repeated.size(), i + kMostCompared);
    for (size_t k = first; k < last; ++k) {
      if (k == i || repeated[k].first != repeated[i].first || !is_narrower(repeated[i].second, repeated[k].second)) continue;
      dropped.push_back(repeated[i].second);
      break;
    }
  }
  if (dropped.empty()) return;
  std::sort(dropped.begin(), dropped.end());
  std::erase_if(alternatives, [&](TermId item) { return std::binary_search(dropped.begin(), dropped.end(), item); });
}

TermId TermStore::repeat(TermId item, uint32_t min, uint32_t max) {
  if (max == 0 || item == kEpsilonTerm) return kEpsilonTerm;
  if (distances_[item] == kInfinite) return min == 0 ? kEpsilonTerm : kEmptyTerm;
  if (min == 1 && max == 1) return item;
  if (distances_[item] == 0) min = 0;  // a nullable item makes every lower count possible
  const Term& inner = terms_[item];
  if (inner.kind == Kind::kRepeat && inner.b == 0 && inner.c == kNone) return item;  // (x*){m,n} = x*
  if (inner.kind == Kind::kRepeat && inner.b == 0) {  // x{0,m}{0,n} = x{0,mn}
    const uint64_t product = uint64_t{inner.c} * max;
    return repeat(inner.a, 0, max == kNone || product >= kNone ? kNone : static_cast<uint32_t>(product));
  }
  if (inner.kind == Kind::kRepeat && inner.b == 1 && inner.c == kNone && max == kNone)  // (x+){m,} = x{m,}
    return repeat(inner.a, min, kNone);
  return make({Kind::kRepeat, item, min, max});
}

TermId TermStore::conjunction(std::vector<TermId> items) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (terms_[items[i]].kind != Kind::kAnd) continue;
    const auto nested = lists_[terms_[items[i]].a];
    const std::vector<TermId> copy(nested.begin(), nested.end());
    items[i] = copy[0];
    items.insert(items.end(), copy.begin() + 1, copy.end());
  }
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
  std::erase(items, everything_);
  if (items.empty()) return everything_;
  for (TermId item : items)
    if (item == kEmptyTerm) return kEmptyTerm;
  if (items.size() == 1) return items[0];
  return make({Kind::kAnd, lists_.intern(items), 0, 0});
}

TermId TermStore::negation(TermId item) {
  if (item == kEmptyTerm) return everything_;
  if (item == everything_) return kEmptyTerm;
  if (terms_[item].kind == Kind::kNot) return terms_[item].a;
  return make({Kind::kNot, item, 0, 0});
}

TermId TermStore::wrap(Kind kind, TermId value) {
  return value == kEmptyTerm ? kEmptyTerm : make({kind, value, 0, 0});
}

TermId TermStore::hex(unsigned digits, std::span<const Target> targets) {
  if (targets.empty()) return kEmptyTerm;
  if (digits == 0) {
    std::vector<TermId> parts;
    for (const Target& target : targets) parts.push_back(target.term);
    return choice(std::move(parts));
  }
  const uint32_t width = uint32_t{1} << (4 * (digits - 1));
  std::vector<std::pair<TermId, ByteSet>> groups;
  std::vector<Target> previous;
  TermId previous_term = kEmptyTerm;
  for (uint32_t digit = 0; digit < 16; ++digit) {
    const uint32_t low = digit * width, high = low + width - 1;
    std::vector<Target> inside;
    for (const Target& target : targets)
      if (target.low <= high && target.high >= low)
        inside.push_back({std::max(target.low, low) - low, std::min(target.high, high) - low, target.term});
    if (inside.empty()) continue;
    const auto same = [](const Target& a, const Target& b) {
      return a.low == b.low && a.high == b.high && a.term == b.term;
    };
    TermId rest = previous_term;
    if (!std::equal(inside.begin(), inside.end(), previous.begin(), previous.end(), same)) rest = hex(digits - 1, inside);
    previous = std::move(inside);
    previous_term = rest;
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& held) { return held.first == rest; });
    if (group == groups.end()) group = groups.insert(groups.end(), {rest, ByteSet{}});
    if (digit < 10) {
      group->second.insert(static_cast<uint8_t>('0' + digit));
    } else {
      group->second.insert(static_cast<uint8_t>('a' + digit - 10));
      group->second.insert(static_cast<uint8_t>('A' + digit - 10));
    }
  }
  std::vector<TermId> parts;
  for (const auto& [rest, set] : groups) parts.push_back(sequence(bytes(set), rest));
  return choice(std::move(parts));
}

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
  // Of all rules that `from` can call: calls visit(rule) for each.
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
  auto place = std::find(temperatures_.begin(), temperatures_.end(), temperature);
  if (place == temperatures_.end()) {
    constexpr size_t kMost = kAllScopes - kTempered;
    if (temperatures_.size() == kMost) throw LimitError("temperatures", kMost, "telling parts with a temperature of their own apart");
    place = temperatures_.insert(temperatures_.end(), temperature);
  }
  return static_cast<Scope>(kTempered + static_cast<size_t>(place - temperatures_.begin()));
}

void TermStore::solve_rules() {
  // users[x]: unsolved terms with x as a part; due[x]: permutations that require x, of which `missing` says how many
  // such parts are still unsolved; bodies[x]: rules whose body is x.
  std::vector<std::pair<TermId, TermId>> users, due;
  std::unordered_map<TermId, uint32_t> missing;
  std::vector<std::pair<TermId, RuleId>> bodies;
  std::vector<std::pair<RuleId, TermId>> calls;
  using Item = std::pair<Distance, TermId>;
  std::priority_queue<Item, std::vector<Item>, std::greater<>> queue;
  solved_rules_ = std::exchange(open_rules_, {});
  for (RuleId rule : solved_rules_)
    if (rules_[rule].distance == kUnsolved) bodies.emplace_back(rules_[rule].body, rule);
  for (TermId id : unsolved_) {
    const Term& term = terms_[id];
    if (term.kind == Kind::kSequence) {
      users.emplace_back(term.a, id);
      users.emplace_back(term.b, id);
    } else if (term.kind == Kind::kChoice) {
      for (TermId item : lists_[term.a]) users.emplace_back(item, id);
    } else if (term.kind == Kind::kRepeat) {
      users.emplace_back(term.a, id);
    } else if (term.kind == Kind::kPermutation) {
      const Permutation parts(*this, term);
      const auto need = [&](TermId part) {
        if (distances_[part] != kUnsolved) return;
        due.emplace_back(part, id);
        ++missing[id];
      };
      uint32_t required = 0;
      for (uint32_t item : parts.items) {
        if (Permutation::is_required(item)) need(Permutation::term_of(item));
        else users.emplace_back(Permutation::term_of(item), id);
        required += Permutation::is_required(item);
      }
      users.emplace_back(parts.rest, id);
      if (std::max(parts.min, required) > 1) need(parts.separator);
    } else if (term.kind == Kind::kCall) {
      calls.emplace_back(term.a, id);
    }
  }
  std::sort(users.begin(), users.end());
  std::sort(due.begin(), due.end());
  std::sort(bodies.begin(), bodies.end());
  std::sort(calls.begin(), calls.end());
  const auto candidate = [&](TermId id) -> Distance {
    const Term& term = terms_[id];
    const auto of = [&](TermId part) { return distances_[part] == kUnsolved ? kInfinite : distances_[part]; };
    if (term.kind == Kind::kSequence) return add(of(term.a), of(term.b));
    if (term.kind == Kind::kRepeat) {
      const Distance item = of(term.a);
      return item == kInfinite ? kInfinite : static_cast<Distance>(std::min<uint64_t>(uint64_t{item} * term.b, kFar));
    }
    if (term.kind == Kind::kCall) return rules_[term.a].distance == kUnsolved ? kInfinite : rules_[term.a].distance;
    if (term.kind == Kind::kPermutation)
      return missing[id] ? kInfinite : PermutationDistances(Permutation(*this, term), of).members();
    return kInfinite;
  };
  for (TermId id : unsolved_) {
    Distance start = candidate(id);
    if (terms_[id].kind == Kind::kChoice)
      for (TermId item : lists_[terms_[id].a])
        if (distances_[item] != kUnsolved) start = std::min(start, distances_[item]);
    if (start < kInfinite) queue.emplace(start, id);
  }
  while (!queue.empty()) {
    const auto [distance, id] = queue.top();
    queue.pop();
    if (distances_[id] != kUnsolved) continue;
    distances_[id] = distance;
    for (auto user = std::lower_bound(users.begin(), users.end(), std::pair<TermId, TermId>{id, 0});
         user != users.end() && user->first == id; ++user) {
      if (distances_[user->second] != kUnsolved) continue;
      const Distance next = terms_[user->second].kind == Kind::kChoice ? distance : candidate(user->second);
      if (next < kInfinite) queue.emplace(next, user->second);
    }
    for (auto user = std::lower_bound(due.begin(), due.end(), std::pair<TermId, TermId>{id, 0});
         user != due.end() && user->first == id; ++user) {
      if (--missing[user->second] != 0) continue;
      if (const Distance next = candidate(user->second); next < kInfinite) queue.emplace(next, user->second);
    }
    for (auto body = std::lower_bound(bodies.begin(), bodies.end(), std::pair<TermId, RuleId>{id, 0});
         body != bodies.end() && body->first == id; ++body) {
      rules_[body->second].distance = distance;
      for (auto call = std::lower_bound(calls.begin(), calls.end(), std::pair<RuleId, TermId>{body->second, 0});
           call != calls.end() && call->first == body->second; ++call)
        queue.emplace(distance, call->second);
    }
  }
  for (TermId id : unsolved_)
    if (distances_[id] == kUnsolved) distances_[id] = kInfinite;
  for (const auto& [body, rule] : bodies)
    if (rules_[rule].distance == kUnsolved) rules_[rule].distance = kInfinite;
  unsolved_.clear();
}

bool TermStore::left_recursive() const {
  // Rules of earlier grammars cannot call these, so a cycle lies among the rules that were solved last.
  if (solved_rules_.empty()) return false;
  const RuleId first = *std::min_element(solved_rules_.begin(), solved_rules_.end());
  const auto left_calls = [&](RuleId rule) {
    std::vector<RuleId> calls;
    std::unordered_set<TermId> seen;
    std::vector<TermId> work{rules_[rule].body};
    while (!work.empty()) {
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
  for (RuleId root : solved_rules_) {
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

void TermStore::set_json_distance(TermId id, Distance distance) {
  json_distances_.at(id) = distance;
}

std::optional<Distance> TermStore::json_distance(TermId root, TermId& missing) {
  std::vector<TermId> stack{root};
  while (!stack.empty()) {
    const TermId id = stack.back();
    if (json_known(id)) {
      stack.pop_back();
      continue;
    }
    const Term term = terms_[id];
    const size_t before = stack.size();
    const auto need = [&](TermId part) {
      if (!json_known(part)) stack.push_back(part);
    };
    const auto of = [&](TermId part) { return json_distances_[part]; };
    switch (term.kind) {
      case Kind::kEmpty: set_json_distance(id, kInfinite); break;
      case Kind::kEpsilon: set_json_distance(id, 0); break;
      case Kind::kLiteral: {
        Distance total = 0;
        for (char character : blob(term.a).substr(term.b)) total = add(total, json_weight(static_cast<uint8_t>(character)));
        set_json_distance(id, total);
        break;
      }
      case Kind::kBytes: {
        Distance best = kInfinite;
        sets_[term.a].for_each([&](uint8_t byte) { best = std::min(best, json_weight(byte)); });
        set_json_distance(id, best);
        break;
      }
      case Kind::kSequence:
        need(term.a);
        need(term.b);
        if (stack.size() == before) set_json_distance(id, add(of(term.a), of(term.b)));
        break;
      case Kind::kChoice: {
        for (TermId item : lists_[term.a]) need(item);
        if (stack.size() != before) break;
        Distance best = kInfinite;
        for (TermId item : lists_[term.a]) best = std::min(best, of(item));
        set_json_distance(id, best);
        break;
      }
      case Kind::kRepeat:
        need(term.a);
        if (stack.size() != before) break;
        set_json_distance(id, term.b == 0 ? 0
                              : of(term.a) == kInfinite
                                  ? kInfinite
                                  : static_cast<Distance>(std::min<uint64_t>(uint64_t{of(term.a)} * term.b, kFar)));
        break;
      case Kind::kPermutation: {
        const Permutation parts(*this, term);
        need(parts.separator);
        need(parts.rest);
        for (uint32_t item : parts.items) need(Permutation::term_of(item));
        if (stack.size() == before) set_json_distance(id, PermutationDistances(parts, of).members());
        break;
      }
      case Kind::kPermutationPrefix: case Kind::kPermutationTail: {
        const TermId same = spelled_out(id);
        need(same);
        if (stack.size() == before) set_json_distance(id, of(same));
        break;
      }
      default:
        missing = id;
        return std::nullopt;
    }
  }
  return json_distances_[root];
}

size_t TermStore::bytes_used() const {
  return terms_.bytes() + distances_.bytes() + json_distances_.bytes() + table_.bytes() +
         lists_.bytes() + blobs_.bytes() + classes_.bytes() + class_terms_.capacity() * 4 + sets_.capacity() * sizeof(ByteSet) + set_table_.bytes();
}

}  // namespace structgen

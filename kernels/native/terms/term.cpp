#include "terms/term.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/portable.h"
#include "terms/permutation.h"

namespace structgen {

namespace {

constexpr uint32_t kSixBits = 6;
// Choices of so many sequences stay whole within others: the members that may come next, one choice for each member
// that came last, would take a list of all members each.
constexpr size_t kSpliced = 512;

STRUCTGEN_INLINE uint64_t hash_term(const Term& term) {
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
  return make(term, hash_term(term), distance);
}

TermId TermStore::make(const Term& term, uint64_t hash, std::optional<Distance> distance) {
  IdTable::Slot* const slot = table_.slot_of(hash, [&](uint32_t id) { return terms_[id] == term; });
  if (slot != nullptr && slot->id != kNone) return slot->id;
  const auto id = static_cast<TermId>(terms_.size());
  const Distance known = distance ? *distance : structural_distance(term);
  terms_.push_back(term);
  distances_.push_back(known);
  table_.insert_at(slot, hash, id);
  if (known == kUnsolved && term.kind != Kind::kAnd && term.kind != Kind::kNot && term.kind != Kind::kJson && term.kind != Kind::kJsonEscape)
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
  if (restricted_ && spellable_ != ByteSet::all()) {
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
  if (unspellable_) return term;  // not cached: it has to be reported each time
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

// `hash`: of the term {kSequence, head, tail}, if it is known.
STRUCTGEN_INLINE TermId TermStore::sequence(TermId head, TermId tail, std::optional<uint64_t> hash) {
  if (head == kEmptyTerm || tail == kEmptyTerm) return kEmptyTerm;
  if (head == kEpsilonTerm) return tail;
  if (tail == kEpsilonTerm) return head;
  const Distance first = distances_[head], rest = distances_[tail];
  if (first == kInfinite || rest == kInfinite) return kEmptyTerm;
  const Term term{Kind::kSequence, head, tail, 0};
  return make(term, hash ? *hash : hash_term(term), first == kUnsolved || rest == kUnsolved ? kUnsolved : add(first, rest));
}

TermId TermStore::sequence(TermId head, TermId tail) { return sequence(head, tail, std::nullopt); }

TermId TermStore::sequence(std::span<const TermId> items) {
  if (items.empty()) return kEpsilonTerm;
  TermId tail = items.back();
  // Most of the terms will be new, one after the other: fetch where they go, for each look-up would wait for memory.
  constexpr size_t kFetched = 16;
  std::array<uint64_t, kFetched> hashes;
  for (size_t left = items.size() - 1; left > 0;) {
    const size_t count = std::min(left, kFetched), first = terms_.size();
    const auto expected = [&](size_t i, TermId before) { return i == 0 ? before : static_cast<TermId>(first + i - 1); };
    for (size_t i = 0; i < count; ++i) {
      hashes[i] = hash_term({Kind::kSequence, items[left - 1 - i], expected(i, tail), 0});
      if (count > 1) table_.prefetch(hashes[i]);
    }
    const TermId before = tail;
    for (size_t i = 0; i < count; ++i) {
      const bool is_expected = tail == expected(i, before);
      tail = sequence(items[left - 1 - i], tail, is_expected ? std::optional(hashes[i]) : std::nullopt);
    }
    left -= count;
  }
  return tail;
}

TermId TermStore::choice(std::vector<TermId> items) { return choice_of(items); }

TermId TermStore::choice_of(std::vector<TermId>& items) {
  // Nested choices are spliced, but for large ones: see kSpliced.  Those that are spliced hold no others.  What they hold
  // comes first: it is sorted, and most often older than the rest.
  const auto is_spliced = [&](TermId item) {
    const auto nested = lists_[terms_[item].a];
    return nested.size() < kSpliced || terms_[nested.back()].kind != Kind::kSequence;
  };
  const size_t before = items.size();
  for (size_t i = 0; i < before; ++i) {
    if (terms_[items[i]].kind != Kind::kChoice || !is_spliced(items[i])) continue;
    const auto nested = lists_[terms_[items[i]].a];
    items[i] = kEmptyTerm;
    items.insert(items.end(), nested.begin(), nested.end());
  }
  if (items.size() > before) std::rotate(items.begin(), items.begin() + static_cast<ptrdiff_t>(before), items.end());
  auto kept = items.begin();
  Distance least = kInfinite;
  bool is_ordered = true, is_solved = true, has_all = false;
  TermId last = kEmptyTerm;  // which none is that is kept
  for (TermId item : items) {
    const Distance distance = distances_[item];
    if (distance == kInfinite) continue;
    is_solved &= distance != kUnsolved;
    least = std::min(least, distance);
    is_ordered &= last < item;
    has_all |= item == everything_;
    *kept++ = last = item;
  }
  items.erase(kept, items.end());
  if (!is_ordered) {
    std::sort(items.begin(), items.end());
    items.erase(std::unique(items.begin(), items.end()), items.end());
  }
  if (has_all) return everything_;
  const size_t compared = items.size();
  drop_narrower(items);
  if (items.empty()) return kEmptyTerm;
  if (items.size() == 1) return items[0];
  const uint64_t list_hash = lists_.hash_of(items);
  lists_.prefetch(list_hash);
  Term term{Kind::kChoice, static_cast<uint32_t>(lists_.size()), 0, 0};  // if the list is new
  uint64_t hash = hash_term(term);
  table_.prefetch(hash);
  const uint32_t list = lists_.intern(items, list_hash);
  if (list != term.a) {
    term.a = list;
    hash = hash_term(term);
  }
  return make(term, hash, items.size() < compared ? structural_distance(term) : is_solved ? least : kUnsolved);
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

void TermStore::reserve(size_t terms, size_t literals, size_t choices) {
  constexpr size_t kMany = 1'024;
  if (terms < kMany) return;
  table_.reserve(terms);
  blobs_.reserve(literals);
  lists_.reserve(choices);
}

size_t TermStore::bytes_used() const {
  return terms_.bytes() + distances_.bytes() + json_distances_.bytes() + table_.bytes() +
         lists_.bytes() + blobs_.bytes() + classes_.bytes() + class_terms_.capacity() * 4 + sets_.capacity() * sizeof(ByteSet) + set_table_.bytes();
}

}  // namespace structgen

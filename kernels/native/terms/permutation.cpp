// Permutations as terms: members in any order, each item at most once, required ones exactly once.
//
// A state is the set of items left with the bounds on the number of members.  It is made when it is reached: while a
// member is read, the term of what follows it (kPermutationTail) only names the set it comes from and the item that
// was taken, so n alternatives cost n terms and not n sets.  Items are sorted by the literals that they begin with,
// as the keys of an object do, so that those with a common prefix are a range: reading the prefix costs one term
// (kPermutationPrefix) a distinct byte, and nothing a candidate.
//
// R. D. Cameron, "Extending context-free grammars with permutation phrases" (1993); A. I. Baars, A. Loeh and
// S. D. Swierstra, "Parsing permutation phrases" (2004).
#include "terms/permutation.h"

#include <optional>

namespace structgen {

namespace {

// A term that begins with a literal, cut after it.
struct Headed {
  uint32_t blob, offset;
  std::string_view text;
  TermId rest;
};

std::optional<Headed> headed(const TermStore& terms, TermId id) {
  const Term& whole = terms[id];
  const bool is_sequence = whole.kind == Kind::kSequence;
  const Term& head = is_sequence ? terms[whole.a] : whole;
  if (head.kind != Kind::kLiteral) return std::nullopt;
  return Headed{head.a, head.b, terms.blob(head.a).substr(head.b), is_sequence ? whole.b : kEpsilonTerm};
}

}  // namespace

TermStore::~TermStore() = default;

TermId TermStore::permutation(TermId separator, TermId rest, std::span<const std::pair<TermId, bool>> members,
                              uint32_t min, uint32_t max) {
  struct Keyed {
    std::string_view text;
    bool is_headed;
    uint32_t item;
  };
  std::vector<Keyed> keyed;
  for (const auto& [term, required] : members) {
    const auto head = headed(*this, term);
    keyed.push_back({head ? head->text : std::string_view{}, head.has_value(), term << 1 | (required ? 1 : 0)});
  }
  std::sort(keyed.begin(), keyed.end(), [](const Keyed& a, const Keyed& b) {
    if (a.is_headed != b.is_headed) return a.is_headed;
    return a.text != b.text ? a.text < b.text : a.item < b.item;
  });
  std::vector<uint32_t> list{separator, rest};
  bool has_required = false;
  for (const Keyed& one : keyed) {
    list.push_back(one.item);
    has_required |= Permutation::is_required(one.item);
  }
  const TermId some = some_members(std::move(list), min, max);
  return min == 0 && !has_required ? choice({kEpsilonTerm, some}) : some;
}

// The term of at least one member, in a canonical form: what can have no part in it is left out, and bounds that
// exclude nothing are dropped.  `list` is as in Permutation.
TermId TermStore::some_members(std::vector<uint32_t> list, uint32_t min, uint32_t max) {
  const auto is_empty = [&](TermId term) { return distances_[term] == kInfinite; };
  bool is_impossible = false;
  uint32_t required = 0;
  list.erase(std::remove_if(list.begin() + 2, list.end(),
                            [&](uint32_t item) {
                              const bool empty = is_empty(Permutation::term_of(item));
                              is_impossible |= empty && Permutation::is_required(item);
                              required += !empty && Permutation::is_required(item);
                              return empty;
                            }),
             list.end());
  if (is_impossible) return kEmptyTerm;
  if (is_empty(list[1])) list[1] = kEmptyTerm;
  if (is_empty(list[0])) max = std::min(max, 1u);
  const uint32_t least = std::max({min, required, 1u});
  if (max < least || (list[1] == kEmptyTerm && list.size() - 2 < least)) return kEmptyTerm;
  if (max == required) {  // no room for others
    std::erase_if(list, [&, at = 0](uint32_t item) mutable { return at++ >= 2 && !Permutation::is_required(item); });
    list[1] = kEmptyTerm;
  }
  const size_t count = list.size() - 2;
  if (list[1] == kEmptyTerm && max >= count) max = kNone;
  if (min <= std::max(required, 1u)) min = 0;
  const TermId separator = list[0], rest = list[1];
  if (count == 0)
    return sequence(rest, repeat(sequence(separator, rest), min == 0 ? 0 : min - 1, max == kNone ? kNone : max - 1));
  if (count == 1 && rest == kEmptyTerm) return Permutation::term_of(list[2]);
  return make({Kind::kPermutation, lists_.intern(list), min, max});
}

const OpenPermutation& TermStore::open(TermId id) {
  if (!opened_ || opened_->id != id) {
    Permutation parts(*this, terms_[id]);
    PermutationDistances distances(parts, [&](TermId term) { return distances_[term]; });
    opened_ = std::make_unique<OpenPermutation>(OpenPermutation{id, std::move(parts), std::move(distances)});
  }
  return *opened_;
}

TermId TermStore::permutation_tail(const OpenPermutation& from, uint32_t index) {
  return make({Kind::kPermutationTail, from.id, index, 0}, from.distances.after(index));
}

// The members after the one that a tail names, and whether there need be none.
std::pair<TermId, bool> TermStore::further_members(TermId tail) {
  const Term term = terms_[tail];
  const Permutation parts(*this, terms_[term.a]);
  std::vector<uint32_t> list{parts.separator, parts.rest};
  bool may_end = parts.min <= 1;
  for (uint32_t i = 0; i < parts.items.size(); ++i) {
    if (i == term.b) continue;
    list.push_back(parts.items[i]);
    may_end &= !Permutation::is_required(parts.items[i]);
  }
  const uint32_t min = parts.min == 0 ? 0 : parts.min - 1, max = parts.max == kNone ? kNone : parts.max - 1;
  return {some_members(std::move(list), min, max), may_end};
}

TermId TermStore::spelled_out(TermId id) {
  const Term term = terms_[id];
  if (term.kind == Kind::kPermutationTail) {
    const TermId separator = lists_[terms_[term.a].a][0];
    const auto [members, may_end] = further_members(id);
    const TermId more = sequence(separator, members);
    return may_end ? choice({kEpsilonTerm, more}) : more;
  }
  const Openings found = openings(id);
  std::vector<TermId> parts = found.terms;
  for (const auto& [byte, rest] : found.bytes) {
    ByteSet set;
    set.insert(byte);
    parts.push_back(sequence(bytes(set), rest));
  }
  return choice(std::move(parts));
}

Openings TermStore::openings(TermId id) {
  const Term term = terms_[id];
  const bool is_prefix = term.kind == Kind::kPermutationPrefix;
  const OpenPermutation& open = this->open(is_prefix ? term.a : id);
  const Permutation& parts = open.parts;
  uint32_t first = 0, last = static_cast<uint32_t>(parts.items.size()), depth = 0;
  if (is_prefix) {
    const auto range = lists_[term.b];
    first = range[0], last = range[1], depth = range[2];
  }
  Openings found;
  struct Group {  // candidates that go on with the same byte
    uint8_t byte = 0;
    uint32_t first = 0, last = 0, alive = 0;
    Distance distance = kInfinite;
  } group;
  const auto close_group = [&] {
    if (group.alive == 1) {
      const Headed head = *headed(*this, Permutation::term_of(parts.items[group.first]));
      const TermId tail = sequence(head.rest, permutation_tail(open, group.first));
      found.bytes.emplace_back(group.byte, sequence(literal_rest(head.blob, head.offset + depth + 1), tail));
    } else if (group.alive > 1) {
      const uint32_t range[] = {group.first, group.last, depth + 1};
      const Term prefix{Kind::kPermutationPrefix, open.id, lists_.intern(range), 0};
      found.bytes.emplace_back(group.byte, make(prefix, group.distance));
    }
    group = {};
  };
  const auto follow = [&](TermId member, uint32_t index) {
    const TermId tail = permutation_tail(open, index);
    if (distances_[member] != 0 || distances_[parts.separator] != 0) {
      found.terms.push_back(sequence(member, tail));
      return;
    }
    // Where both may be empty, skipping them would lead to every subset.  But what is empty together with a separator
    // may as well stand at the end; so here either the member is not empty, or the separator after it is not.
    found.consuming.emplace_back(member, tail);
    found.consuming.emplace_back(parts.separator, further_members(tail).first);
  };
  for (uint32_t i = first; i < last; ++i) {
    if (i > first && parts.items[i] == parts.items[i - 1]) continue;  // taking either leaves the same
    const TermId member = Permutation::term_of(parts.items[i]);
    const Distance after = open.distances.after(i);
    if (after >= kInfinite || distances_[member] >= kInfinite) continue;
    const auto head = headed(*this, member);
    if (!head) {
      follow(member, i);
    } else if (head->text.size() == depth) {
      found.terms.push_back(sequence(head->rest, permutation_tail(open, i)));
    } else {
      const auto byte = static_cast<uint8_t>(head->text[depth]);
      if (group.alive == 0 || byte != group.byte) {
        close_group();
        group = {byte, i, i, 0, kInfinite};
      }
      group.last = i + 1;
      ++group.alive;
      const Distance left = distances_[member] >= kFar ? kFar : distances_[member] - depth - 1;
      group.distance = std::min(group.distance, add(left, after));
    }
  }
  close_group();
  if (!is_prefix && distances_[parts.rest] < kInfinite && open.distances.after(kNone) < kInfinite)
    follow(parts.rest, kNone);
  return found;
}

}  // namespace structgen

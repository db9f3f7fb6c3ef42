// Alternatives that differ from another only in narrower bounds of repetitions, which choices drop.
#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "terms/term.h"

namespace structgen {

// Whether `one` is `other` with narrower bounds of repetitions, as far as the first parts show.  Never true
// of two terms in both directions.
bool TermStore::is_narrower(TermId one, TermId other) const {
  constexpr unsigned kMaxParts = 8;
  const auto front = [&](TermId term) { return terms_[term].kind == Kind::kSequence ? terms_[term].a : term; };
  const auto rest = [&](TermId term) { return terms_[term].kind == Kind::kSequence ? terms_[term].b : kEpsilonTerm; };
  for (unsigned part = 0; part < kMaxParts; ++part) {
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
  constexpr size_t kMaxCompared = 32;
  if (alternatives.size() < 2) return;
  const auto begins_with_symbols = [&](TermId item) {
    const Term& whole = terms_[item];
    const Kind front = whole.kind == Kind::kSequence ? terms_[whole.a].kind : whole.kind;
    return front == Kind::kRepeat || (front == Kind::kBytes && whole.kind == Kind::kSequence);
  };
  if (std::ranges::none_of(alternatives, begins_with_symbols)) return;  // nothing is dropped below
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
    const size_t first = i > kMaxCompared ? i - kMaxCompared : 0, last = std::min(repeated.size(), i + kMaxCompared);
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

}  // namespace structgen

// Terms without their large bounds.
//
// A text of at most n bytes meets no bound on a repetition of more than n items, unless the items may be empty.
#include <algorithm>

#include "automaton/automaton.h"

namespace structgen {

namespace {

constexpr size_t kFewTerms = 64;  // that are looked at for one intersection

bool is_part(Kind kind) {
  return kind == Kind::kSequence || kind == Kind::kChoice || kind == Kind::kRepeat || kind == Kind::kAnd ||
         kind == Kind::kJson || kind == Kind::kJsonEscape;
}

}  // namespace

// What a complement holds keeps its bounds, and so does a term of more parts than `fuel`, which counts those that were
// not looked at before.
std::pair<TermId, uint32_t> Automaton::unbounded_term(TermId root, uint32_t least, size_t& fuel) {
  TermStore& terms = terms_;
  const auto key_of = [&](TermId id) { return uint64_t{id} << 32 | least; };
  std::vector<TermId> stack{root};
  const auto value_of = [&](TermId id) { return is_part(terms[id].kind) ? *unbounded_.find(key_of(id)) : std::pair(id, kNone); };
  while (!stack.empty()) {
    const TermId id = stack.back();
    const Term term = terms[id];
    if (!is_part(term.kind) || unbounded_.contains(key_of(id))) {
      stack.pop_back();
      continue;
    }
    const bool has_list = term.kind == Kind::kChoice || term.kind == Kind::kAnd;
    const size_t count = has_list ? terms.list(term.a).size() : 1;
    if (fuel < count) {
      fuel = 0;
      return {root, kNone};
    }
    fuel -= count;
    std::vector<TermId> parts{term.a};
    if (term.kind == Kind::kSequence) parts.push_back(term.b);
    if (has_list) parts.assign(terms.list(term.a).begin(), terms.list(term.a).end());
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
      if (term.kind == Kind::kAnd) made = conjunction(parts);
      if (term.kind == Kind::kJson) made = json(parts[0]);
      if (term.kind == Kind::kJsonEscape) made = json_escape(parts[0]);
    }
    if (!unbounded_.contains(key_of(id))) unbounded_.insert(key_of(id), std::pair(made, bound));  // or it was met within
    stack.pop_back();
  }
  return value_of(root);
}

// Settles an intersection by the same without its upper bounds: that has all its strings, and no others as short as the
// smallest bound.  Its derivatives by many texts differ in the bounds alone, so that one search serves them all.
bool Automaton::solve_without_bounds(TermId term, Weight weight) {
  constexpr uint32_t kMinBound = 8;
  if (terms_[term].kind != Kind::kAnd) return false;
  const auto list = terms_.list(terms_[term].a);
  std::vector<TermId> parts(list.begin(), list.end());
  uint32_t smallest = kNone;
  size_t fuel = kFewTerms;
  for (TermId& part : parts) {
    const auto [free, bound] = unbounded_term(part, kMinBound, fuel);
    if (fuel == 0) return false;
    part = free;
    smallest = std::min(smallest, bound);
  }
  if (smallest == kNone) return false;
  const TermId free = intersection(std::move(parts));
  if (terms_.distance(free) == kUnsolved && !solve_directly(free)) return false;
  const auto settled = [&](Distance distance) { return distance == kInfinite || distance <= smallest; };
  const Distance plain = terms_.distance(free);
  if (settled(plain) && terms_.distance(term) == kUnsolved) terms_.set_distance(term, plain);
  // No character takes fewer bytes as it is written in a JSON string.
  const bool json_known = terms_.json_known(free) && settled(settled_json_distance(free));
  if (json_known && !terms_.json_known(term)) terms_.set_json_distance(term, settled_json_distance(free));
  return weight == Weight::kPlain ? terms_.distance(term) != kUnsolved : terms_.json_known(term);
}

}  // namespace structgen

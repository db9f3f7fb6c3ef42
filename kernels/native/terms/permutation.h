// Distances of permutations: the cheapest way to write the members that are still due.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "terms/term.h"

namespace structgen {

// A permutation term taken apart.  Its list holds the separator, the term of further members, and the items, each as
// its id times two, plus one where it is required.  Items that begin with literals come first, in the order of these.
struct Permutation {
  TermId separator;
  TermId rest;  // members that may occur any number of times; the empty term: there are none
  std::vector<uint32_t> items;
  uint32_t min;  // at least one member stands even where this is 0
  uint32_t max;

  Permutation(const TermStore& terms, const Term& term) : min(term.b), max(term.c) {
    const auto list = terms.list(term.a);
    separator = list[0];
    rest = list[1];
    items.assign(list.begin() + 2, list.end());
  }
  static TermId term_of(uint32_t item) { return item >> 1; }
  static bool is_required(uint32_t item) { return (item & 1) != 0; }
};

// The shortest members of a permutation, and of what may follow each of its members.  O(1) each after O(n), or
// O(n log k) where k members must be chosen among those that are not required.
class PermutationDistances {
 public:
  // `of`: the distance of a term, kInfinite where it is not known yet.
  template <class Of>
  PermutationDistances(const Permutation& parts, Of&& of)
      : items_(parts.items), min_(parts.min), max_(parts.max), separator_(of(parts.separator)), rest_(of(parts.rest)) {
    distances_.reserve(items_.size());
    for (uint32_t item : items_) {
      const Distance distance = of(Permutation::term_of(item));
      distances_.push_back(distance);
      if (!Permutation::is_required(item)) continue;
      ++required_;
      if (distance >= kInfinite) impossible_ = true;
      else due_ += distance;
    }
    const uint32_t least = std::max(min_, 1u);
    if (least > required_) choose(least - required_);
  }

  Distance members() const {
    const uint32_t count = std::max({min_, required_, 1u});
    if (impossible_ || count > max_) return kInfinite;
    return total(due_, chosen(count - required_), count - 1);
  }

  // After the item at `index`, or after a further member (kNone).
  Distance after(uint32_t index) const {
    if (impossible_ || max_ == 0) return kInfinite;
    const bool is_item = index != kNone, required = is_item && Permutation::is_required(items_[index]);
    const uint32_t due = required_ - (required ? 1 : 0);
    const uint32_t count = std::max(min_ == 0 ? 0 : min_ - 1, due);
    if (max_ != kNone && count > max_ - 1) return kInfinite;
    const uint64_t sum = due_ - (required ? distances_[index] : 0);
    const bool optional = is_item && !required;
    return total(sum, optional ? chosen_without(count - due, distances_[index]) : chosen(count - due), count);
  }

  Distance item(uint32_t index) const { return distances_[index]; }

 private:
  static constexpr uint64_t kNever = UINT64_MAX;

  // Makes costs_[k], the cost of the k cheapest members that are not required, for k up to one beyond `max`.
  void choose(uint32_t max) {
    std::vector<Distance> optional;
    for (size_t i = 0; i < items_.size(); ++i)
      if (!Permutation::is_required(items_[i]) && distances_[i] < kInfinite) optional.push_back(distances_[i]);
    const size_t sorted = std::min<size_t>(size_t{max} + 1, optional.size());
    std::partial_sort(optional.begin(), optional.begin() + static_cast<ptrdiff_t>(sorted), optional.end());
    costs_.push_back(0);
    for (size_t i = 0; i < sorted && optional[i] < rest_; ++i) costs_.push_back(costs_.back() + optional[i]);
  }
  uint64_t chosen(uint32_t count) const {
    if (count == 0) return 0;
    if (count < costs_.size()) return costs_[count];
    if (rest_ >= kInfinite) return kNever;
    return costs_.back() + uint64_t{rest_} * (count - (costs_.size() - 1));
  }
  // The same without one optional member of this cost.
  uint64_t chosen_without(uint32_t count, Distance cost) const {
    if (count == 0) return 0;
    const uint64_t before = chosen(count), beyond = chosen(count + 1);
    if (cost >= rest_) return before;  // a further member is as good
    const bool is_among = before == kNever || cost <= before - chosen(count - 1);
    if (!is_among) return before;
    return beyond == kNever ? kNever : beyond - cost;
  }
  Distance total(uint64_t due, uint64_t chosen, uint64_t separators) const {
    if (chosen == kNever || (separators && separator_ >= kInfinite)) return kInfinite;
    return static_cast<Distance>(std::min<uint64_t>(due + chosen + separators * separator_, kFar));
  }

  std::vector<uint32_t> items_;
  uint32_t min_, max_;
  Distance separator_, rest_;
  std::vector<Distance> distances_;
  std::vector<uint64_t> costs_;
  uint64_t due_ = 0;  // all required items
  uint32_t required_ = 0;
  bool impossible_ = false;
};

// The permutation that was opened last: the states of one derivation query it several times in a row.
struct OpenPermutation {
  TermId id;
  Permutation parts;
  PermutationDistances distances;
};

}  // namespace structgen

#include "languages.h"

#include <algorithm>
#include <stdexcept>

namespace structgen {

namespace {

constexpr size_t kMaxSets = 200;

}  // namespace

Languages::Languages() : automaton_(ByteSet::all()) {
  const Limits limits;
  automaton_.meter().begin(0, limits);
  automaton_.set_regular_limit(limits.regular_states);
}

TermId Languages::term(const Program& program) { return run(program, automaton_, shared_)[program.result]; }

bool Languages::meet(TermId one, TermId other) {
  if (one == kEmptyTerm || other == kEmptyTerm) return false;
  return automaton_.terms().distance(automaton_.conjunction({one, other})) < kInfinite;
}

std::vector<std::vector<size_t>> meeting_sets(Languages& languages, const std::vector<TermId>& terms, std::vector<std::vector<bool>>& meets) {
  if (terms.size() > kMaxSets) throw std::length_error("there are too many patterns");
  meets.assign(terms.size(), std::vector<bool>(terms.size()));
  for (size_t i = 0; i < terms.size(); ++i)
    for (size_t j = 0; j < i; ++j) meets[i][j] = meets[j][i] = languages.meet(terms[i], terms[j]);
  std::vector<std::vector<size_t>> sets;
  for (size_t i = 0; i < terms.size(); ++i) {
    for (size_t known = 0, count = sets.size(); known < count; ++known) {
      if (!std::ranges::all_of(sets[known], [&](size_t other) { return meets[i][other]; })) continue;
      std::vector<size_t> grown = sets[known];
      grown.push_back(i);
      sets.push_back(std::move(grown));
    }
    sets.push_back({i});
    if (sets.size() > kMaxSets) throw std::length_error("the patterns divide the names into too many regions");
  }
  sets.emplace_back();
  return sets;
}

}  // namespace structgen

// Questions about regular languages of texts that the engine answers: what they have in common.
#pragma once

#include <string_view>
#include <vector>

#include "automaton/program.h"

namespace structgen {

class Languages {
 public:
  Languages();
  TermId term(const Program& program);
  TermId text(std::string_view text) { return automaton_.terms().literal(text); }
  // Whether two terms have a text in common.  Throws LimitError where all questions together take too many steps.
  bool meet(TermId one, TermId other);

 private:
  Automaton automaton_;
  SharedRules shared_;
};

// The sets of languages that one text may belong to, as far as pairs of them tell; the empty set is the last.  Throws
// std::length_error where there are too many.
std::vector<std::vector<size_t>> meeting_sets(Languages& languages, const std::vector<TermId>& terms, std::vector<std::vector<bool>>& meets);

}  // namespace structgen

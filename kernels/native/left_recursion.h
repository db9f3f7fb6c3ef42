// Rewrites rules so that none can reach itself without reading something first.
//
// The native twin of structgen.grammar.left_recursion, which states the method and its source, for terms of
// rule_terms.h: it makes the same rules under the same names.
#pragma once

#include <cstdint>

#include "rule_terms.h"

namespace structgen {

// Adds the rules that take the place of left-recursive ones, whose bodies it replaces; nothing where there are none.
// Only rules that `body` leads to are rewritten.  False, with the terms in no particular state, where more than
// `max_nodes` would be made, or a program of its own would have to be taken apart.  O(nodes) without left recursion.
bool remove_left_recursion(RuleTerms& terms, RuleTerm body, uint64_t max_nodes);

}  // namespace structgen

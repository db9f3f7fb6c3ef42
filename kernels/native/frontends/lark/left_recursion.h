// Rewrites rules so that none can reach itself without reading something first.
//
// The same as structgen.grammar.left_recursion, for terms of rule_terms.h: it makes the same rules under the same names.
// That is the reference implementation, and states the method and its source.
#pragma once

#include <cstdint>

#include "frontends/lark/rule_terms.h"

namespace structgen {

// Adds the rules that replace left-recursive ones, and replaces their bodies; nothing where there are none.
// Only rules that `body` leads to are rewritten.  False, with the terms in no particular state, where more than
// `max_nodes` would be made, or a program of its own would have to be taken apart.  O(nodes) without left recursion.
bool remove_left_recursion(RuleTerms& terms, RuleTerm body, uint64_t max_nodes);

}  // namespace structgen

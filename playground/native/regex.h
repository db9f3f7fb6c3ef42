// Regular expressions as terms of rules: the part of two dialects that needs neither look-around nor boundaries.
//
// What it reads has the meaning that docs/regex.md gives it; all else is refused with its place.  The reference
// implementation is structgen.frontends.regex, which reads everything.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "frontends/lark/rule_terms.h"

namespace structgen {

// The characters of \d, \w and \s in a dialect: sorted ranges.
struct RegexClasses {
  std::vector<CodePoints> digits, words, spaces;
};

struct RegexOptions {
  bool is_ecma = false;       // else Python's
  bool searches = false;      // texts in which the pattern matches somewhere; else from end to end
  bool dot_all = false;
  bool ignores_case = false;  // of ASCII letters; others are refused
  bool allows_lazy = true;    // where lazy and greedy repetition mean the same
};

// Throws SourceError.  O(length of the pattern + ranges of its classes).
RuleTerm read_regex(RuleTerms& terms, std::string_view pattern, RegexOptions options, const RegexClasses& classes);

// Sorted, disjoint, without surrogates; all other characters.
std::vector<CodePoints> normal_ranges(std::vector<CodePoints> ranges);
std::vector<CodePoints> other_characters(std::vector<CodePoints> ranges);

}  // namespace structgen

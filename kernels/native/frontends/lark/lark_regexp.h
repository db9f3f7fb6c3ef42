// Strings and regexps of Lark grammars, as far as they are simple.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "frontends/lark/rule_terms.h"

namespace structgen {

// The text of a string or regexp with its escapes read as Lark reads them; nothing where they are malformed.
std::optional<std::string> lark_unescaped(std::string_view body);

// The texts of a regexp of Python's dialect without flags but for `dot_all`, as structgen.frontends.regex makes them;
// kNone where it has more than characters, classes of characters, groups, alternatives and greedy repetition, more
// groups inside each other than `max_depth`, or more parts than `max_parts`.
RuleTerm simple_regexp(RuleTerms& terms, std::string_view text, bool dot_all, uint32_t max_depth, uint64_t max_parts);

// Appends a character in UTF-8; takes the next one off, kNone where that is malformed.
void append_utf8(std::string& out, uint32_t code);
uint32_t take_utf8(std::string_view& text);

}  // namespace structgen

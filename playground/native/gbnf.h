// Grammars in GBNF, the notation of llama.cpp, read to a program.
//
// The reference implementation is structgen.frontends.bnf; docs/gbnf.md states the syntax.  Tokens (`<think>`) are refused.
#pragma once

#include <string_view>

#include "automaton/program.h"

namespace structgen {

// Throws SourceError.  O(length of the text), left recursion aside.
Program read_gbnf(std::string_view text, std::string_view root);

}  // namespace structgen

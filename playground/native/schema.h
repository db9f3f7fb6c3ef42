// JSON Schemas as programs: the native planner of simple schemas, with leaves that are made here.
//
// What the page does not read is refused with its place.  The reference implementation is structgen.frontends.json_schema.
#pragma once

#include <string>

#include "automaton/program.h"
#include "library.h"

namespace structgen {

// Throws SourceError.
Program read_schema(const std::string& text, const Library& library);

}  // namespace structgen

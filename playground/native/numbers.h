// Numbers between bounds, and multiples, as programs; the reference is structgen.frontends.json_schema.emit.number.
#pragma once

#include <cstdint>
#include <optional>

#include "build_program.h"
#include "decimal.h"

namespace structgen {

// The numbers of an interval, with at most 64 digits before the point and after it unless a bound needs more, integers
// alone with `integral`; nothing where there are none.  Throws std::length_error where multiples need too many states.
std::optional<uint32_t> numbers_in(ProgramBuilder& builder, const Interval& interval, bool integral);

}  // namespace structgen

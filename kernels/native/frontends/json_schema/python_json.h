// JSON values of Python as JSON text, and back.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "frontends/json_schema/json_document.h"

namespace structgen {

// The text of a value of dict, list, tuple, str, int, float, bool and None, as json.dumps(value, ensure_ascii=False)
// would write it without spaces.  Nothing where there is another class, a key that is no string, a lone surrogate, a
// number that is not finite, nesting beyond `max_depth`, or more than `max_bytes` of text: a part that occurs often is
// written often.  Runs no Python code.  O(size of the text).
std::optional<std::string> json_text(nanobind::handle value, size_t max_depth, size_t max_bytes);

using KeptNames = std::vector<std::string>;

// The value of a document as json.loads would make it.  `make_number` makes numbers with a point or an exponent from
// their text.  Objects that are members with one of the names `kept` are not made: `keep` is called with their text.
// O(size of the text); throws errors of Python.
nanobind::object json_value(const JsonDocument& document, nanobind::handle make_number, const KeptNames& kept, nanobind::handle keep);

}  // namespace structgen

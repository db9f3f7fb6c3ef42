// JSON values of Python as JSON text.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <optional>
#include <string>

namespace structgen {

// The text of a value of dict, list, tuple, str, int, float, bool and None, as json.dumps(value, ensure_ascii=False)
// would write it without spaces.  Nothing where there is another class, a key that is no string, a lone surrogate, a
// number that is not finite, nesting beyond `max_depth`, or more than `max_bytes` of text: a part that occurs often is
// written often.  Runs no Python code.  O(size of the text).
std::optional<std::string> json_text(nanobind::handle value, size_t max_depth, size_t max_bytes);

}  // namespace structgen

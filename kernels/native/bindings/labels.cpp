// Labels of host names.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <string_view>

#include "bindings/bindings.h"
#include "scopes/label.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

void bind_labels(nb::module_& m) {
  m.def("is_a_label", [](std::string_view text, bool bidi) { return is_a_label(text, bidi ? Direction::kBidi : Direction::kLeftToRight); },
        "text"_a, "bidi"_a);
  m.def("a_label_rest", [](std::string_view text, bool bidi) { return a_label_rest(text, bidi ? Direction::kBidi : Direction::kLeftToRight); },
        "text"_a, "bidi"_a);
}

}  // namespace structgen

// The Python face of unfolding.h and class_scores.h.
#pragma once

#include <nanobind/nanobind.h>

namespace structgen {

void bind_unfolding(nanobind::module_& m);

}  // namespace structgen

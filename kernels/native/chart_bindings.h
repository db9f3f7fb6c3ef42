// The Python face of chart.h.
#pragma once

#include <nanobind/nanobind.h>

namespace structgen {

void bind_charts(nanobind::module_& m);

}  // namespace structgen

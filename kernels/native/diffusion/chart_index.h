// How an index is read from the tables of a chart's plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace structgen {

inline size_t at(const std::vector<int32_t>& values, size_t index) { return static_cast<size_t>(values[index]); }

}  // namespace structgen

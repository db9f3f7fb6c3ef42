// Arrays of numpy as views, vectors as arrays of numpy, and checks of what arrays hold.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

namespace structgen {

template <class Value, size_t dimensions>
using Array = nanobind::ndarray<const Value, nanobind::ndim<dimensions>, nanobind::c_contig, nanobind::device::cpu>;

// An array of numpy that owns what `values` holds.
template <class Value>
nanobind::object to_numpy(std::vector<Value> values, std::initializer_list<size_t> shape) {
  auto* held = new std::vector<Value>(std::move(values));
  nanobind::capsule owner(held, [](void* pointer) noexcept { delete static_cast<std::vector<Value>*>(pointer); });
  return nanobind::cast(nanobind::ndarray<nanobind::numpy, Value>(held->data(), shape, owner));
}

template <class Values>
auto flat(const Values& array) {
  return std::span(array.data(), array.size());
}

inline void check(bool is_right, const char* problem) {
  if (!is_right) throw nanobind::value_error(problem);
}

inline bool all_below(std::span<const int32_t> numbers, size_t bound) {
  return std::all_of(numbers.begin(), numbers.end(), [&](int32_t one) { return one >= 0 && static_cast<size_t>(one) < bound; });
}

}  // namespace structgen

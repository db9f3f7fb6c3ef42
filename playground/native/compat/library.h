// What the engine uses of C++20 and the C++ library of emscripten 3.1.6 lacks: algorithms of std::ranges, uninitialised
// memory.
//
// Included before every file of the module (`-include`); with a newer library there is nothing to do.
#pragma once

#include <algorithm>
#include <bit>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <type_traits>
#include <utility>
#include <version>

#ifndef __cpp_lib_ranges

namespace std::ranges {

template <class Iterator>
struct part {
  Iterator first, last;
  Iterator begin() const { return first; }
  Iterator end() const { return last; }
};

template <class Range, class Test, class By = std::identity>
constexpr bool all_of(Range&& range, Test test, By by = {}) {
  for (auto&& one : range)
    if (!std::invoke(test, std::invoke(by, one))) return false;
  return true;
}
template <class Range, class Test, class By = std::identity>
constexpr bool any_of(Range&& range, Test test, By by = {}) {
  for (auto&& one : range)
    if (std::invoke(test, std::invoke(by, one))) return true;
  return false;
}
template <class Range, class Test, class By = std::identity>
constexpr bool none_of(Range&& range, Test test, By by = {}) {
  return !ranges::any_of(range, test, by);
}
template <class Range, class Test, class By = std::identity>
constexpr auto find_if(Range&& range, Test test, By by = {}) {
  return std::find_if(std::begin(range), std::end(range), [&](auto&& one) { return std::invoke(test, std::invoke(by, one)); });
}
template <class Range, class Test>
constexpr auto find_if_not(Range&& range, Test test) {
  return std::find_if_not(std::begin(range), std::end(range), [&](auto&& one) { return std::invoke(test, one); });
}
template <class Range, class Value, class By = std::identity>
constexpr auto find(Range&& range, const Value& value, By by = {}) {
  return ranges::find_if(range, [&](auto&& one) { return one == value; }, by);
}
template <class Range, class Value>
constexpr auto count(Range&& range, const Value& value) {
  return std::count(std::begin(range), std::end(range), value);
}
template <class Range, class Test, class By = std::identity>
constexpr auto count_if(Range&& range, Test test, By by = {}) {
  return std::count_if(std::begin(range), std::end(range), [&](auto&& one) { return std::invoke(test, std::invoke(by, one)); });
}
template <class One, class Other>
constexpr bool equal(One&& one, Other&& other) {
  return std::equal(std::begin(one), std::end(one), std::begin(other), std::end(other));
}
template <class One, class Other>
constexpr auto mismatch(One&& one, Other&& other) {
  const auto [in1, in2] = std::mismatch(std::begin(one), std::end(one), std::begin(other), std::end(other));
  struct Result {
    decltype(std::begin(one)) in1;
    decltype(std::begin(other)) in2;
  };
  return Result{in1, in2};
}
template <class Range, class Order = std::less<>, class By = std::identity>
constexpr void sort(Range&& range, Order order = {}, By by = {}) {
  std::sort(std::begin(range), std::end(range), [&](auto&& a, auto&& b) { return std::invoke(order, std::invoke(by, a), std::invoke(by, b)); });
}
template <class Range, class Same = std::equal_to<>, class By = std::identity>
constexpr auto unique(Range&& range, Same same = {}, By by = {}) {
  const auto end = std::unique(std::begin(range), std::end(range), [&](auto&& a, auto&& b) { return std::invoke(same, std::invoke(by, a), std::invoke(by, b)); });
  return part<decltype(std::begin(range))>{end, std::end(range)};
}
template <class Range>
constexpr void reverse(Range&& range) {
  std::reverse(std::begin(range), std::end(range));
}
template <class Range, class Test, class By = std::identity>
constexpr auto partition_point(Range&& range, Test test, By by = {}) {
  return std::partition_point(std::begin(range), std::end(range), [&](auto&& one) { return std::invoke(test, std::invoke(by, one)); });
}
template <class Range, class Value, class Order = std::less<>, class By = std::identity>
constexpr auto lower_bound(Range&& range, const Value& value, Order order = {}, By by = {}) {
  return ranges::partition_point(range, [&](auto&& one) { return std::invoke(order, one, value); }, by);
}
template <class Range, class Value, class Order = std::less<>, class By = std::identity>
constexpr bool binary_search(Range&& range, const Value& value, Order order = {}, By by = {}) {
  const auto at = ranges::lower_bound(range, value, order, by);
  return at != std::end(range) && !std::invoke(order, value, std::invoke(by, *at));
}
template <class Range, class Order = std::less<>, class By = std::identity>
constexpr auto min_element(Range&& range, Order order = {}, By by = {}) {
  return std::min_element(std::begin(range), std::end(range), [&](auto&& a, auto&& b) { return std::invoke(order, std::invoke(by, a), std::invoke(by, b)); });
}
template <class Range>
constexpr auto min(Range&& range) {
  return *std::min_element(std::begin(range), std::end(range));
}
template <class Range>
constexpr auto max(Range&& range) {
  return *std::max_element(std::begin(range), std::end(range));
}
template <class Range, class Out, class Work, class By = std::identity>
constexpr void transform(Range&& range, Out out, Work work, By by = {}) {
  std::transform(std::begin(range), std::end(range), out, [&](auto&& one) { return std::invoke(work, std::invoke(by, one)); });
}
template <class Range, class Out, class Test>
constexpr void copy_if(Range&& range, Out out, Test test) {
  std::copy_if(std::begin(range), std::end(range), out, test);
}
template <class Range, class Value>
constexpr void fill(Range&& range, const Value& value) {
  std::fill(std::begin(range), std::end(range), value);
}
template <class Range, class Test = std::equal_to<>>
constexpr auto adjacent_find(Range&& range, Test test = {}) {
  return std::adjacent_find(std::begin(range), std::end(range), test);
}

}  // namespace std::ranges

#endif

#ifndef __cpp_lib_smart_ptr_for_overwrite

namespace std {

template <class Value>
requires(!is_array_v<Value>) unique_ptr<Value> make_unique_for_overwrite() { return unique_ptr<Value>(new Value); }
template <class Value>
requires is_unbounded_array_v<Value> unique_ptr<Value> make_unique_for_overwrite(size_t count) {
  return unique_ptr<Value>(new remove_extent_t<Value>[count]);
}

}  // namespace std

#endif

#ifndef __cpp_lib_bit_cast

namespace std {

template <class To, class From>
constexpr To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

}  // namespace std

#endif

// Arguments of public methods.  A method takes handles and converts them here, so that its errors say what is wrong.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace structgen {

class Matcher;

using Bitmask = nanobind::ndarray<int32_t, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

// Raises the error that the Python face makes for an argument of another kind, or out of its bounds.  `bound` is that of
// the numbers which `argument` may be, where there is one.
[[noreturn]] void refuse_argument(const char* call, const char* argument, nanobind::handle value, size_t bound = 0);

// An argument as a C++ value: first as it is, then by __index__ and the like.
template <class Value>
Value take(const char* call, const char* argument, nanobind::handle given, size_t bound = 0) {
  nanobind::detail::make_caster<Value> caster;
  if (caster.from_python(given, 0, nullptr)) [[likely]] return static_cast<Value&&>(caster);
  Value value{};
  if (!nanobind::try_cast(given, value)) refuse_argument(call, argument, given, bound);
  return value;
}

// A count of tokens that are left.  A larger one than 2**31 has the same masks.
uint32_t take_count(const char* call, const char* argument, nanobind::handle given);
// The same, and nothing for None.
std::optional<uint32_t> take_limit(const char* call, const char* argument, nanobind::handle given);
// None, which nanobind makes a null pointer, is refused too.
std::vector<Matcher*> take_matchers(const char* call, nanobind::handle given);

// Rows of masks, for as long as the object lives.  The array is not copied, which would count its owners once more.
class GivenMask {
 public:
  GivenMask(const char* call, nanobind::handle given) {
    if (!caster_.from_python(given, 0, nullptr)) [[unlikely]] refuse_argument(call, "bitmask", given);
  }
  const Bitmask& operator*() const { return caster_.value; }

 private:
  nanobind::detail::make_caster<Bitmask> caster_;
};

}  // namespace structgen

// Arguments that are refused: the Python face makes the error.
#include "bindings/arguments.h"

#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings/bindings.h"
#include "matcher/matcher.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

namespace {

constexpr int64_t kMaxCount = int64_t{1} << 31;

nb::object argument_error;  // called as argument_error(call, argument, value, bound); set by the Python face

}  // namespace

void refuse_argument(const char* call, const char* argument, nb::handle value, size_t bound) {
  if (!argument_error.is_valid()) throw nb::type_error(argument);
  const nb::object error = argument_error(call, argument, value, bound);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

uint32_t take_count(const char* call, const char* argument, nb::handle given) {
  int64_t count = 0;
  if (!nb::try_cast(given, count, false) && !nb::try_cast(given, count)) {
    int overflow = 0;  // of an int that an int64 does not hold
    if (!PyLong_Check(given.ptr()) || (PyLong_AsLongLongAndOverflow(given.ptr(), &overflow), overflow <= 0))
      refuse_argument(call, argument, given);
    return kMaxCount;
  }
  if (count < 0) refuse_argument(call, argument, given);
  return static_cast<uint32_t>(std::min(count, kMaxCount));
}

std::optional<uint32_t> take_limit(const char* call, const char* argument, nb::handle given) {
  if (given.is_none()) return std::nullopt;
  return take_count(call, argument, given);
}

std::vector<Matcher*> take_matchers(const char* call, nb::handle given) {
  auto matchers = take<std::vector<Matcher*>>(call, "matchers", given);
  if (std::find(matchers.begin(), matchers.end(), nullptr) != matchers.end()) refuse_argument(call, "matchers", given);
  return matchers;
}

void bind_arguments(nb::module_& m) {
  m.def("set_argument_error", [](nb::object type) { argument_error = std::move(type); }, "type"_a);
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] { argument_error.reset(); }));
}

}  // namespace structgen

// The errors that the engine raises on purpose.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <exception>
#include <utility>

#include "base/limits.h"
#include "bindings/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

void bind_errors(nb::module_& m) {
  static nb::object limit_error;  // called as limit_error(name, maximum, evidence); set by the Python face
  m.def("set_limit_error", [](nb::object type) { limit_error = std::move(type); }, "type"_a);
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] { limit_error.reset(); }));
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const LimitError& error) {
      if (!limit_error.is_valid()) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return;
      }
      try {
        nb::object value = limit_error(error.limit, error.maximum, error.evidence);
        PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())), value.ptr());
      } catch (nb::python_error& raised) {
        raised.restore();
      }
    }
  });
}

}  // namespace structgen

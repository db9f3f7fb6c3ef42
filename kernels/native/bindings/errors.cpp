// The errors that the engine raises on purpose.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <exception>
#include <utility>

#include "base/interrupt.h"
#include "base/limits.h"
#include "bindings/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

namespace {

// Lets Python handle its signals, which only its main thread does: Ctrl-C raises KeyboardInterrupt.  No thread may wait
// for a lock of the engine for more than a millisecond while it holds the GIL, for it is waited for here with such locks.
void look_for_signals() {
  if (!PyGILState_GetThisThreadState()) {  // a helper of thread_pool.h
    if (stop_helpers) throw Interrupted{};
    return;
  }
  static thread_local bool is_known = false, is_main = false;
  if (is_known && !is_main) return;
  nb::gil_scoped_acquire acquire;
  if (!is_known) {
    const nb::object threading = nb::module_::import_("threading");
    is_main = nb::cast<uint64_t>(threading.attr("main_thread")().attr("ident")) == nb::cast<uint64_t>(threading.attr("get_ident")());
    is_known = true;
  }
  if (is_main && PyErr_CheckSignals() != 0) throw Interrupted{std::make_exception_ptr(nb::python_error())};
}

}  // namespace

void bind_errors(nb::module_& m) {
  check_interrupt = look_for_signals;
  // Any function that is written in Python: its first instruction does what the interpreter does between instructions.
  // To give up the GIL and take it again would start the wait of other threads anew each time, so that they never ask.
  static nb::object python_function = nb::module_::import_("threading").attr("main_thread");
  let_others_run = [] {
    if (python_function.is_valid()) python_function();
  };
  static nb::object limit_error;  // called as limit_error(name, maximum, evidence); set by the Python face
  m.def("set_limit_error", [](nb::object type) { limit_error = std::move(type); }, "type"_a);
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] {
    python_function.reset();
    limit_error.reset();
  }));
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Interrupted& interrupted) {
      try {
        std::rethrow_exception(interrupted.error);
      } catch (nb::python_error& raised) {
        raised.restore();
      }
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

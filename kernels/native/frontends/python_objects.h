// Parts of Python's containers, by its stable ABI where that is wanted, and safely where there is no lock of the
// interpreter.
#pragma once

#include <nanobind/nanobind.h>

#include "base/portable.h"

namespace structgen {

// Of a tuple.
STRUCTGEN_INLINE Py_ssize_t tuple_size(PyObject* tuple) {
#if defined(Py_LIMITED_API)
  return PyTuple_Size(tuple);
#else
  return PyTuple_GET_SIZE(tuple);
#endif
}

// Of a tuple, which keeps it alive; the index must be in range.
STRUCTGEN_INLINE PyObject* tuple_item(PyObject* tuple, size_t index) {
#if defined(Py_LIMITED_API)
  return PyTuple_GetItem(tuple, static_cast<Py_ssize_t>(index));
#else
  return PyTuple_GET_ITEM(tuple, static_cast<Py_ssize_t>(index));
#endif
}

// The value of a key of a dict; an empty object where there is none.  Raises what the comparison of keys does.
inline nanobind::object dict_value(nanobind::handle dict, nanobind::handle key) {
#if defined(Py_GIL_DISABLED)
  PyObject* held = nullptr;
  PyDict_GetItemRef(dict.ptr(), key.ptr(), &held);
  nanobind::object value = nanobind::steal(held);
#else
  nanobind::object value = nanobind::borrow(PyDict_GetItemWithError(dict.ptr(), key.ptr()));
#endif
  if (!value.is_valid() && PyErr_Occurred()) throw nanobind::python_error();
  return value;
}

// The dict, list or tuple for a walk through it: a copy where other threads may change it meanwhile.  Empty after an
// error of Python.
inline nanobind::object unchanging(PyObject* container) {
#if defined(Py_GIL_DISABLED)
  if (PyDict_CheckExact(container)) return nanobind::steal(PyDict_Copy(container));
  if (PyList_CheckExact(container)) return nanobind::steal(PyList_AsTuple(container));
#endif
  return nanobind::borrow(container);
}

}  // namespace structgen

#include "frontends/json_schema/python_json.h"

#include <cmath>
#include <string_view>
#include <vector>

#include "frontends/json_schema/json_document.h"

namespace nb = nanobind;

namespace structgen {

namespace {

class JsonWriter {
 public:
  JsonWriter(size_t max_depth, size_t max_bytes) : max_depth_(max_depth), max_bytes_(max_bytes) {}

  std::optional<std::string> all(PyObject* root) {
    if (!begin(root)) return std::nullopt;
    while (!open_.empty()) {
      if (out_.size() > max_bytes_ || !go_on()) return std::nullopt;
    }
    return std::move(out_);
  }

 private:
  struct Container {
    PyObject* object;
    Py_ssize_t next = 0;
    bool is_first = true;
  };

  // Writes the next part of the innermost container, or closes it.
  bool go_on() {
    Container& here = open_.back();
    PyObject *key = nullptr, *value = nullptr;
    if (PyDict_CheckExact(here.object)) {
      if (!PyDict_Next(here.object, &here.next, &key, &value)) return close('}');
    } else if (here.next < PySequence_Fast_GET_SIZE(here.object)) {
      value = PySequence_Fast_GET_ITEM(here.object, here.next++);
    } else {
      return close(']');
    }
    if (!here.is_first) out_.push_back(',');
    here.is_first = false;
    if (key != nullptr) {
      if (!PyUnicode_CheckExact(key) || !string(key)) return false;
      out_.push_back(':');
    }
    return begin(value);
  }

  bool close(char bracket) {
    out_.push_back(bracket);
    open_.pop_back();
    return true;
  }

  bool begin(PyObject* value) {
    if (PyUnicode_CheckExact(value)) return string(value);
    if (PyDict_CheckExact(value) || PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
      if (open_.size() >= max_depth_) return false;
      open_.push_back({value});
      out_.push_back(PyDict_CheckExact(value) ? '{' : '[');
      return true;
    }
    if (value == Py_None || value == Py_True || value == Py_False) {
      out_ += value == Py_None ? "null" : value == Py_True ? "true" : "false";
      return true;
    }
    if (PyFloat_CheckExact(value) ? !std::isfinite(PyFloat_AS_DOUBLE(value)) : !PyLong_CheckExact(value)) return false;
    const nb::object digits = nb::steal(PyObject_Repr(value));
    if (!digits.is_valid()) {
      PyErr_Clear();  // an integer of too many digits
      return false;
    }
    return append(digits.ptr(), [this](std::string_view text) { out_ += text; });
  }

  bool string(PyObject* text) {
    return append(text, [this](std::string_view bytes) { append_quoted(bytes, out_); });
  }

  template <class Append>
  static bool append(PyObject* text, Append&& append) {
    Py_ssize_t size = 0;
    const char* data = PyUnicode_AsUTF8AndSize(text, &size);
    if (data == nullptr) {
      PyErr_Clear();  // a lone surrogate
      return false;
    }
    append(std::string_view(data, static_cast<size_t>(size)));
    return true;
  }

  size_t max_depth_, max_bytes_;
  std::string out_;
  std::vector<Container> open_;
};

}  // namespace

std::optional<std::string> json_text(nb::handle value, size_t max_depth, size_t max_bytes) {
  return JsonWriter(max_depth, max_bytes).all(value.ptr());
}

}  // namespace structgen

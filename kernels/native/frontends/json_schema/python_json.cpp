#include "frontends/json_schema/python_json.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/interrupt.h"
#include "frontends/json_schema/json_document.h"
#include "frontends/python_objects.h"

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
    nb::object object;
    Py_ssize_t next = 0;
    bool is_first = true;
  };

  // Writes the next part of the innermost container, or closes it.
  bool go_on() {
    Container& here = open_.back();
    PyObject *key = nullptr, *value = nullptr;
    if (PyObject* const object = here.object.ptr(); PyDict_CheckExact(object)) {
      if (!PyDict_Next(object, &here.next, &key, &value)) return close('}');
    } else if (PyTuple_CheckExact(object)) {
      if (here.next == tuple_size(object)) return close(']');
      value = tuple_item(object, static_cast<size_t>(here.next++));
    } else {
      if (here.next >= PyList_Size(object)) return close(']');
      value = PyList_GetItem(object, here.next++);
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
      open_.push_back({unchanging(value)});
      if (!open_.back().object.is_valid()) throw nb::python_error();
      out_.push_back(PyDict_CheckExact(value) ? '{' : '[');
      return true;
    }
    if (value == Py_None || value == Py_True || value == Py_False) {
      out_ += value == Py_None ? "null" : value == Py_True ? "true" : "false";
      return true;
    }
    if (PyFloat_CheckExact(value) ? !std::isfinite(PyFloat_AsDouble(value)) : !PyLong_CheckExact(value)) return false;
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

nb::object text_of(std::string_view text) { return nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr)); }

// Makes values from the leaves on: in a document the parts of a value come before it.
class JsonMaker {
 public:
  JsonMaker(const JsonDocument& document, nb::handle make_number, const KeptNames& kept, nb::handle keep)
      : document_(document), make_number_(make_number), kept_(kept), keep_(keep), uses_(document.size()), made_(document.size()) {}

  nb::object all() {
    choose();
    for (ValueId id = 0; id < document_.size(); ++id) {
      if (uses_[id] == Use::kValue) made_[id] = value(id);
      else if (uses_[id] == Use::kText) made_[id] = keep_(text_of(document_.source(id)));
      if (uses_[id] != Use::kNone && !made_[id].is_valid()) throw nb::python_error();
      pulse_.beat();
    }
    return std::move(made_[document_.root()]);
  }

 private:
  enum class Use : uint8_t { kNone, kValue, kText };

  // Says which values are made, and where the text alone is kept.
  void choose() {
    uses_[document_.root()] = Use::kValue;
    for (ValueId id = document_.root() + 1; id-- > 0;) {
      if (uses_[id] != Use::kValue) continue;
      if (document_.kind(id) == JsonKind::kArray) {
        for (ValueId item : document_.items(id)) uses_[item] = Use::kValue;
      } else if (document_.kind(id) == JsonKind::kObject) {
        for (const auto& [name, member] : document_.members(id)) uses_[member] = is_kept(name, member) ? Use::kText : Use::kValue;
      }
    }
  }

  bool is_kept(std::string_view name, ValueId id) const {
    return document_.kind(id) == JsonKind::kObject && std::ranges::find(kept_, name) != kept_.end();
  }

  // Null after an error of Python.
  nb::object value(ValueId id) {
    switch (document_.kind(id)) {
      case JsonKind::kNull: return nb::none();
      case JsonKind::kFalse: return nb::borrow(Py_False);
      case JsonKind::kTrue: return nb::borrow(Py_True);
      case JsonKind::kInteger: return nb::steal(PyLong_FromString(std::string(document_.source(id)).c_str(), nullptr, 10));
      case JsonKind::kFraction: return make_number_(text_of(document_.source(id)));
      case JsonKind::kString: return text_of(document_.string(id));
      case JsonKind::kArray: return array(id);
      case JsonKind::kObject: return object(id);
    }
    return {};
  }

  nb::object array(ValueId id) {
    const std::span<const ValueId> items = document_.items(id);
    nb::object made = nb::steal(PyList_New(static_cast<Py_ssize_t>(items.size())));
    for (size_t i = 0; made.is_valid() && i < items.size(); ++i)
      PyList_SetItem(made.ptr(), static_cast<Py_ssize_t>(i), made_[items[i]].release().ptr());
    return made;
  }

  nb::object object(ValueId id) {
    nb::object made = nb::steal(PyDict_New());
    if (!made.is_valid()) return made;
    for (const auto& [name, member] : document_.members(id)) {
      nb::object& key = names_[name];
      if (!key.is_valid()) key = text_of(name);
      if (!key.is_valid() || PyDict_SetItem(made.ptr(), key.ptr(), made_[member].ptr()) != 0) return {};
      made_[member].reset();
    }
    return made;
  }

  const JsonDocument& document_;
  const nb::handle make_number_;
  const KeptNames& kept_;
  const nb::handle keep_;
  std::vector<Use> uses_;
  std::vector<nb::object> made_;                          // where its container has not taken it yet
  std::unordered_map<std::string_view, nb::object> names_;  // each once
  GilPulse pulse_;
};

}  // namespace

nb::object json_value(const JsonDocument& document, nb::handle make_number, const KeptNames& kept, nb::handle keep) {
  return JsonMaker(document, make_number, kept, keep).all();
}

std::optional<std::string> json_text(nb::handle value, size_t max_depth, size_t max_bytes) {
  return JsonWriter(max_depth, max_bytes).all(value.ptr());
}

}  // namespace structgen

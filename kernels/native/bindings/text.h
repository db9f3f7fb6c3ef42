// Strings and bytes of Python as views, and back.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string_view>

namespace structgen {

inline std::string_view view(const nanobind::bytes& data) { return {static_cast<const char*>(data.data()), data.size()}; }

inline nanobind::bytes to_bytes(std::string_view data) { return nanobind::bytes(data.data(), data.size()); }

// The text in UTF-8, which lives as long as `text`; nothing where it has a lone surrogate.
inline std::optional<std::string_view> utf8(const nanobind::str& text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) {
    PyErr_Clear();
    return std::nullopt;
  }
  return std::string_view(data, static_cast<size_t>(size));
}

}  // namespace structgen

// What the page says of a text that it cannot use.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

namespace structgen {

// A text is malformed, or asks for more than this build reads.  Offsets are bytes of the text.
struct SourceError : std::runtime_error {
  SourceError(const std::string& problem, size_t begin, size_t end, bool is_unread = false)
      : std::runtime_error(problem), begin(begin), end(end), is_unread(is_unread) {}
  size_t begin, end;
  bool is_unread;  // the Python side may read it
};

}  // namespace structgen

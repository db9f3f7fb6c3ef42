// The reader of simple Lark grammars.
#include <nanobind/nanobind.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "bindings/bindings.h"
#include "bindings/text.h"
#include "frontends/lark/lark_reader.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

namespace {

// The program of a simple Lark grammar; None if it is not simple.
std::unique_ptr<FlatGrammar> read_lark(LarkReader& reader, nb::str text, nb::str start, uint64_t max_nodes, uint32_t max_depth) {
  const std::optional<std::string_view> source = utf8(text), rule = utf8(start);
  if (!source || !rule) return nullptr;
  return reader.read(std::string(*source), *rule, {max_nodes, max_depth});
}

}  // namespace

void bind_lark(nb::module_& m) {
  nb::class_<LarkReader>(m, "LarkReader", "Reads plain Lark grammars.")
      .def(nb::init<nb::object, nb::object>(), "library"_a, "leaf"_a)
      .def("read", &read_lark, "text"_a, "start"_a, "max_nodes"_a, "max_depth"_a, nb::lock_self());
}

}  // namespace structgen

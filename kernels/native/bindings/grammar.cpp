// Grammars as programs, and what makes them from the nodes of the Python side.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <string_view>

#include "bindings/bindings.h"
#include "bindings/text.h"
#include "frontends/flatten.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

namespace {

// For each instruction: kind, decoded, operands or text, low, high, required.
nb::list instructions(const FlatGrammar& grammar) {
  using Kind = Instruction::Kind;
  const Program& program = grammar.program;
  nb::list all;
  for (const Instruction& one : program.instructions) {
    nb::object operands;
    if (one.kind == Kind::kLiteral) {
      operands = to_bytes(std::string_view(program.text).substr(one.begin, one.end - one.begin));
    } else {
      nb::list list;
      const bool are_ranges = one.kind == Kind::kBytes || one.kind == Kind::kChars;
      for (uint32_t i = one.begin; i < one.end; ++i)
        list.append(are_ranges ? nb::cast(program.ranges[i]) : nb::cast(program.operands[i]));
      operands = nb::tuple(list);
    }
    all.append(nb::make_tuple(static_cast<int>(one.kind), one.decoded, operands, one.low, one.high, one.required));
  }
  return all;
}

}  // namespace

void bind_grammar(nb::module_& m) {
  nb::class_<FlatGrammar>(m, "FlatGrammar", "A grammar as a list of instructions, independent of any engine but for known terms.")
      .def_prop_ro("memory_bytes", [](const FlatGrammar& self) { return self.program.bytes(); })
      .def_prop_ro("size", [](const FlatGrammar& self) { return self.program.instructions.size(); })
      .def("to_bytes", [](const FlatGrammar& self, const std::vector<Distance>& distances) { return to_bytes(pack(self.program, distances)); }, "distances"_a = std::vector<Distance>())
      .def_static("from_bytes", [](nb::bytes data, uint32_t max_instructions) { return FlatGrammar{unpack(view(data), max_instructions), {}}; }, "data"_a, "max_instructions"_a = kNone)
      .def_prop_ro("rules", [](const FlatGrammar& self) { return self.program.rules; })
      .def_prop_ro("result", [](const FlatGrammar& self) { return self.program.result; })
      .def_prop_ro("instructions", &instructions)
      .def_prop_ro("shared", [](const FlatGrammar& self) {
        nb::list nodes;
        for (const FlatGrammar::Kept& kept : self.shared) nodes.append(kept.node);
        return nodes;
      });

  nb::class_<Flattener>(m, "Flattener")
      .def(nb::init<nb::handle>(), "classes"_a)
      .def("flatten", &Flattener::flatten, "grammar"_a, "known"_a, "host"_a, "vocabulary"_a.none(), "max_nodes"_a, "rewrite"_a.none())
      .def("untrack", &Flattener::untrack, "term"_a);
}

}  // namespace structgen

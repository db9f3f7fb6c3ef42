// Automata as tables, and the classes of tokens and states in them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "diffusion/unfolding.h"
#include "matcher/matcher.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

namespace {

nb::object table(const std::vector<std::array<int32_t, 256>>& rows) {
  std::vector<int32_t> flat;
  flat.reserve(rows.size() * 256);
  for (const auto& row : rows) flat.insert(flat.end(), row.begin(), row.end());
  return to_numpy(std::move(flat), {rows.size(), 256});
}

nb::object triples(const std::vector<std::tuple<uint32_t, uint32_t, uint32_t>>& rows) {
  std::vector<int32_t> flat;
  for (const auto& [a, b, c] : rows)
    for (uint32_t one : {a, b, c}) flat.push_back(static_cast<int32_t>(one));
  return to_numpy(std::move(flat), {rows.size(), 3});
}

nb::object classes_of_tokens(const TokenTrie& tokens, size_t vocabulary_size, const Array<int32_t, 2>& next, size_t max_moves) {
  check(next.shape(1) == 256, "token_classes: a row of the table has 256 targets");
  check(vocabulary_size >= tokens.size(), "token_classes: vocabulary size is below the number of tokens");
  const size_t states = next.shape(0);
  for (int32_t target : flat(next)) check(target < static_cast<int64_t>(states), "token_classes: a target is out of range");
  TokenClasses made;
  {
    nb::gil_scoped_release release;
    made = token_classes(tokens, vocabulary_size, flat(next), states, max_moves);
  }
  if (!made.complete) return nb::object(nb::none());
  const size_t size = made.of.size(), begins = made.begin.size(), moves = made.sources.size();
  return nb::object(nb::make_tuple(to_numpy(std::move(made.of), {size}), to_numpy(std::move(made.begin), {begins}),
                                   to_numpy(std::move(made.sources), {moves}), to_numpy(std::move(made.targets), {moves})));
}

nb::object futures_of_states(const Array<int32_t, 2>& next, const Array<uint8_t, 1>& accepting, const Array<int32_t, 2>& specials) {
  const size_t states = accepting.shape(0);
  check(next.shape(0) == states && next.shape(1) == 256 && specials.shape(1) == 3, "equal_futures: the shapes do not fit together");
  const auto bound = static_cast<int64_t>(states);
  for (int32_t target : flat(next)) check(target < bound, "equal_futures: a target is out of range");
  std::vector<std::array<int32_t, 3>> edges;
  for (size_t i = 0; i < specials.shape(0); ++i) {
    edges.push_back({specials(i, 0), specials(i, 1), specials(i, 2)});
    for (int32_t state : {edges.back()[0], edges.back()[2]})
      check(0 <= state && state < bound, "equal_futures: a state is out of range");
  }
  std::vector<int32_t> made;
  {
    nb::gil_scoped_release release;
    made = equal_futures(flat(next), flat(accepting), edges);
  }
  return to_numpy(std::move(made), {states});
}

}  // namespace

void bind_unfolding(nb::module_& m) {
  m.def("unfold",
        [](const Constraint& constraint, size_t max_states) {
          ByteAutomaton made;
          {
            nb::gil_scoped_release release;
            made = constraint.exclusively([&](Home& here) { return unfold(here.engine->machine(), here.start(), max_states); });
          }
          if (!made.complete) return nb::object(nb::none());
          const size_t states = made.next.size();
          return nb::object(nb::make_tuple(table(made.next), to_numpy(std::move(made.accepting), {states}), triples(made.specials)));
        },
        "constraint"_a, "most_states"_a);
  m.def("unfold_calls",
        [](const Constraint& constraint, size_t max_states) {
          ByteNetwork made;
          {
            nb::gil_scoped_release release;
            made = constraint.exclusively(
                [&](Home& here) { return unfold_calls(here.engine->machine().automaton(), here.term, max_states); });
          }
          if (!made.complete) return nb::object(nb::none());
          const size_t states = made.next.size();
          return nb::object(nb::make_tuple(table(made.next), to_numpy(std::move(made.final), {states}), triples(made.calls), triples(made.specials)));
        },
        "constraint"_a, "most_states"_a);
  m.def("called_rules",
        [](const Constraint& constraint, size_t max_states) {
          std::vector<std::pair<uint32_t, std::string>> names;
          nb::gil_scoped_release release;  // who waits for the engine with it would keep the engine from asking for it
          constraint.exclusively([&](Home& here) {
            Automaton& automaton = here.engine->machine().automaton();
            names.clear();
            for (const auto& [start, rule] : unfold_calls(automaton, here.term, max_states).rules)
              names.emplace_back(start, automaton.terms().rule_name(rule));
          });
          return names;
        },
        "constraint"_a, "most_states"_a);
  m.def("token_classes", &classes_of_tokens, "tokens"_a, "vocabulary_size"_a, "next"_a.noconvert(), "most_moves"_a);
  m.def("equal_futures", &futures_of_states, "next"_a.noconvert(), "accepting"_a.noconvert(), "specials"_a.noconvert());
}

}  // namespace structgen

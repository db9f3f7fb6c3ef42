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
#include "diffusion/token_effects.h"
#include "diffusion/unfolding.h"
#include "matcher/matcher.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

namespace {

template <class Row>
nb::object triples(const std::vector<Row>& rows) {
  std::vector<int32_t> flat;
  for (const auto& [a, b, c] : rows)
    for (auto one : {a, b, c}) flat.push_back(static_cast<int32_t>(one));
  return to_numpy(std::move(flat), {rows.size(), 3});
}

ByteColumns columns_of(const Array<uint8_t, 1>& kind_of, const Array<int32_t, 2>& targets) {
  const size_t kinds = targets.shape(0), states = targets.shape(1);
  check(kind_of.size() == 256 && kinds > 0, "byte columns: a kind for each of 256 bytes, and a column for each kind");
  for (uint8_t kind : flat(kind_of)) check(kind < kinds, "byte columns: a kind is out of range");
  for (int32_t target : flat(targets)) check(target < static_cast<int64_t>(states), "byte columns: a target is out of range");
  return {flat(kind_of), states, flat(targets)};
}

// None for the tables beyond a limit.
nb::object classes_of_tokens(const TokenTrie& tokens, size_t vocabulary_size, const Array<uint8_t, 1>& kind_of, const Array<int32_t, 2>& targets,
                             size_t max_moves, size_t max_steps) {
  check(vocabulary_size >= tokens.size(), "token_classes: vocabulary size is below the number of tokens");
  const ByteColumns next = columns_of(kind_of, targets);
  TokenClasses made;
  {
    nb::gil_scoped_release release;
    made = token_classes(tokens, vocabulary_size, next, max_moves, max_steps);
  }
  if (!made.complete) return nb::make_tuple(made.steps, nb::none());
  const size_t size = made.of.size(), begins = made.begin.size(), moves = made.sources.size();
  return nb::make_tuple(made.steps, nb::make_tuple(to_numpy(std::move(made.of), {size}), to_numpy(std::move(made.begin), {begins}),
                                                   to_numpy(std::move(made.sources), {moves}), to_numpy(std::move(made.targets), {moves})));
}

std::vector<std::array<int32_t, 3>> rows_of(const Array<int32_t, 2>& rows, const char* problem) {
  check(rows.shape(1) == 3, problem);
  std::vector<std::array<int32_t, 3>> made(rows.shape(0));
  for (size_t i = 0; i < made.size(); ++i) made[i] = {rows(i, 0), rows(i, 1), rows(i, 2)};
  return made;
}

nb::object futures_of_states(const Array<int32_t, 2>& next, const Array<uint8_t, 1>& accepting, const Array<int32_t, 2>& specials) {
  const auto states = static_cast<int64_t>(accepting.size());
  const size_t kinds = next.shape(1);
  check(next.shape(0) == accepting.size() && kinds <= 256 && specials.shape(1) == 3, "equal_futures: the shapes do not fit together");
  for (int32_t target : flat(next)) check(target < states, "equal_futures: a target is out of range");
  const auto others = rows_of(specials, "equal_futures: an edge is a state, a token and a state");
  for (const auto& edge : others)
    for (int32_t state : {edge[0], edge[2]}) check(0 <= state && state < states, "equal_futures: a state is out of range");
  std::vector<int32_t> made;
  {
    nb::gil_scoped_release release;
    std::vector<int32_t> targets;
    for (size_t kind = 0; kind < kinds; ++kind)
      for (size_t row = 0; row < next.size(); row += kinds) targets.push_back(next.data()[row + kind]);
    made = equal_futures({{}, accepting.size(), targets}, flat(accepting), others);
  }
  return to_numpy(std::move(made), {accepting.size()});
}

template <class Value>
nb::object numbers(std::vector<Value> values) {
  const size_t size = values.size();
  return to_numpy(std::move(values), {size});
}

nb::object effects_of_tokens(const TokenTrie& tokens, size_t vocabulary_size, const Array<int32_t, 2>& next, const Array<uint8_t, 1>& final,
                             const Array<int32_t, 2>& calls, const Array<int32_t, 2>& specials, size_t max_effects, size_t max_steps) {
  const size_t states = final.shape(0);
  check(next.shape(0) == states && next.shape(1) == 256, "token_effects: the shapes do not fit together");
  check(vocabulary_size >= tokens.size(), "token_effects: vocabulary size is below the number of tokens");
  const auto called = rows_of(calls, "token_effects: a call is three states"), others = rows_of(specials, "token_effects: a special token leads to a state");
  const auto is_state = [&](int32_t one) { return one >= 0 && static_cast<size_t>(one) < states; };
  for (int32_t target : flat(next)) check(target < static_cast<int64_t>(states), "token_effects: a target is out of range");
  for (const auto& call : called) check(is_state(call[0]) && is_state(call[1]) && is_state(call[2]), "token_effects: a state is out of range");
  for (const auto& [state, token, after] : others)
    check(is_state(state) && is_state(after) && token >= 0 && static_cast<size_t>(token) < vocabulary_size, "token_effects: a state or token is out of range");
  TokenEffects made;
  {
    nb::gil_scoped_release release;
    made = token_effects(tokens, vocabulary_size, {flat(next), flat(final), called, others}, max_effects, max_steps);
  }
  constexpr const char* kEnds[] = {"", "steps", "effects", "recursion"};
  if (made.end != TokenEffects::End::kComplete) return nb::make_tuple(made.steps, kEnds[static_cast<size_t>(made.end)], nb::none());
  return nb::make_tuple(made.steps, "",
                        nb::make_tuple(numbers(std::move(made.of)), numbers(std::move(made.single_begin)), numbers(std::move(made.single)),
                                       numbers(std::move(made.left_begin)), numbers(std::move(made.left)), numbers(std::move(made.other_begin)),
                                       numbers(std::move(made.other)), numbers(std::move(made.below)), numbers(std::move(made.top))));
}

nb::object edges_of_moves(const Array<int32_t, 2>& moves, size_t states) {
  const auto rows = rows_of(moves, "labelled_edges: a move is a source, a target and a class");
  for (const auto& row : rows)
    for (size_t at : {0, 1}) check(0 <= row[at] && static_cast<size_t>(row[at]) < states, "labelled_edges: a state is out of range");
  LabelledEdges made;
  {
    nb::gil_scoped_release release;
    made = labelled_edges(rows, states);
  }
  const size_t edges = made.source.size(), begins = made.label_begin.size(), classes = made.label_class.size();
  return nb::make_tuple(to_numpy(std::move(made.source), {edges}), to_numpy(std::move(made.target), {edges}), to_numpy(std::move(made.label), {edges}),
                        to_numpy(std::move(made.label_begin), {begins}), to_numpy(std::move(made.label_class), {classes}));
}

}  // namespace

void bind_unfolding(nb::module_& m) {
  m.def("unfold",
        [](const Constraint& constraint, size_t max_states) {
          std::vector<int32_t> next;
          ByteAutomaton made;
          {
            nb::gil_scoped_release release;
            made = constraint.exclusively([&](Home& here) { return unfold(here.engine->machine(), here.term, max_states, SIZE_MAX); });
            const ByteColumns columns = made.columns();
            if (made.complete)
              for (size_t state = 0; state < columns.states; ++state)
                for (uint8_t kind : made.kind_of) next.push_back(columns.column(kind)[state]);
          }
          if (!made.complete) return nb::object(nb::none());
          const size_t states = made.accepting.size();
          return nb::object(nb::make_tuple(to_numpy(std::move(next), {states, 256}), to_numpy(std::move(made.accepting), {states}), triples(made.specials)));
        },
        "constraint"_a, "most_states"_a);
  m.def("byte_automaton",
        [](const Constraint& constraint, size_t max_states, size_t max_steps) {
          ByteAutomaton made;
          {
            nb::gil_scoped_release release;
            made = constraint.exclusively([&](Home& here) { return unfold(here.engine->machine(), here.term, max_states, max_steps); });
            if (made.complete && made.steps <= max_steps) made = minimal(made);
          }
          if (!made.complete || made.steps > max_steps) return nb::make_tuple(made.steps, nb::none());
          const size_t states = made.accepting.size(), kinds = made.columns().kinds();
          return nb::make_tuple(made.steps, nb::make_tuple(to_numpy(std::vector(made.kind_of.begin(), made.kind_of.end()), {made.kind_of.size()}),
                                                           to_numpy(std::move(made.targets), {kinds, states}),
                                                           to_numpy(std::move(made.accepting), {states}), triples(made.specials)));
        },
        "constraint"_a, "most_states"_a, "most_steps"_a);
  const auto to_tables = [](ByteNetwork& made) {
    const size_t states = made.final.size();
    return nb::make_tuple(to_numpy(std::move(made.next), {states, 256}), to_numpy(std::move(made.final), {states}), triples(made.calls), triples(made.specials));
  };
  m.def("unfold_calls",
        [to_tables](const Constraint& constraint, size_t max_states) {
          ByteNetwork made;
          {
            nb::gil_scoped_release release;
            made = constraint.exclusively([&](Home& here) { return unfold_calls(here.engine->machine().automaton(), here.term, max_states); });
          }
          return made.complete ? nb::object(to_tables(made)) : nb::object(nb::none());
        },
        "constraint"_a, "most_states"_a);
  m.def("counted_calls",
        [to_tables](const Constraint& constraint, size_t max_states, size_t state_steps, size_t max_steps) {
          ByteNetwork made;
          {
            nb::gil_scoped_release release;
            made = constraint.exclusively(
                [&](Home& here) { return unfold_calls(here.engine->machine().automaton(), here.term, max_states, state_steps, max_steps); });
          }
          const size_t steps = made.steps;
          return nb::make_tuple(steps, made.complete && steps <= max_steps ? nb::object(to_tables(made)) : nb::object(nb::none()));
        },
        "constraint"_a, "most_states"_a, "state_steps"_a, "most_steps"_a);
  m.def("may_recur",
        [](const Constraint& constraint) {
          nb::gil_scoped_release release;
          return constraint.exclusively([&](Home& here) { return may_recur(here.engine->machine().automaton().terms(), here.term); });
        },
        "constraint"_a);
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
  m.def("token_classes", &classes_of_tokens, "tokens"_a, "vocabulary_size"_a, "kind_of"_a.noconvert(), "targets"_a.noconvert(), "most_moves"_a,
        "most_steps"_a);
  m.def("equal_futures", &futures_of_states, "next"_a.noconvert(), "accepting"_a.noconvert(), "specials"_a.noconvert());
  m.def("token_effects", &effects_of_tokens, "tokens"_a, "vocabulary_size"_a, "next"_a.noconvert(), "final"_a.noconvert(), "calls"_a.noconvert(),
        "specials"_a.noconvert(), "most_effects"_a, "most_steps"_a);
  m.def("labelled_edges", &edges_of_moves, "moves"_a.noconvert(), "states"_a);
}

}  // namespace structgen

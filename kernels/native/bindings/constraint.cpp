// Constraints: a grammar compiled for the engine of a vocabulary.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "frontends/flatten.h"
#include "matcher/matcher.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

namespace {

struct Lowered {
  TermId term;
  std::vector<std::optional<TermId>> shared;  // the terms of FlatGrammar::shared; nothing where a byte must be reported each time
  bool left_recursive;                  // then nothing below is known
  std::optional<uint32_t> shortest;     // bytes of the shortest string, if there is one
  std::optional<uint32_t> unspellable;  // a byte that is needed somewhere and that no token holds
};

// Makes the terms of a grammar and solves its rules, under the engine's lock: grammars on one vocabulary share the store.
Lowered lower(Engine& engine, const FlatGrammar& grammar, const Limits& limits) {
  const std::unique_lock lock(engine.mutex());
  Automaton& automaton = engine.machine().automaton();
  automaton.meter() = {0, limits.states, 0, limits.steps};
  automaton.set_regular_limit(limits.regular_states);
  const std::vector<TermId> made = run(grammar.program, automaton, engine.shared_rules());
  TermStore& terms = automaton.terms();
  Lowered result{made[grammar.program.result], {}, false, {}, {}};
  terms.solve_rules();
  result.left_recursive = terms.left_recursive();
  if (result.left_recursive) return result;
  const Distance distance = terms.distance(result.term);
  if (distance < kInfinite) result.shortest = distance;
  result.unspellable = terms.take_unspellable();
  for (const auto& [node, instruction, is_leaf] : grammar.shared) {
    const bool may_lack_bytes = is_leaf && result.unspellable;
    result.shared.push_back(may_lack_bytes ? std::nullopt : std::optional(made[instruction]));
  }
  return result;
}

// Makes the terms of a grammar and a constraint of them.  Returns that, or None where the grammar is left-recursive or
// has no strings; the terms of FlatGrammar::shared; whether it is left-recursive; the last two of `Lowered`; bytes of the
// engine.
nb::tuple couple(std::shared_ptr<Engine> engine, const FlatGrammar& grammar, std::vector<uint32_t> eos, const Limits& limits) {
  Lowered lowered;
  std::shared_ptr<Constraint> constraint;
  size_t bytes = 0;
  {
    nb::gil_scoped_release release;
    lowered = lower(*engine, grammar, limits);
    if (lowered.shortest) constraint = std::make_shared<Constraint>(engine, lowered.term, std::move(eos), limits);
    const std::shared_lock lock(engine->mutex());
    bytes = engine->bytes_used();
  }
  return nb::make_tuple(std::move(constraint), std::move(lowered.shared), lowered.left_recursive, lowered.shortest, lowered.unspellable, bytes);
}

}  // namespace

void bind_constraint(nb::module_& m) {
  m.def("couple", &couple, "engine"_a, "grammar"_a, "eos"_a, "limits"_a);

  nb::class_<Constraint>(m, "Constraint")
      .def("limited",
           [](const Constraint& self, const Limits& limits) {
             nb::gil_scoped_release release;
             return std::make_shared<Constraint>(self.shared_engine(), self.term(), self.eos(), limits);
           },
           "limits"_a)
      .def_prop_ro("is_searched", &Constraint::is_searched)
      .def_prop_ro("has_reach", &Constraint::has_reach)
      .def_prop_ro("has_scope", &Constraint::has_scope)
      .def_prop_ro("has_budgets", &Constraint::has_budgets)
      .def_prop_ro("has_budgets_in_scopes", &Constraint::has_budgets_in_scopes, nb::call_guard<nb::gil_scoped_release>())
      .def("is_completable", &Constraint::is_completable, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("has_temperatures", &Constraint::has_temperatures)
      .def_prop_ro("has_token_sets", &Constraint::has_token_sets)
      .def_prop_ro("states_used", &Constraint::states_used);
}

}  // namespace structgen

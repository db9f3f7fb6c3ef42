// Constraints: a grammar compiled for the engine of a vocabulary.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
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
  RuleId first_rule;
  std::vector<std::optional<TermId>> shared;  // the terms of FlatGrammar::shared; nothing where a byte must be reported each time
  bool left_recursive;                  // or with rules of other distances than it says: then nothing below is known
  std::optional<uint32_t> shortest;     // bytes of the shortest string, if there is one
  std::optional<uint32_t> unspellable;  // a byte that is needed somewhere and that no token holds
};

// Makes the terms of a grammar and solves its rules, with exclusive access: grammars on one vocabulary share the store.
Lowered lower(Engine& engine, const FlatGrammar& grammar, const Limits& limits) {
  Automaton& automaton = engine.machine().automaton();
  automaton.meter().begin(0, limits);
  automaton.set_regular_limit(limits.regular_states);
  const auto first = static_cast<RuleId>(automaton.terms().rule_count());
  const std::vector<TermId> made = run(grammar.program, automaton, engine.shared_rules());
  TermStore& terms = automaton.terms();
  Lowered result{made[grammar.program.result], first, {}, false, {}, {}};
  terms.solve_rules(automaton.meter().pulse);
  result.left_recursive = !has_expected_distances(grammar.program, terms, first) || terms.left_recursive(first, automaton.meter().pulse);
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
// engine.  None instead of all this where others would wait too long for an engine that is not the grammar's own.
nb::object couple(std::shared_ptr<Engine> engine, const FlatGrammar& grammar, std::vector<uint32_t> eos, const Limits& limits, bool is_own) {
  Lowered lowered;
  std::shared_ptr<Constraint> constraint;
  size_t bytes = 0;
  bool is_done = false;
  {
    nb::gil_scoped_release release;
    for (unsigned turns = is_own ? Turn::kTurns : 0; !is_done; ++turns) {
      if (!is_own && turns == Turn::kTurns) break;
      const Turn turn(engine->mutex(), engine->machine().automaton().meter().pulse, turns);
      try {
        lowered = lower(*engine, grammar, limits);
        if (lowered.shortest) {
          constraint = std::make_shared<Constraint>(engine, lowered.term, eos, limits);
          constraint->begin();
        }
        bytes = engine->bytes_used();
        is_done = true;
      } catch (const TurnOver&) {
      }
    }
  }
  if (!is_done) return nb::object(nb::none());
  return nb::object(nb::make_tuple(std::move(constraint), std::move(lowered.shared), lowered.left_recursive, lowered.shortest, lowered.unspellable, bytes));
}

// The distances of the rules of a grammar, for which it is compiled; None where it is left-recursive.
std::optional<std::vector<Distance>> rule_distances(const std::shared_ptr<Engine>& engine, const FlatGrammar& grammar, const Limits& limits) {
  const nb::gil_scoped_release release;
  Automaton& automaton = engine->machine().automaton();
  const Turn turn(engine->mutex(), automaton.meter().pulse, Turn::kTurns);
  const Lowered lowered = lower(*engine, grammar, limits);
  if (lowered.left_recursive) return std::nullopt;
  std::vector<Distance> distances(grammar.program.rules.size());
  for (size_t rule = 0; rule < distances.size(); ++rule) {
    const TermId body = automaton.terms().rule_body(lowered.first_rule + static_cast<RuleId>(rule));
    distances[rule] = automaton.terms().distance(body);
  }
  return distances;
}

// The same constraint within other limits.
std::shared_ptr<Constraint> limited(const Constraint& constraint, const Limits& limits) {
  const nb::gil_scoped_release release;
  const std::shared_ptr<Home> home = constraint.home();
  Engine& engine = *home->engine;
  auto made = std::make_shared<Constraint>(home->engine, home->term, constraint.eos(), limits);
  const Turn turn(engine.mutex(), engine.machine().automaton().meter().pulse, Turn::kTurns);
  made->begin();
  return made;
}

// `make()` compiles the grammar in a new engine and returns the constraint, or None where it cannot.
void set_elsewhere(Constraint& constraint, nb::object make) {
  const auto release = [](nb::object* held) {
    if (!nb::is_alive()) return;  // Python has ended
    const nb::gil_scoped_acquire acquire;
    delete held;
  };
  const std::shared_ptr<nb::object> held(new nb::object(std::move(make)), release);
  constraint.set_elsewhere([held]() -> std::shared_ptr<Home> {
    const nb::gil_scoped_acquire acquire;
    const nb::object made = (*held)();
    return made.is_none() ? nullptr : nb::cast<std::shared_ptr<Constraint>>(made)->home();
  });
}

}  // namespace

void bind_constraint(nb::module_& m) {
  m.def("couple", &couple, "engine"_a, "grammar"_a, "eos"_a, "limits"_a, "is_own"_a);

  m.def("rule_distances", &rule_distances, "engine"_a, "grammar"_a, "limits"_a);

  nb::class_<Constraint>(m, "Constraint")
      .def("limited", &limited, "limits"_a)
      .def("set_elsewhere", &set_elsewhere, "make"_a)
      .def_prop_ro("has_moved", &Constraint::has_moved)
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

#include "unfolding_bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>

#include "chain.h"
#include "class_scores.h"
#include "matcher.h"
#include "unfolding.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

namespace {

template <class Value, size_t dimensions>
using Array = nb::ndarray<const Value, nb::ndim<dimensions>, nb::c_contig, nb::device::cpu>;

// An array of numpy that owns what `values` holds.
template <class Value>
nb::object to_numpy(std::vector<Value> values, std::initializer_list<size_t> shape) {
  auto* held = new std::vector<Value>(std::move(values));
  nb::capsule owner(held, [](void* pointer) noexcept { delete static_cast<std::vector<Value>*>(pointer); });
  return nb::cast(nb::ndarray<nb::numpy, Value>(held->data(), shape, owner));
}

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

template <class Values>
auto flat(const Values& array) {
  return std::span(array.data(), array.size());
}

void check(bool is_right, const char* problem) {
  if (!is_right) throw nb::value_error(problem);
}

bool all_below(std::span<const int32_t> numbers, size_t bound) {
  return std::all_of(numbers.begin(), numbers.end(), [&](int32_t one) { return one >= 0 && static_cast<size_t>(one) < bound; });
}

void bind_automata(nb::module_& m) {
  m.def("unfold",
        [](const Constraint& constraint, size_t most_states) {
          ByteAutomaton made;
          {
            nb::gil_scoped_release release;
            made = constraint.exclusively([&](Engine& engine) { return unfold(engine.machine(), constraint.start(), most_states); });
          }
          if (!made.complete) return nb::object(nb::none());
          const size_t states = made.next.size();
          return nb::object(nb::make_tuple(table(made.next), to_numpy(std::move(made.accepting), {states}), triples(made.specials)));
        },
        "constraint"_a, "most_states"_a);
  m.def("unfold_calls",
        [](const Constraint& constraint, size_t most_states) {
          ByteNetwork made;
          {
            nb::gil_scoped_release release;
            made = constraint.exclusively(
                [&](Engine& engine) { return unfold_calls(engine.machine().automaton(), constraint.term(), most_states); });
          }
          if (!made.complete) return nb::object(nb::none());
          const size_t states = made.next.size();
          return nb::object(nb::make_tuple(table(made.next), to_numpy(std::move(made.final), {states}), triples(made.calls), triples(made.specials)));
        },
        "constraint"_a, "most_states"_a);
  m.def("called_rules",
        [](const Constraint& constraint, size_t most_states) {
          std::vector<std::pair<uint32_t, std::string>> names;
          constraint.exclusively([&](Engine& engine) {
            Automaton& automaton = engine.machine().automaton();
            for (const auto& [start, rule] : unfold_calls(automaton, constraint.term(), most_states).rules)
              names.emplace_back(start, automaton.terms().rule_name(rule));
          });
          return names;
        },
        "constraint"_a, "most_states"_a);
  m.def("token_classes",
        [](const TokenTrie& tokens, size_t vocabulary_size, const Array<int32_t, 2>& next, size_t most_moves) {
          check(next.shape(1) == 256, "token_classes: a row of the table has 256 targets");
          check(vocabulary_size >= tokens.size(), "token_classes: vocabulary size is below the number of tokens");
          const size_t states = next.shape(0);
          for (int32_t target : flat(next)) check(target < static_cast<int64_t>(states), "token_classes: a target is out of range");
          TokenClasses made;
          {
            nb::gil_scoped_release release;
            made = token_classes(tokens, vocabulary_size, flat(next), states, most_moves);
          }
          if (!made.complete) return nb::object(nb::none());
          const size_t size = made.of.size(), begins = made.begin.size(), moves = made.sources.size();
          return nb::object(nb::make_tuple(to_numpy(std::move(made.of), {size}), to_numpy(std::move(made.begin), {begins}),
                                           to_numpy(std::move(made.sources), {moves}), to_numpy(std::move(made.targets), {moves})));
        },
        "tokens"_a, "vocabulary_size"_a, "next"_a.noconvert(), "most_moves"_a);
  m.def("equal_futures",
        [](const Array<int32_t, 2>& next, const Array<uint8_t, 1>& accepting, const Array<int32_t, 2>& specials) {
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
        },
        "next"_a.noconvert(), "accepting"_a.noconvert(), "specials"_a.noconvert());
}

Logits to_logits(const Array<float, 2>& values) { return {values.data(), values.shape(0), values.shape(1)}; }

Logits to_logits(const Array<float, 2>& values, const ClassLayout& layout) {
  check(values.shape(1) == layout.tokens(), "ClassLayout: logits must have one column for each token");
  return to_logits(values);
}

void check_wanted(const Logits& logits, const ClassLayout& layout, const Array<int64_t, 1>& rows, const Array<int32_t, 1>& classes,
                  size_t numbers) {
  check(rows.shape(0) == classes.shape(0) && rows.shape(0) == numbers, "ClassLayout: there must be a row, a class and a number for each wanted token");
  for (int64_t row : flat(rows))
    if (row < 0 || static_cast<size_t>(row) >= logits.rows) throw nb::index_error("ClassLayout: a row is out of range");
  if (!all_below(flat(classes), layout.classes())) throw nb::index_error("ClassLayout: a class is out of range");
}

void bind_class_scores(nb::module_& m) {
  m.def("row_maxima",
        [](const Array<float, 2>& values) {
          const Logits logits = to_logits(values);
          std::vector<float> made(logits.rows);
          {
            nb::gil_scoped_release release;
            row_maxima(logits, made.data());
          }
          return to_numpy(std::move(made), {logits.rows});
        },
        "logits"_a.noconvert());
  nb::class_<ClassLayout>(m, "ClassLayout")
      .def("__init__",
           [](ClassLayout* self, const Array<int32_t, 1>& classes_of, size_t classes) {
             check(classes > 0 && all_below(flat(classes_of), classes), "ClassLayout: a class is out of range");
             new (self) ClassLayout(flat(classes_of), classes);
           },
           "classes_of"_a.noconvert(), "classes"_a)
      .def("maxima",
           [](const ClassLayout& self, const Array<float, 2>& values) {
             const Logits logits = to_logits(values, self);
             std::vector<float> made(logits.rows * self.classes());
             {
               nb::gil_scoped_release release;
               self.maxima(logits, made.data());
             }
             return to_numpy(std::move(made), {logits.rows, self.classes()});
           },
           "logits"_a.noconvert())
      .def("find",
           [](const ClassLayout& self, const Array<float, 2>& values, const Array<int64_t, 1>& rows, const Array<int32_t, 1>& classes,
              const Array<float, 1>& wanted) {
             const Logits logits = to_logits(values, self);
             check_wanted(logits, self, rows, classes, wanted.shape(0));
             std::vector<int32_t> made(rows.shape(0));
             {
               nb::gil_scoped_release release;
               self.find(logits, flat(rows), flat(classes), flat(wanted), made.data());
             }
             const size_t count = made.size();
             return to_numpy(std::move(made), {count});
           },
           "logits"_a.noconvert(), "rows"_a.noconvert(), "classes"_a.noconvert(), "values"_a.noconvert())
      .def("sums",
           [](const ClassLayout& self, const Array<float, 2>& values, float scale, const Array<float, 1>& largest, bool with_moments,
              bool with_maxima) {
             const Logits logits = to_logits(values, self);
             check(largest.shape(0) == logits.rows, "ClassLayout: there must be one largest logit for each row");
             const size_t cells = logits.rows * self.classes();
             std::vector<double> sums(cells), by_chunk(logits.rows * self.chunks()), moments(with_moments ? cells : 0);
             std::vector<float> maxima(with_maxima ? cells : 0);
             {
               nb::gil_scoped_release release;
               self.sums(logits, scale, flat(largest), sums.data(), by_chunk.data(), with_moments ? moments.data() : nullptr,
                         with_maxima ? maxima.data() : nullptr);
             }
             const auto optional = [&](bool is_wanted, auto& made) {
               return is_wanted ? to_numpy(std::move(made), {logits.rows, self.classes()}) : nb::object(nb::none());
             };
             return nb::make_tuple(to_numpy(std::move(sums), {logits.rows, self.classes()}),
                                   to_numpy(std::move(by_chunk), {logits.rows, self.chunks()}), optional(with_moments, moments),
                                   optional(with_maxima, maxima));
           },
           "logits"_a.noconvert(), "scale"_a, "largest"_a.noconvert(), "with_moments"_a = false, "with_maxima"_a = false)
      .def("draw",
           [](const ClassLayout& self, const Array<float, 2>& values, float scale, const Array<float, 1>& largest,
              const Array<double, 2>& sums, const Array<double, 2>& by_chunk, const Array<int64_t, 1>& rows,
              const Array<int32_t, 1>& classes, const Array<double, 1>& uniform) {
             const Logits logits = to_logits(values, self);
             check(largest.shape(0) == logits.rows && sums.shape(0) == logits.rows && sums.shape(1) == self.classes() &&
                       by_chunk.shape(0) == logits.rows && by_chunk.shape(1) == self.chunks(),
                   "ClassLayout: the sums are not those of these logits");
             check_wanted(logits, self, rows, classes, uniform.shape(0));
             std::vector<int32_t> made(rows.shape(0));
             {
               nb::gil_scoped_release release;
               self.draw(logits, scale, flat(largest), flat(sums), flat(by_chunk), flat(rows), flat(classes), flat(uniform), made.data());
             }
             const size_t count = made.size();
             return to_numpy(std::move(made), {count});
           },
           "logits"_a.noconvert(), "scale"_a, "largest"_a.noconvert(), "sums"_a.noconvert(), "by_chunk"_a.noconvert(),
           "rows"_a.noconvert(), "classes"_a.noconvert(), "uniform"_a.noconvert());
}

// The edges of an automaton by what they are grouped by, checked once.
struct EdgeGroups {
  std::vector<int64_t> begin;
  std::vector<int32_t> source, target, label;
  size_t states, labels;

  Grouped edges() const { return {begin, source, target, label}; }

  Weights weights(const Array<double, 2>& values) const {
    check(values.shape(1) == labels, "EdgeGroups: there must be a weight for each label");
    return {flat(values), values.shape(0), values.shape(1)};
  }

  void check_messages(const Array<double, 2>& messages, size_t slots) const {
    check(messages.shape(0) == slots + 1 && messages.shape(1) == states, "EdgeGroups: the messages have another shape");
  }

  // Messages whose row `given` is `ends`.
  nb::object messages(const Array<double, 2>& values, const Array<double, 1>& ends, bool is_max, bool is_forward) const {
    const Weights log_weights = weights(values);
    check(ends.shape(0) == states && begin.size() == states + 1, "EdgeGroups: edges must be grouped by states");
    std::vector<double> made((log_weights.slots + 1) * states);
    std::copy_n(ends.data(), states, made.data() + (is_forward ? 0 : log_weights.slots * states));
    {
      nb::gil_scoped_release release;
      (is_forward ? forward_messages : backward_messages)(log_weights, edges(), is_max, made.data());
    }
    return to_numpy(std::move(made), {log_weights.slots + 1, states});
  }
};

void bind_chain(nb::module_& m) {
  nb::class_<EdgeGroups>(m, "EdgeGroups")
      .def("__init__",
           [](EdgeGroups* self, const Array<int64_t, 1>& begin, const Array<int32_t, 1>& source, const Array<int32_t, 1>& target,
              const Array<int32_t, 1>& label, size_t states, size_t labels) {
             const size_t edges = source.shape(0);
             check(target.shape(0) == edges && label.shape(0) == edges, "EdgeGroups: the shapes do not fit together");
             check(states > 0 && all_below(flat(source), states) && all_below(flat(target), states), "EdgeGroups: a state is out of range");
             check(all_below(flat(label), labels), "EdgeGroups: a label is out of range");
             const auto groups = flat(begin);
             check(!groups.empty() && groups.front() == 0 && groups.back() == static_cast<int64_t>(edges) && std::is_sorted(groups.begin(), groups.end()),
                   "EdgeGroups: the groups are not those of the edges");
             const auto copied = [](const Array<int32_t, 1>& of) { return std::vector<int32_t>(of.data(), of.data() + of.size()); };
             new (self) EdgeGroups{{groups.begin(), groups.end()}, copied(source), copied(target), copied(label), states, labels};
           },
           "begin"_a.noconvert(), "source"_a.noconvert(), "target"_a.noconvert(), "label"_a.noconvert(), "states"_a, "labels"_a)
      .def("backward", [](const EdgeGroups& self, const Array<double, 2>& weights, const Array<double, 1>& last,
                          bool is_max) { return self.messages(weights, last, is_max, false); },
           "weights"_a.noconvert(), "last"_a.noconvert(), "is_max"_a)
      .def("forward", [](const EdgeGroups& self, const Array<double, 2>& weights, const Array<double, 1>& first,
                         bool is_max) { return self.messages(weights, first, is_max, true); },
           "weights"_a.noconvert(), "first"_a.noconvert(), "is_max"_a)
      .def("label_masses",
           [](const EdgeGroups& self, const Array<double, 2>& forward, const Array<double, 2>& backward, bool is_max) {
             check(forward.shape(0) > 0 && self.begin.size() == self.labels + 1, "EdgeGroups: edges must be grouped by labels");
             const size_t slots = forward.shape(0) - 1;
             self.check_messages(forward, slots);
             self.check_messages(backward, slots);
             std::vector<double> made(slots * self.labels);
             {
               nb::gil_scoped_release release;
               label_masses(slots, self.states, self.edges(), flat(forward), flat(backward), is_max, made.data());
             }
             return to_numpy(std::move(made), {slots, self.labels});
           },
           "forward"_a.noconvert(), "backward"_a.noconvert(), "is_max"_a)
      .def("run",
           [](const EdgeGroups& self, const Array<double, 2>& values, const Array<double, 2>& backward, const Array<double, 1>& uniform) {
             const Weights weights = self.weights(values);
             check(self.begin.size() == self.states + 1, "EdgeGroups: edges must be grouped by states");
             self.check_messages(backward, weights.slots);
             check(uniform.shape(0) == 0 || uniform.shape(0) == weights.slots, "EdgeGroups: there must be a number for each slot");
             std::vector<int64_t> made(weights.slots);
             run_chain(weights, self.states, self.edges(), flat(backward), flat(uniform), made.data());
             return to_numpy(std::move(made), {weights.slots});
           },
           "weights"_a.noconvert(), "backward"_a.noconvert(), "uniform"_a.noconvert());
}

}  // namespace

void bind_unfolding(nb::module_& m) {
  bind_automata(m);
  bind_class_scores(m);
  bind_chain(m);
}

}  // namespace structgen

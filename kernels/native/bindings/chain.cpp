// Messages along the slots of a canvas.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "diffusion/chain.h"
#include "diffusion/label_scores.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

namespace {

// Where the edges of each state begin.
std::vector<int64_t> begins_of(std::span<const int32_t> source, size_t states) {
  check(std::is_sorted(source.begin(), source.end()), "edges must be in the order of their sources");
  std::vector<int64_t> begin(states + 1);
  for (int32_t state : source) ++begin[static_cast<size_t>(state) + 1];
  for (size_t state = 0; state < states; ++state) begin[state + 1] += begin[state];
  return begin;
}

std::shared_ptr<ChainEdges> edges_of(const Array<int32_t, 1>& source, const Array<int32_t, 1>& target, const Array<int32_t, 1>& label,
                                     const Array<uint8_t, 1>& final, size_t labels) {
  const size_t edges = source.shape(0), states = final.shape(0);
  check(target.shape(0) == edges && label.shape(0) == edges, "ChainEdges: the shapes do not fit together");
  check(states > 0 && all_below(flat(source), states) && all_below(flat(target), states), "ChainEdges: a state is out of range");
  check(all_below(flat(label), labels), "ChainEdges: a label is out of range");
  auto made = std::make_shared<ChainEdges>();
  made->begin = begins_of(flat(source), states);
  made->target.assign(target.data(), target.data() + edges);
  made->label.assign(label.data(), label.data() + edges);
  made->final.assign(final.data(), final.data() + states);
  made->labels = labels;
  made->distance = edge_distances(flat(source), flat(target), flat(final));
  return made;
}

nb::object distances_of(const Array<int32_t, 1>& source, const Array<int32_t, 1>& target, const Array<uint8_t, 1>& final) {
  check(target.shape(0) == source.shape(0), "edge_distances: the shapes do not fit together");
  check(all_below(flat(source), final.shape(0)) && all_below(flat(target), final.shape(0)), "edge_distances: a state is out of range");
  return to_numpy(edge_distances(flat(source), flat(target), flat(final)), {final.shape(0)});
}

template <class Make>
auto without_gil(Make make) {
  nb::gil_scoped_release release;
  return make();
}

// None for the lengths beyond the limit on steps.
nb::object lengths_of_walks(const Array<int32_t, 1>& source, const Array<int32_t, 1>& target, const Array<double, 1>& share,
                            const Array<double, 1>& stop, double covered, size_t multiple, size_t max_slots, size_t max_steps) {
  const size_t edges = source.shape(0), states = stop.shape(0);
  check(target.shape(0) == edges && share.shape(0) == edges, "walk_lengths: the shapes do not fit together");
  check(states > 0 && multiple > 0, "walk_lengths: there must be a state, and a multiple");
  check(all_below(flat(source), states) && all_below(flat(target), states), "walk_lengths: a state is out of range");
  const std::vector<int64_t> begin = begins_of(flat(source), states);
  const WalkLengths made =
      without_gil([&] { return walk_lengths(begin, flat(target), flat(share), flat(stop), covered, multiple, max_slots, max_steps); });
  if (!made.is_complete) return nb::make_tuple(made.steps, nb::none());
  return nb::make_tuple(made.steps, nb::make_tuple(made.typical, made.longest));
}

LabelLists labels_of(const Array<int64_t, 1>& begin, const Array<int32_t, 1>& classes, size_t number) {
  const auto begins = flat(begin);
  check(!begins.empty() && begins.front() == 0 && begins.back() == static_cast<int64_t>(classes.shape(0)) &&
            std::is_sorted(begins.begin(), begins.end()),
        "labels: their classes must be one list after the other");
  check(all_below(flat(classes), number), "labels: a class is out of range");
  return {begins, flat(classes)};
}

}  // namespace

void bind_chain(nb::module_& m) {
  nb::class_<ChainEdges>(m, "ChainEdges")
      .def_static("of", &edges_of, "source"_a.noconvert(), "target"_a.noconvert(), "label"_a.noconvert(), "final"_a.noconvert(), "labels"_a);
  nb::class_<Chain>(m, "Chain")
      .def_static("of",
                  [](std::shared_ptr<ChainEdges> edges, const Array<double, 2>& weights, bool is_max, size_t max_steps) {
                    check(weights.shape(1) == edges->labels, "Chain: there must be a weight for each label");
                    return without_gil([&] { return std::make_unique<Chain>(edges, flat(weights), weights.shape(0), is_max, max_steps); });
                  },
                  "edges"_a, "weights"_a.noconvert(), "is_max"_a, "max_steps"_a)
      .def_prop_ro("is_complete", &Chain::is_complete)
      .def_prop_ro("steps", &Chain::steps)
      .def_prop_ro("forward_steps", &Chain::forward_steps)
      .def_prop_ro("total", &Chain::total)
      .def("backward", [](const Chain& self) { return to_numpy(self.backward(), {self.slots() + 1, self.edges().states()}); })
      .def("forward",
           [](const Chain& self) { return to_numpy(without_gil([&] { return self.forward(); }), {self.slots() + 1, self.edges().states()}); })
      .def("reached", [](const Chain& self) { return to_numpy(self.reached(), {self.slots() + 1, self.edges().states()}); })
      .def("label_masses",
           [](const Chain& self) { return to_numpy(without_gil([&] { return self.label_masses(); }), {self.slots(), self.edges().labels}); })
      .def("run",
           [](const Chain& self, const Array<double, 1>& uniform) {
             check(uniform.shape(0) == 0 || uniform.shape(0) == self.slots(), "Chain: there must be a number for each slot");
             return to_numpy(self.run(flat(uniform)), {self.slots()});
           },
           "uniform"_a.noconvert());
  m.def("edge_distances", &distances_of, "source"_a.noconvert(), "target"_a.noconvert(), "final"_a.noconvert());
  m.def("possible_runs",
        [](const ChainEdges& edges, const Array<uint8_t, 2>& allowed, size_t max_steps) {
          check(allowed.shape(1) == edges.labels, "possible_runs: there must be an entry for each label");
          const size_t slots = allowed.shape(0);
          PossibleRuns made = without_gil([&] { return PossibleRuns(edges, flat(allowed), slots, max_steps); });
          if (!made.is_complete) return nb::make_tuple(made.steps, nb::none(), false);
          return nb::make_tuple(made.steps, to_numpy(std::move(made.labels), {slots, edges.labels}), made.any);
        },
        "edges"_a, "allowed"_a.noconvert(), "most_steps"_a);
  m.def("label_scores",
        [](const Array<int64_t, 1>& begin, const Array<int32_t, 1>& classes, const Array<double, 2>& scores, bool is_max) {
          const size_t rows = scores.shape(0), number = scores.shape(1);
          const LabelLists labels = labels_of(begin, classes, number);
          return to_numpy(without_gil([&] { return label_scores(labels, flat(scores), rows, number, is_max); }), {rows, labels.size()});
        },
        "begin"_a.noconvert(), "classes"_a.noconvert(), "scores"_a.noconvert(), "is_max"_a);
  m.def("class_sums",
        [](const Array<int64_t, 1>& begin, const Array<int32_t, 1>& classes, const Array<double, 2>& values, size_t number) {
          const size_t rows = values.shape(0);
          const LabelLists labels = labels_of(begin, classes, number);
          check(values.shape(1) == labels.size(), "class_sums: there must be a value for each label");
          return to_numpy(without_gil([&] { return class_sums(labels, flat(values), rows, number); }), {rows, number});
        },
        "begin"_a.noconvert(), "classes"_a.noconvert(), "values"_a.noconvert(), "number"_a);
  m.def("walk_lengths", &lengths_of_walks, "source"_a.noconvert(), "target"_a.noconvert(), "share"_a.noconvert(), "stop"_a.noconvert(), "covered"_a,
        "multiple"_a, "most_slots"_a, "most_steps"_a);
}

}  // namespace structgen

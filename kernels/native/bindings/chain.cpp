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

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

namespace {

std::shared_ptr<ChainEdges> edges_of(const Array<int32_t, 1>& source, const Array<int32_t, 1>& target, const Array<int32_t, 1>& label,
                                     const Array<uint8_t, 1>& final, size_t labels) {
  const size_t edges = source.shape(0), states = final.shape(0);
  check(target.shape(0) == edges && label.shape(0) == edges, "ChainEdges: the shapes do not fit together");
  check(states > 0 && all_below(flat(source), states) && all_below(flat(target), states), "ChainEdges: a state is out of range");
  check(all_below(flat(label), labels), "ChainEdges: a label is out of range");
  check(std::is_sorted(source.data(), source.data() + edges), "ChainEdges: edges must be in the order of their sources");
  auto made = std::make_shared<ChainEdges>();
  made->begin.resize(states + 1);
  for (int32_t state : flat(source)) ++made->begin[static_cast<size_t>(state) + 1];
  for (size_t state = 0; state < states; ++state) made->begin[state + 1] += made->begin[state];
  made->target.assign(target.data(), target.data() + edges);
  made->label.assign(label.data(), label.data() + edges);
  made->final.assign(final.data(), final.data() + states);
  made->labels = labels;
  made->finish(flat(source));
  return made;
}

template <class Make>
auto without_gil(Make make) {
  nb::gil_scoped_release release;
  return make();
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
      .def_prop_ro("total", &Chain::total)
      .def("backward", [](const Chain& self) { return to_numpy(self.backward(), {self.slots() + 1, self.edges().states()}); })
      .def("forward",
           [](Chain& self) { return to_numpy(without_gil([&] { return self.forward(); }), {self.slots() + 1, self.edges().states()}); })
      .def("reached", [](const Chain& self) { return to_numpy(self.reached(), {self.slots() + 1, self.edges().states()}); })
      .def("label_masses",
           [](Chain& self) { return to_numpy(without_gil([&] { return self.label_masses(); }), {self.slots(), self.edges().labels}); })
      .def("run",
           [](const Chain& self, const Array<double, 1>& uniform) {
             check(uniform.shape(0) == 0 || uniform.shape(0) == self.slots(), "Chain: there must be a number for each slot");
             return to_numpy(self.run(flat(uniform)), {self.slots()});
           },
           "uniform"_a.noconvert());
}

}  // namespace structgen

// Messages along the slots of a canvas.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "diffusion/chain.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

namespace {

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

}  // namespace

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

}  // namespace structgen

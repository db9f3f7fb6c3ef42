// Charts of recursive transition networks over the slots of a canvas.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "diffusion/chart.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

namespace {

using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::vector<int32_t> ints(nb::handle plan, const char* name) {
  const auto array = nb::cast<Ints>(plan.attr(name));
  return {array.data(), array.data() + array.shape(0)};
}

PairLists lists(nb::handle plan, const char* name) {
  const nb::object held = plan.attr(name);
  return {ints(held, "begin"), ints(held, "first"), ints(held, "second")};
}

std::shared_ptr<ChartPlan> plan_from(nb::handle plan) {
  auto made = std::make_shared<ChartPlan>();
  made->states = nb::cast<size_t>(plan.attr("states"));
  made->shared = nb::cast<size_t>(plan.attr("shared"));
  const nb::object labels = plan.attr("labels");
  made->labels = nb::len(labels);
  made->cell_begin = ints(plan, "cell_begin");
  made->port_of_cell = ints(plan, "port_of_cell");
  made->ending_cells = ints(plan, "ending_cells");
  made->leaving_cells = ints(plan, "leaving_cells");
  made->outlet_of_cell = ints(plan, "outlet_of_cell");
  made->composition_of = ints(plan, "composition_of");
  made->row_of_call = ints(plan, "row_of_call");
  made->arrival_begin = ints(plan, "arrival_begin");
  made->part_begin = ints(plan, "part_begin");
  made->outlet_begin = ints(plan, "outlet_begin");
  made->moves = lists(plan, "moves");
  made->contractions = lists(plan, "contractions");
  made->parts = lists(plan, "parts");
  made->outlets = lists(plan, "outlets");
  made->finish();
  return made;
}

// A view of a table, which keeps its chart alive.
nb::object view(nb::handle chart, const ChartTable& table) {
  return nb::cast(nb::ndarray<nb::numpy, const double>(const_cast<ChartTable&>(table).data(), {table.size()}, chart));
}

nb::object flags(nb::handle chart, const std::vector<uint8_t>& held, size_t rows, size_t columns) {
  return nb::cast(nb::ndarray<nb::numpy, const uint8_t>(held.data(), {rows, columns}, chart));
}

}  // namespace

void bind_chart(nb::module_& m) {
  nb::class_<ChartPlan>(m, "ChartPlan").def_static("of", &plan_from, "plan"_a);
  nb::class_<Chart>(m, "Chart")
      .def_static("of",
                  [](std::shared_ptr<ChartPlan> plan, const Matrix& weights, bool is_max, size_t max_steps) {
                    if (weights.shape(1) != plan->labels) throw nb::value_error("chart: a slot has one weight for each label");
                    nb::gil_scoped_release release;
                    return std::make_unique<Chart>(std::move(plan), std::span<const double>(weights.data(), weights.size()),
                                                   weights.shape(0), is_max, max_steps);
                  },
                  "plan"_a, "weights"_a.noconvert(), "is_max"_a, "max_steps"_a)
      .def_prop_ro("steps", &Chart::steps)
      .def_prop_ro("is_complete", &Chart::is_complete)
      .def_prop_ro("reached", [](nb::handle self) {
        const Chart& chart = nb::cast<const Chart&>(self);
        const ChartReach& reach = chart.reach();
        return nb::make_tuple(flags(self, reach.rows, chart.slots() + 1, reach.row_count),
                              flags(self, reach.arrivals, chart.slots() + 1, reach.arrival_count));
      })
      .def_prop_ro("masses", [](nb::handle self) { return view(self, nb::cast<const Chart&>(self).masses()); })
      .def_prop_ro("arrivals", [](nb::handle self) { return view(self, nb::cast<const Chart&>(self).arrivals()); })
      .def("label_shares",
           [](const Chart& chart, const Doubles& ends, size_t ending_cell, size_t max_steps) {
             if (ends.shape(0) != chart.slots() + 1) throw nb::value_error("chart: there must be a share for each boundary");
             if (ending_cell >= chart.plan().cells()) throw nb::index_error("chart: a cell is out of range");
             std::unique_ptr<std::vector<double>> made;
             size_t steps = 0;
             {
               nb::gil_scoped_release release;
               made = std::make_unique<std::vector<double>>(
                   chart.label_shares({ends.data(), ends.shape(0)}, ending_cell, max_steps, steps));
             }
             if (steps > max_steps) return nb::make_tuple(nb::none(), steps);
             double* data = made->data();
             nb::capsule owner(made.release(), [](void* pointer) noexcept { delete static_cast<std::vector<double>*>(pointer); });
             return nb::make_tuple(nb::ndarray<nb::numpy, double>(data, {chart.slots(), chart.plan().labels}, owner), steps);
           },
           "ends"_a.noconvert(), "ending_cell"_a, "max_steps"_a);
  m.def("possible_parses",
        [](const ChartPlan& plan, const Array<uint8_t, 2>& allowed, const Array<uint8_t, 1>& may_end, size_t ending_cell, size_t max_steps) {
          const size_t slots = allowed.shape(0), labels = allowed.shape(1);
          check(labels == plan.labels && may_end.shape(0) == slots + 1, "possible_parses: the shapes do not fit together");
          if (ending_cell >= plan.cells()) throw nb::index_error("possible_parses: a cell is out of range");
          std::unique_ptr<PossibleParses> made;
          {
            nb::gil_scoped_release release;
            made = std::make_unique<PossibleParses>(plan, flat(allowed), flat(may_end), ending_cell, max_steps);
          }
          if (!made->is_complete) return nb::make_tuple(made->steps, nb::none(), nb::none());
          return nb::make_tuple(made->steps, to_numpy(std::move(made->ends), {slots + 1}), to_numpy(std::move(made->labels), {slots, labels}));
        },
        "plan"_a, "allowed"_a.noconvert(), "may_end"_a.noconvert(), "ending_cell"_a, "max_steps"_a);
}

}  // namespace structgen

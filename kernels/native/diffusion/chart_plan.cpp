// What the tables of a chart's plan must satisfy, so that no index of a chart is out of range.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "diffusion/chart.h"
#include "diffusion/chart_index.h"

namespace structgen {

namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(std::string("chart: ") + what);
}

bool within(std::span<const int32_t> values, int64_t low, size_t size) {
  return std::all_of(values.begin(), values.end(), [&](int32_t value) { return value >= low && value < static_cast<int64_t>(size); });
}

void check_begins(std::span<const int32_t> begin, size_t size, const char* what) {
  require(!begin.empty() && begin.front() == 0 && static_cast<size_t>(begin.back()) == size &&
              std::is_sorted(begin.begin(), begin.end()),
          what);
}

void check_lists(const PairLists& lists, size_t size, int64_t low, size_t first, size_t second, const char* what) {
  require(lists.begin.size() == size + 1 && lists.first.size() == lists.second.size(), what);
  check_begins(lists.begin, lists.first.size(), what);
  require(within(lists.first, 0, first) && within(lists.second, low, second), what);
}

}  // namespace

void ChartPlan::check() const {
  require(!cell_begin.empty() && cell_begin.front() == 0 && std::is_sorted(cell_begin.begin(), cell_begin.end()), "cells of rows");
  require(states > 0 && states <= rows(), "states");
  require(labels > 0, "labels");
  require(within(ending_cells, 0, at(cell_begin, states)) && within(leaving_cells, 0, at(cell_begin, states)), "cells that end");
  require(!outlet_begin.empty() && !part_begin.empty() && outlet_begin.size() == part_begin.size(), "compositions");
  const size_t compositions = part_begin.size() - 1;
  check_begins(part_begin, parts.size(), "parts of compositions");
  check_begins(outlet_begin, outlets.size(), "outlets of compositions");
  check_begins(arrival_begin, contractions.size(), "arrivals of calls");
  check_lists(moves, cells(), 0, cells(), labels, "moves");
  check_lists(contractions, arrivals(), 0, cells(), labels, "contractions");
  check_lists(parts, parts.size(), 0, arrivals(), labels, "parts");
  check_lists(outlets, outlets.size(), -1, parts.size(), cells(), "outlets");
  require(port_of_cell.size() == cells() && within(port_of_cell, 0, size_t{1} << 24), "ports of cells");
  require(outlet_of_cell.size() == cells() && within(outlet_of_cell, -1, outlets.size()), "outlets of cells");
  require(composition_of.size() == rows() && within(composition_of, -1, compositions), "compositions of rows");
  require(shared <= compositions && row_of_call.size() == arrival_begin.size() - 1, "calls");
  for (size_t row = 0; row < rows(); ++row) {
    const int32_t composition = composition_of[row];
    const bool is_state = row < states;
    require(is_state || composition >= 0, "a row without a composition");
    require(composition < 0 || (static_cast<size_t>(composition) < shared) == is_state, "a composition of another row");
    for (size_t cell = at(cell_begin, row); cell < at(cell_begin, row + 1); ++cell) {
      if (is_state)
        require(outlet_of_cell[cell] < 0 || static_cast<size_t>(outlet_of_cell[cell]) < at(outlet_begin, shared), "an outlet of a state");
      else
        require(static_cast<size_t>(outlet_of_cell[cell]) == at(outlet_begin, static_cast<size_t>(composition)) + cell - at(cell_begin, row),
                "outlets of a row out of order");
    }
    if (!is_state)
      require(at(outlet_begin, static_cast<size_t>(composition) + 1) - at(outlet_begin, static_cast<size_t>(composition)) ==
                  at(cell_begin, row + 1) - at(cell_begin, row),
              "a row without all outlets");
  }
  require(within(row_of_call, -1, rows()), "rows of calls");
  for (size_t call = 0; call < row_of_call.size(); ++call) require(row_of_call[call] < 0 || at(row_of_call, call) >= states, "a call that is a state");
  for (size_t part = at(part_begin, shared); part < parts.size(); ++part)
    require(parts.begin[part + 1] == parts.begin[part] + 1, "a part of a row with several arrivals");
  for (size_t outlet = 0; outlet < outlets.size(); ++outlet) {
    const size_t composition = static_cast<size_t>(
        std::upper_bound(outlet_begin.begin(), outlet_begin.end(), static_cast<int32_t>(outlet)) - outlet_begin.begin() - 1);
    for (size_t way = at(outlets.begin, outlet); way < at(outlets.begin, outlet + 1); ++way)
      require(at(outlets.first, way) >= at(part_begin, composition) && at(outlets.first, way) < at(part_begin, composition + 1),
              "a part of another composition");
  }
}

void ChartPlan::finish() {
  check();
  row_of_cell.resize(cells());
  for (size_t row = 0; row < rows(); ++row)
    std::fill(row_of_cell.begin() + cell_begin[row], row_of_cell.begin() + cell_begin[row + 1], static_cast<int32_t>(row));
  std::vector<int32_t> port_of_outlet(outlets.size(), -1);
  for (size_t cell = 0; cell < cells(); ++cell) {
    ports = std::max(ports, at(port_of_cell, cell) + 1);
    if (outlet_of_cell[cell] >= 0) port_of_outlet[at(outlet_of_cell, cell)] = port_of_cell[cell];
  }
  std::vector<std::vector<int32_t>> of_part(parts.size());
  for (size_t outlet = 0; outlet < outlets.size(); ++outlet)
    for (size_t way = at(outlets.begin, outlet); way < at(outlets.begin, outlet + 1); ++way) {
      const int32_t cell = outlets.second[way];
      if (cell < 0 && port_of_outlet[outlet] < 0) continue;  // no cell has the outlet
      of_part[at(outlets.first, way)].push_back(cell < 0 ? -1 - port_of_outlet[outlet] : row_of_cell[static_cast<size_t>(cell)]);
    }
  target_begin.assign(1, 0);
  for (std::vector<int32_t>& of : of_part) {
    std::sort(of.begin(), of.end());
    targets.insert(targets.end(), of.begin(), std::unique(of.begin(), of.end()));
    target_begin.push_back(static_cast<int32_t>(targets.size()));
  }
}

}  // namespace structgen

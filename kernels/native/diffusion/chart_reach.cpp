// Which rows and arrivals of a chart parses from the start may need: predicted from left to right, before any mass.
//
// Source: J. Earley, "An efficient context-free parsing algorithm" (1970), for the prediction of what a prefix allows.
#include "diffusion/chart.h"
#include "diffusion/chart_index.h"

namespace structgen {

namespace {

class Prediction {
 public:
  Prediction(const ChartPlan& plan, std::span<const uint8_t> allowed, size_t slots, ChartReach& reach)
      : plan_(plan),
        allowed_(allowed),
        slots_(slots),
        reach_(reach),
        ended_(plan.ports),
        ends_next_(plan.ports),
        has_fired_(plan.arrivals()),
        is_active_(plan.parts.first.size()),
        parts_of_(plan.arrivals()),
        is_ending_(plan.cells()),
        is_leaving_(plan.cells()) {
    for (int32_t cell : plan.ending_cells) is_ending_[static_cast<size_t>(cell)] = 1;
    for (int32_t cell : plan.leaving_cells) is_leaving_[static_cast<size_t>(cell)] = 1;
    reach.rows[0] = 1;
    next_rows_.push_back(0);
    for (boundary_ = 0; boundary_ <= slots; ++boundary_) advance();
  }

 private:
  // All that is reached at the boundary, up to a fixpoint.
  void advance() {
    ended_.swap(ends_next_);
    ends_next_.assign(plan_.ports, 0);
    has_fired_.assign(plan_.arrivals(), 0);
    rows_.swap(next_rows_);
    next_rows_.clear();
    for (size_t composition = 0; composition < plan_.shared; ++composition)
      if (reach_.composition(boundary_, composition)) enter(composition);
    do {
      has_changed_ = false;
      while (!rows_.empty()) {
        const size_t row = rows_.back();
        rows_.pop_back();
        read(row);
      }
      for (size_t index = 0; index < active_.size(); ++index) {
        const size_t arrival = active_[index];
        if (!has_fired_[arrival] && may_arrive(arrival)) {
          has_fired_[arrival] = 1;
          for (size_t part : parts_of_[arrival]) go_on(part);
        }
      }
    } while (has_changed_ || !rows_.empty());
  }

  void open(size_t boundary, size_t row) {
    uint8_t& is_open = reach_.rows[boundary * reach_.row_count + row];
    if (is_open) return;
    is_open = 1;
    (boundary == boundary_ ? rows_ : next_rows_).push_back(row);
  }

  void end(size_t port) {
    if (ended_[port]) return;
    ended_[port] = 1;
    has_changed_ = true;
  }

  void read(size_t row) {
    const bool is_state = row < plan_.states, is_last = boundary_ == slots_;
    const int32_t composition = plan_.composition_of[row];
    if (!is_state) enter(static_cast<size_t>(composition));
    if (is_state && composition >= 0 && !is_last)
      reach_.compositions[(boundary_ + 1) * reach_.composition_count + static_cast<size_t>(composition)] = 1;
    for (size_t cell = at(plan_.cell_begin, row); cell < at(plan_.cell_begin, row + 1); ++cell) {
      if (is_ending_[cell]) end(at(plan_.port_of_cell, cell));
      if (is_last) continue;
      if (is_leaving_[cell]) ends_next_[at(plan_.port_of_cell, cell)] = 1;
      reach_.edges += at(plan_.moves.begin, cell + 1) - at(plan_.moves.begin, cell);
      for (size_t way = at(plan_.moves.begin, cell); way < at(plan_.moves.begin, cell + 1); ++way)
        if (is_possible(boundary_, plan_.moves.second[way])) open(boundary_ + 1, at(plan_.row_of_cell, at(plan_.moves.first, way)));
    }
  }

  // Calls of a composition begin here.
  void enter(size_t composition) {
    const bool is_shared = composition < plan_.shared;
    for (size_t part = at(plan_.part_begin, composition); part < at(plan_.part_begin, composition + 1); ++part) {
      reach_.edges += at(plan_.parts.begin, part + 1) - at(plan_.parts.begin, part);
      for (size_t way = at(plan_.parts.begin, part); way < at(plan_.parts.begin, part + 1); ++way) {
        if (is_shared && !is_possible(boundary_ - 1, plan_.parts.second[way])) continue;
        const size_t arrival = at(plan_.parts.first, way);
        uint8_t& is_wanted = reach_.arrivals[boundary_ * reach_.arrival_count + arrival];
        if (!is_wanted) {
          is_wanted = 1;
          for (size_t inner = at(plan_.contractions.begin, arrival); inner < at(plan_.contractions.begin, arrival + 1); ++inner)
            open(boundary_, at(plan_.row_of_cell, at(plan_.contractions.first, inner)));
        }
        if (is_active_[way]) continue;
        is_active_[way] = 1;
        has_changed_ = true;
        if (parts_of_[arrival].empty()) active_.push_back(arrival);
        parts_of_[arrival].push_back(part);
        if (has_fired_[arrival]) go_on(part);
      }
    }
  }

  // Whether a rule that some call entered, here or before, may end here in the way of an arrival.
  bool may_arrive(size_t arrival) {
    reach_.edges += at(plan_.contractions.begin, arrival + 1) - at(plan_.contractions.begin, arrival);
    for (size_t way = at(plan_.contractions.begin, arrival); way < at(plan_.contractions.begin, arrival + 1); ++way)
      if (ended_[at(plan_.port_of_cell, at(plan_.contractions.first, way))] &&
          (boundary_ == 0 || is_possible(boundary_ - 1, plan_.contractions.second[way])))
        return true;
    return false;
  }

  void go_on(size_t part) {
    reach_.edges += at(plan_.target_begin, part + 1) - at(plan_.target_begin, part);
    for (size_t index = at(plan_.target_begin, part); index < at(plan_.target_begin, part + 1); ++index)
      if (const int32_t target = plan_.targets[index]; target >= 0)
        open(boundary_, static_cast<size_t>(target));
      else
        end(static_cast<size_t>(-1 - target));
  }

  bool is_possible(size_t slot, int32_t label) const {
    return allowed_[slot * plan_.labels + static_cast<size_t>(label)] != 0;
  }

  const ChartPlan& plan_;
  std::span<const uint8_t> allowed_;
  size_t slots_, boundary_ = 0;
  ChartReach& reach_;
  bool has_changed_ = false;
  std::vector<uint8_t> ended_, ends_next_, has_fired_, is_active_;
  std::vector<std::vector<size_t>> parts_of_;
  std::vector<size_t> active_, rows_, next_rows_;
  std::vector<uint8_t> is_ending_, is_leaving_;
};

}  // namespace

ChartReach::ChartReach(const ChartPlan& plan, std::span<const uint8_t> allowed, size_t slots)
    : row_count(plan.rows()),
      arrival_count(plan.arrivals()),
      composition_count(plan.shared),
      rows((slots + 1) * row_count),
      arrivals((slots + 1) * arrival_count),
      compositions((slots + 1) * composition_count) {
  Prediction(plan, allowed, slots, *this);
}

}  // namespace structgen

// Charts of what is possible: the inside and the outside of a chart in which all weights are one or nothing, with a bit
// for each boundary where a way may end.  A chart of masses takes thirty times as long.
#include <bit>

#include "diffusion/chart.h"
#include "diffusion/chart_index.h"

namespace structgen {

namespace {

constexpr size_t kBits = 64;

// For every boundary and entry, a bit for each boundary.
class BitTable {
 public:
  BitTable(size_t entries, size_t slots) : entries_(entries), words_((slots + kBits) / kBits), pages_(entries * (slots + 1) * words_ * sizeof(uint64_t)) {}
  uint64_t* row(size_t boundary, size_t entry) { return static_cast<uint64_t*>(pages_.data()) + (boundary * entries_ + entry) * words_; }
  const uint64_t* row(size_t boundary, size_t entry) const { return const_cast<BitTable*>(this)->row(boundary, entry); }

 private:
  size_t entries_, words_;
  ZeroPages pages_;
};

class Possible {
 public:
  Possible(const ChartPlan& plan, std::span<const uint8_t> allowed, size_t slots, size_t max_steps, PossibleParses& made)
      : plan_(plan),
        allowed_(allowed),
        slots_(slots),
        words_((slots + kBits) / kBits),
        max_steps_(max_steps),
        reach_(plan, allowed, slots),
        masses_(plan.cells(), slots),
        arrivals_(plan.arrivals(), slots),
        parts_(at(plan.part_begin, plan.shared), slots),
        outlets_(at(plan.outlet_begin, plan.shared), slots),
        leaving_(plan.labels * words_),
        is_leaving_(plan.cells()),
        is_ending_(plan.cells()),
        made_(made) {
    for (int32_t cell : plan.leaving_cells) is_leaving_[static_cast<size_t>(cell)] = 1;
    for (int32_t cell : plan.ending_cells) is_ending_[static_cast<size_t>(cell)] = 1;
    for (size_t label = 0; label < plan.labels; ++label) {
      uint64_t* row = leaving_.data() + label * words_;
      row[0] = 1;
      for (size_t slot = 0; slot < slots; ++slot)
        if (is_allowed(slot, static_cast<int32_t>(label))) set(row, slot + 1);
    }
    made.steps = reach_.edges / 4 + plan.labels * slots / 8;
  }

  // Whether the limit suffices.
  bool read() {
    for (size_t boundary = slots_ + 1; boundary-- > 0;) {
      if (boundary < slots_) read_tokens(boundary);
      read_calls(boundary);
      if (!is_within()) return false;
    }
    return true;
  }
  const uint64_t* ends(size_t ending_cell) const { return masses_.row(0, ending_cell); }

  // Marks the labels that some parse takes which ends at one of `ends`.
  bool go_back(const std::vector<uint64_t>& ends, size_t ending_cell) {
    BitTable masses(plan_.cells(), slots_), arrivals(plan_.arrivals(), slots_), outlets(at(plan_.outlet_begin, plan_.shared), slots_);
    taken_masses_ = &masses;
    taken_arrivals_ = &arrivals;
    std::copy(ends.begin(), ends.end(), masses.row(0, ending_cell));
    for (size_t boundary = 0; boundary <= slots_; ++boundary) {
      leave_calls(boundary);
      if (boundary < slots_) leave_tokens(boundary, outlets);
      if (!is_within()) return false;
    }
    return true;
  }

 private:
  static void set(uint64_t* row, size_t bit) { row[bit / kBits] |= uint64_t{1} << bit % kBits; }
  bool is_allowed(size_t slot, int32_t label) const { return allowed_[slot * plan_.labels + static_cast<size_t>(label)] != 0; }
  const uint64_t* leaving(int32_t label) const { return leaving_.data() + static_cast<size_t>(label) * words_; }
  bool is_within() {
    made_.steps += std::exchange(rows_, 0) * (4 + words_) / 8;
    return made_.steps <= max_steps_;
  }
  void add(uint64_t* to, const uint64_t* from) {
    ++rows_;
    for (size_t word = 0; word < words_; ++word) to[word] |= from[word];
  }
  // Adds what two rows have in common, and returns whether that is anything.
  bool add_common(uint64_t* to, const uint64_t* one, const uint64_t* two) {
    ++rows_;
    uint64_t any = 0;
    for (size_t word = 0; word < words_; ++word) {
      const uint64_t common = one[word] & two[word];
      to[word] |= common;
      any |= common;
    }
    return any != 0;
  }
  bool any(const uint64_t* row) {
    ++rows_;
    uint64_t any = 0;
    for (size_t word = 0; word < words_; ++word) any |= row[word];
    return any != 0;
  }
  template <class Function>
  void for_each(const uint64_t* row, Function function) const {
    for (size_t word = 0; word < words_; ++word)
      for (uint64_t bits = row[word]; bits != 0; bits &= bits - 1) function(word * kBits + static_cast<size_t>(std::countr_zero(bits)));
  }
  const uint64_t* part(size_t index, size_t boundary, bool is_shared) const {
    if (is_shared) return parts_.row(boundary, index);
    return arrivals_.row(boundary, at(plan_.parts.first, at(plan_.parts.begin, index)));
  }
  uint8_t& found(size_t slot, int32_t label) { return made_.labels[slot * plan_.labels + static_cast<size_t>(label)]; }

  // The rows of all outlets of a composition, whose parts begin at the same boundary, one after the other.
  void compose(size_t composition, size_t boundary, bool is_shared, uint64_t* out) {
    for (size_t outlet = at(plan_.outlet_begin, composition); outlet < at(plan_.outlet_begin, composition + 1); ++outlet, out += words_)
      for (size_t way = at(plan_.outlets.begin, outlet); way < at(plan_.outlets.begin, outlet + 1); ++way) {
        const uint64_t* entered = part(at(plan_.outlets.first, way), boundary, is_shared);
        const int32_t cell = plan_.outlets.second[way];
        if (cell < 0)
          add(out, entered);
        else
          for_each(entered, [&](size_t middle) { add(out, masses_.row(middle, static_cast<size_t>(cell))); });
      }
  }

  void read_tokens(size_t boundary) {
    const size_t after = boundary + 1;
    for (size_t composition = 0; composition < plan_.shared; ++composition) {
      if (!reach_.composition(after, composition)) continue;
      for (size_t index = at(plan_.part_begin, composition); index < at(plan_.part_begin, composition + 1); ++index)
        for (size_t way = at(plan_.parts.begin, index); way < at(plan_.parts.begin, index + 1); ++way)
          if (is_allowed(boundary, plan_.parts.second[way])) add(parts_.row(after, index), arrivals_.row(after, at(plan_.parts.first, way)));
      if (at(plan_.outlet_begin, composition) < at(plan_.outlet_begin, composition + 1))
        compose(composition, after, true, outlets_.row(after, at(plan_.outlet_begin, composition)));
    }
    for (size_t state = 0; state < plan_.states; ++state) {
      if (!reach_.row(boundary, state)) continue;
      for (size_t cell = at(plan_.cell_begin, state); cell < at(plan_.cell_begin, state + 1); ++cell) {
        uint64_t* row = masses_.row(boundary, cell);
        for (size_t way = at(plan_.moves.begin, cell); way < at(plan_.moves.begin, cell + 1); ++way)
          if (is_allowed(boundary, plan_.moves.second[way])) add(row, masses_.row(after, at(plan_.moves.first, way)));
        if (plan_.outlet_of_cell[cell] >= 0) add(row, outlets_.row(after, at(plan_.outlet_of_cell, cell)));
        if (is_leaving_[cell]) set(row, after);
      }
    }
  }

  void read_calls(size_t boundary) {
    for (size_t state = 0; state < plan_.states; ++state) {
      if (!reach_.row(boundary, state)) continue;
      for (size_t cell = at(plan_.cell_begin, state); cell < at(plan_.cell_begin, state + 1); ++cell)
        if (is_ending_[cell]) set(masses_.row(boundary, cell), boundary);
    }
    for (size_t call = 0; call < plan_.row_of_call.size(); ++call) {
      for (size_t arrival = at(plan_.arrival_begin, call); arrival < at(plan_.arrival_begin, call + 1); ++arrival)
        if (reach_.arrival(boundary, arrival))
          for (size_t way = at(plan_.contractions.begin, arrival); way < at(plan_.contractions.begin, arrival + 1); ++way)
            add_common(arrivals_.row(boundary, arrival), masses_.row(boundary, at(plan_.contractions.first, way)), leaving(plan_.contractions.second[way]));
      if (plan_.row_of_call[call] < 0 || !reach_.row(boundary, at(plan_.row_of_call, call))) continue;
      const size_t row = at(plan_.row_of_call, call), first = at(plan_.cell_begin, row);
      if (first < at(plan_.cell_begin, row + 1)) compose(at(plan_.composition_of, row), boundary, false, masses_.row(boundary, first));
    }
  }

  void leave_calls(size_t boundary) {
    for (size_t call = plan_.row_of_call.size(); call-- > 0;) {
      if (plan_.row_of_call[call] >= 0 && reach_.row(boundary, at(plan_.row_of_call, call))) {
        const size_t row = at(plan_.row_of_call, call), first = at(plan_.cell_begin, row);
        if (first < at(plan_.cell_begin, row + 1)) leave_composition(at(plan_.composition_of, row), boundary, false, taken_masses_->row(boundary, first));
      }
      for (size_t arrival = at(plan_.arrival_begin, call); arrival < at(plan_.arrival_begin, call + 1); ++arrival) {
        if (!reach_.arrival(boundary, arrival) || !any(taken_arrivals_->row(boundary, arrival))) continue;
        const uint64_t* taken = taken_arrivals_->row(boundary, arrival);
        for (size_t way = at(plan_.contractions.begin, arrival); way < at(plan_.contractions.begin, arrival + 1); ++way) {
          const size_t cell = at(plan_.contractions.first, way);
          const int32_t label = plan_.contractions.second[way];
          std::vector<uint64_t>& here = scratch_;
          here.assign(words_, 0);
          if (!add_common(here.data(), taken, masses_.row(boundary, cell))) continue;
          for (size_t word = 0; word < words_; ++word) here[word] &= leaving(label)[word];
          add(taken_masses_->row(boundary, cell), here.data());
          for_each(here.data(), [&](size_t end) {
            if (end > 0) found(end - 1, label) = 1;
          });
        }
      }
    }
  }

  void leave_tokens(size_t boundary, BitTable& taken_outlets) {
    const size_t after = boundary + 1;
    for (size_t state = 0; state < plan_.states; ++state) {
      if (!reach_.row(boundary, state)) continue;
      for (size_t cell = at(plan_.cell_begin, state); cell < at(plan_.cell_begin, state + 1); ++cell) {
        const uint64_t* taken = taken_masses_->row(boundary, cell);
        if (!any(taken)) continue;
        for (size_t way = at(plan_.moves.begin, cell); way < at(plan_.moves.begin, cell + 1); ++way) {
          const size_t target = at(plan_.moves.first, way);
          const int32_t label = plan_.moves.second[way];
          if (is_allowed(boundary, label) && add_common(taken_masses_->row(after, target), taken, masses_.row(after, target))) found(boundary, label) = 1;
        }
        if (plan_.outlet_of_cell[cell] < 0) continue;
        const size_t outlet = at(plan_.outlet_of_cell, cell);
        add_common(taken_outlets.row(after, outlet), taken, outlets_.row(after, outlet));
      }
    }
    for (size_t composition = 0; composition < plan_.shared; ++composition) {
      const size_t outlet = at(plan_.outlet_begin, composition);
      if (reach_.composition(after, composition) && outlet < at(plan_.outlet_begin, composition + 1))
        leave_composition(composition, after, true, taken_outlets.row(after, outlet));
    }
  }

  // Goes on from the outlets of a composition that are taken to what they are made of.
  void leave_composition(size_t composition, size_t boundary, bool is_shared, const uint64_t* taken) {
    const size_t first = at(plan_.part_begin, composition), last = at(plan_.part_begin, composition + 1);
    part_taken_.assign((last - first) * words_, 0);
    bool is_taken = false;
    for (size_t outlet = at(plan_.outlet_begin, composition); outlet < at(plan_.outlet_begin, composition + 1); ++outlet, taken += words_) {
      if (!any(taken)) continue;
      is_taken = true;
      for (size_t way = at(plan_.outlets.begin, outlet); way < at(plan_.outlets.begin, outlet + 1); ++way) {
        const size_t index = at(plan_.outlets.first, way);
        const uint64_t* entered = part(index, boundary, is_shared);
        uint64_t* into = part_taken_.data() + (index - first) * words_;
        const int32_t cell = plan_.outlets.second[way];
        if (cell < 0)
          add_common(into, taken, entered);
        else
          for_each(entered, [&](size_t middle) {
            const auto of = static_cast<size_t>(cell);
            if (add_common(taken_masses_->row(middle, of), taken, masses_.row(middle, of))) set(into, middle);
          });
      }
    }
    if (!is_taken) return;
    for (size_t index = first; index < last; ++index) {
      const uint64_t* mine = part_taken_.data() + (index - first) * words_;
      if (!any(mine)) continue;
      for (size_t way = at(plan_.parts.begin, index); way < at(plan_.parts.begin, index + 1); ++way) {
        const size_t arrival = at(plan_.parts.first, way);
        const int32_t label = plan_.parts.second[way];
        if (is_shared && !is_allowed(boundary - 1, label)) continue;
        if (add_common(taken_arrivals_->row(boundary, arrival), mine, arrivals_.row(boundary, arrival)) && is_shared) found(boundary - 1, label) = 1;
      }
    }
  }

  const ChartPlan& plan_;
  std::span<const uint8_t> allowed_;
  size_t slots_, words_, max_steps_, rows_ = 0;  // rows that were added since steps were counted
  ChartReach reach_;
  BitTable masses_, arrivals_, parts_, outlets_;  // the last two of shared compositions, by the boundary after the token
  std::vector<uint64_t> leaving_;                 // by label: the boundaries after slots that may hold it
  std::vector<uint8_t> is_leaving_, is_ending_;
  std::vector<uint64_t> part_taken_, scratch_;
  BitTable *taken_masses_ = nullptr, *taken_arrivals_ = nullptr;
  PossibleParses& made_;
};

}  // namespace

PossibleParses::PossibleParses(const ChartPlan& plan, std::span<const uint8_t> allowed, std::span<const uint8_t> may_end, size_t ending_cell,
                               size_t max_steps)
    : ends(may_end.size()) {
  const size_t slots = may_end.size() - 1;
  Possible chart(plan, allowed, slots, max_steps, *this);
  is_complete = steps <= max_steps && chart.read();
  if (!is_complete) return;
  labels.resize(slots * plan.labels);
  std::vector<uint64_t> taken((slots + kBits) / kBits);
  bool is_any = false;
  for (size_t end = 0; end <= slots; ++end)
    if (may_end[end] && chart.ends(ending_cell)[end / kBits] >> end % kBits & 1) {
      taken[end / kBits] |= uint64_t{1} << end % kBits;
      ends[end] = 1;
      is_any = true;
    }
  if (is_any) is_complete = chart.go_back(taken, ending_cell);
}

}  // namespace structgen

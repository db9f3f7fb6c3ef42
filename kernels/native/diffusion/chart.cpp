// Charts from the inside and from the outside, and the loops over masses that both are made of.
#include "diffusion/chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/portable.h"
#include "diffusion/chart_index.h"
#include "diffusion/exponential.h"

namespace structgen {

namespace chart_loops {

constexpr double kNone = -std::numeric_limits<double>::infinity();

static_assert(kBlock * sizeof(double) == 2 * sizeof(Four));

// The largest of the terms at each position of `blocks` blocks.
STRUCTGEN_WIDE void maxima(const ChartTerm* terms, size_t count, size_t blocks, double* out) {
  for (size_t block = 0; block < blocks; ++block, out += kBlock) {
    Four low{kNone, kNone, kNone, kNone}, high = low;
    for (size_t term = 0; term < count; ++term) {
      if (terms[term].skipped > block) continue;
      const Four* row = reinterpret_cast<const Four*>(terms[term].row + (block - terms[term].skipped) * kBlock);
      Four first, second;
      add(first, row[0], terms[term].weight);
      add(second, row[1], terms[term].weight);
      take_larger(low, first);
      take_larger(high, second);
    }
    reinterpret_cast<Four*>(out)[0] = low;
    reinterpret_cast<Four*>(out)[1] = high;
  }
}

// The sums of the exponentials of the terms less `largest`, which are finite.
STRUCTGEN_WIDE void sums(const ChartTerm* terms, size_t count, size_t blocks, const double* largest, double* out) {
  for (size_t block = 0; block < blocks; ++block, out += kBlock, largest += kBlock) {
    std::array<double, kBlock> sum{};
    for (size_t term = 0; term < count; ++term) {
      if (terms[term].skipped > block) continue;
      const double* row = terms[term].row + (block - terms[term].skipped) * kBlock;
      const double weight = terms[term].weight;
      for (size_t lane = 0; lane < kBlock; ++lane) sum[lane] += exp_of(weight + row[lane] - largest[lane]);
    }
    for (size_t lane = 0; lane < kBlock; ++lane) out[lane] = sum[lane];
  }
}

STRUCTGEN_WIDE void sum_rows(double* out, const double* one, const double* two, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = one[i] + two[i];
}

// Adds to `into` what share of each whole the part is; returns the sum of that.
STRUCTGEN_WIDE double share(double* into, const double* shares, const double* whole, const double* row, double weight, size_t blocks) {
  std::array<double, kBlock> sum{};
  for (size_t i = 0; i < blocks * kBlock; i += kBlock)
    for (size_t lane = 0; lane < kBlock; ++lane) {
      const double part = shares[i + lane] * exp_of(weight + row[i + lane] - whole[i + lane]);
      into[i + lane] += part;
      sum[lane] += part;
    }
  return std::accumulate(sum.begin(), sum.end(), 0.0);
}

}  // namespace chart_loops

namespace {

using chart_loops::kNone;

constexpr double kMinLog = -1e300;  // instead of the logarithm of zero where it is subtracted

size_t first_of(size_t boundary) { return boundary / kBlock * kBlock; }

std::vector<uint8_t> possible(std::span<const double> weights) {
  std::vector<uint8_t> made;
  made.reserve(weights.size());
  for (double weight : weights) made.push_back(weight > kNone);
  return made;
}

}  // namespace

Chart::Chart(std::shared_ptr<const ChartPlan> plan, std::span<const double> weights, size_t slots, bool is_max, size_t max_steps)
    : plan_(std::move(plan)),
      slots_(slots),
      is_max_(is_max),
      reach_(*plan_, possible(weights), slots),
      steps_(reach_.edges / 4),
      outlet_count_(at(plan_->outlet_begin, plan_->shared)),
      holds_((slots + 1) * plan_->cells()),
      arrives_((slots + 1) * plan_->arrivals()),
      leads_((slots + 1) * outlet_count_),
      weights_(weights.begin(), weights.end()),
      leaving_(plan_->labels, slots),
      masses_(plan_->cells(), slots),
      arrivals_(plan_->arrivals(), slots),
      parts_(at(plan_->part_begin, plan_->shared), slots),
      outlets_(at(plan_->outlet_begin, plan_->shared), slots),
      largest_(masses_.width(0)),
      sums_(masses_.width(0)),
      is_leaving_(plan_->cells()),
      is_ending_(plan_->cells()),
      target_of_(plan_->cells(), -1) {
  size_t targets = 0;
  for (int32_t cell : plan_->outlets.second)
    if (cell >= 0 && target_of_[static_cast<size_t>(cell)] < 0) target_of_[static_cast<size_t>(cell)] = static_cast<int32_t>(targets++);
  targets_ = std::make_unique_for_overwrite<double[]>(targets * (slots + 1) * masses_.width(0));
  for (int32_t cell : plan_->leaving_cells) is_leaving_[static_cast<size_t>(cell)] = 1;
  for (int32_t cell : plan_->ending_cells) is_ending_[static_cast<size_t>(cell)] = 1;
  for (size_t label = 0; label < plan_->labels; ++label) {
    double* row = leaving_.row(0, label);
    std::fill_n(row, leaving_.width(0), 0.0);
    for (size_t slot = 0; slot < slots; ++slot) row[slot + 1] = weight(slot, static_cast<int32_t>(label));
  }
  for (size_t boundary = slots + 1; boundary-- > 0;) {
    read_on(boundary);
    if (steps_ > max_steps) {
      is_complete_ = false;
      return;
    }
  }
}

void Chart::add_term(double weight, const double* row, size_t begin, size_t boundary) {
  terms_.push_back({weight, row, begin / kBlock - boundary / kBlock});
}

// Writes the sum of `terms_` over the boundaries from `boundary` on; returns whether there are any.
bool Chart::combine(size_t boundary, double* out) {
  const size_t blocks = masses_.width(boundary) / kBlock;
  size_t taken = blocks;
  for (const ChartTerm& term : terms_) taken += blocks - term.skipped;
  steps_ += taken;
  if (is_max_ || terms_.size() < 2) {
    chart_loops::maxima(terms_.data(), terms_.size(), blocks, out);
    return !terms_.empty();
  }
  steps_ += taken + 4 * blocks;
  double *largest = largest_.data(), *sums = sums_.data();
  chart_loops::maxima(terms_.data(), terms_.size(), blocks, largest);
  for (size_t i = 0; i < blocks * kBlock; ++i) out[i] = std::max(largest[i], kMinLog);
  chart_loops::sums(terms_.data(), terms_.size(), blocks, out, sums);
  for (size_t i = 0; i < blocks * kBlock; ++i) out[i] = sums[i] == 1.0 || largest[i] == kNone ? largest[i] : largest[i] + std::log(sums[i]);
  return true;
}

// The rows of all outlets of a composition, whose parts begin at the same boundary; and whether each has any parse.
void Chart::compose(size_t composition, size_t boundary, bool is_shared, double* out, uint8_t* any) {
  const ChartPlan& plan = *plan_;
  const size_t width = masses_.width(boundary), start = first_of(boundary);
  for (size_t outlet = at(plan.outlet_begin, composition); outlet < at(plan.outlet_begin, composition + 1); ++outlet, out += width) {
    terms_.clear();
    for (size_t way = at(plan.outlets.begin, outlet); way < at(plan.outlets.begin, outlet + 1); ++way) {
      const double* entered = part(at(plan.outlets.first, way), boundary, is_shared);
      const int32_t cell = plan.outlets.second[way];
      if (cell < 0) {
        add_term(0.0, entered, boundary, boundary);
        continue;
      }
      for (size_t middle = boundary; middle <= slots_; ++middle)
        if (entered[middle - start] > kNone && holds(middle, static_cast<size_t>(cell)))
          add_term(entered[middle - start], target(static_cast<size_t>(cell), middle), middle, boundary);
    }
    *any++ = combine(boundary, out);
  }
}

void Chart::keep_target(size_t boundary, size_t cell) {
  if (target_of_[cell] < 0) return;
  const double* row = masses_.row(boundary, cell);
  steps_ += masses_.width(boundary) / kBlock;
  std::copy(row, row + masses_.width(boundary), targets_.get() + target_at(cell, boundary));
}

const double* Chart::part(size_t index, size_t boundary, bool is_shared) const {
  if (is_shared) return parts_.row(boundary, index);
  return arrivals_.row(boundary, at(plan_->parts.first, at(plan_->parts.begin, index)));
}

void Chart::read_tokens(size_t boundary) {
  const ChartPlan& plan = *plan_;
  const size_t after = boundary + 1;
  for (size_t composition = 0; composition < plan.shared; ++composition) {
    if (!reach_.composition(after, composition)) continue;
    for (size_t index = at(plan.part_begin, composition); index < at(plan.part_begin, composition + 1); ++index) {
      terms_.clear();
      for (size_t way = at(plan.parts.begin, index); way < at(plan.parts.begin, index + 1); ++way)
        if (const double mass = weight(boundary, plan.parts.second[way]); mass > kNone && arrives(after, at(plan.parts.first, way)))
          add_term(mass, arrivals_.row(after, at(plan.parts.first, way)), after, after);
      combine(after, parts_.row(after, index));
    }
    if (at(plan.outlet_begin, composition) < at(plan.outlet_begin, composition + 1))
      compose(composition, after, true, outlets_.row(after, at(plan.outlet_begin, composition)),
              &leads_[after * outlet_count_ + at(plan.outlet_begin, composition)]);
  }
  const size_t lead = masses_.width(boundary) - masses_.width(after);  // a block less where `after` begins one
  for (size_t state = 0; state < plan.states; ++state) {
    if (!reach_.row(boundary, state)) continue;
    for (size_t cell = at(plan.cell_begin, state); cell < at(plan.cell_begin, state + 1); ++cell) {
      terms_.clear();
      for (size_t way = at(plan.moves.begin, cell); way < at(plan.moves.begin, cell + 1); ++way)
        if (const double mass = weight(boundary, plan.moves.second[way]); mass > kNone && holds(after, at(plan.moves.first, way)))
          add_term(mass, masses_.row(after, at(plan.moves.first, way)), after, after);
      if (plan.outlet_of_cell[cell] >= 0 && leads(after, at(plan.outlet_of_cell, cell)))
        add_term(0.0, outlets_.row(after, at(plan.outlet_of_cell, cell)), after, after);
      double* row = masses_.row(boundary, cell);
      std::fill_n(row, lead, kNone);
      bool any = combine(after, row + lead);
      // Nothing else leaves before the slot after the boundary is read.
      if (is_leaving_[cell]) row[after - first_of(boundary)] = 0.0, any = true;
      holds_[boundary * plan.cells() + cell] = any;
    }
  }
}

void Chart::read_on(size_t boundary) {
  const ChartPlan& plan = *plan_;
  const size_t width = masses_.width(boundary), start = first_of(boundary);
  if (boundary < slots_) read_tokens(boundary);
  for (size_t state = 0; state < plan.states; ++state) {
    if (!reach_.row(boundary, state)) continue;
    for (size_t cell = at(plan.cell_begin, state); cell < at(plan.cell_begin, state + 1); ++cell) {
      if (boundary == slots_) std::fill_n(masses_.row(boundary, cell), width, kNone);
      if (is_ending_[cell]) {
        masses_.row(boundary, cell)[boundary - start] = 0.0;
        holds_[boundary * plan.cells() + cell] = 1;
      }
      keep_target(boundary, cell);
    }
  }
  for (size_t call = 0; call < plan.row_of_call.size(); ++call) {
    for (size_t arrival = at(plan.arrival_begin, call); arrival < at(plan.arrival_begin, call + 1); ++arrival)
      if (reach_.arrival(boundary, arrival)) arrive(boundary, arrival);
    if (plan.row_of_call[call] >= 0 && reach_.row(boundary, at(plan.row_of_call, call))) {
      const size_t row = at(plan.row_of_call, call), first = at(plan.cell_begin, row);
      if (first < at(plan.cell_begin, row + 1))
        compose(at(plan.composition_of, row), boundary, false, masses_.row(boundary, first), &holds_[boundary * plan.cells() + first]);
      for (size_t cell = first; cell < at(plan.cell_begin, row + 1); ++cell) keep_target(boundary, cell);
    }
  }
}

void Chart::arrive(size_t boundary, size_t arrival) {
  const ChartPlan& plan = *plan_;
  const size_t width = masses_.width(boundary), first = at(plan.contractions.begin, arrival), last = at(plan.contractions.begin, arrival + 1);
  scratch_.resize((last - first) * width);
  terms_.clear();
  for (size_t way = first; way < last; ++way) {
    const size_t cell = at(plan.contractions.first, way);
    if (!holds(boundary, cell)) continue;
    steps_ += width / kBlock;
    double* sum = scratch_.data() + (way - first) * width;
    chart_loops::sum_rows(sum, masses_.row(boundary, cell), leaving(plan.contractions.second[way], boundary), width);
    if (std::any_of(sum, sum + width, [](double mass) { return mass > kNone; })) add_term(0.0, sum, boundary, boundary);
  }
  arrives_[boundary * plan.arrivals() + arrival] = combine(boundary, arrivals_.row(boundary, arrival));
}

// The way back: shares of the ways through each row of a chart.
class ChartShares {
 public:
  ChartShares(const Chart& chart, std::span<const double> ends, size_t ending_cell, size_t max_steps)
      : chart_(chart),
        plan_(*chart.plan_),
        slots_(chart.slots_),
        masses_(plan_.cells(), slots_),
        arrivals_(plan_.arrivals(), slots_),
        outlets_(at(plan_.outlet_begin, plan_.shared), slots_),
        found_(slots_ * plan_.labels),
        scratch_(masses_.width(0)),
        sum_(masses_.width(0)),
        whole_(masses_.width(0)) {
    std::copy(ends.begin(), ends.end(), masses_.row(0, ending_cell));
    for (size_t boundary = 0; boundary <= slots_ && steps_ <= max_steps; ++boundary) {
      leave_calls(boundary);
      if (boundary < slots_) go_on(boundary);
    }
    if (steps_ > max_steps) found_.clear();
  }
  std::vector<double> take() { return std::move(found_); }
  size_t steps() const { return steps_; }

 private:
  void leave_calls(size_t boundary) {
    const size_t width = masses_.width(boundary), start = first_of(boundary);
    for (size_t call = plan_.row_of_call.size(); call-- > 0;) {
      if (plan_.row_of_call[call] >= 0 && chart_.reach_.row(boundary, at(plan_.row_of_call, call))) {
        const size_t row = at(plan_.row_of_call, call), cell = at(plan_.cell_begin, row);
        if (cell < at(plan_.cell_begin, row + 1))
          go_back(at(plan_.composition_of, row), boundary, false, masses_.row(boundary, cell), chart_.masses_.row(boundary, cell));
      }
      for (size_t arrival = at(plan_.arrival_begin, call); arrival < at(plan_.arrival_begin, call + 1); ++arrival) {
        const double* shares = arrivals_.row(boundary, arrival);
        if (!chart_.arrives(boundary, arrival) || !any(shares, width)) continue;
        const double* whole = safe(chart_.arrivals_.row(boundary, arrival), width);
        for (size_t way = at(plan_.contractions.begin, arrival); way < at(plan_.contractions.begin, arrival + 1); ++way) {
          const size_t cell = at(plan_.contractions.first, way);
          const int32_t label = plan_.contractions.second[way];
          if (!chart_.holds(boundary, cell)) continue;
          chart_loops::sum_rows(sum_.data(), chart_.masses_.row(boundary, cell), chart_.leaving(label, boundary), width);
          std::fill_n(scratch_.data(), width, 0.0);
          if (pass(scratch_.data(), shares, whole, sum_.data(), 0.0, width) == 0) continue;
          double* held = masses_.row(boundary, cell);
          for (size_t end = boundary; end <= slots_; ++end) {
            held[end - start] += scratch_[end - start];
            if (end > 0) found(end - 1, label) += scratch_[end - start];
          }
        }
      }
    }
  }

  void go_on(size_t boundary) {
    const size_t after = boundary + 1, width = masses_.width(after), lead = masses_.width(boundary) - width;
    for (size_t state = 0; state < plan_.states; ++state)
      if (chart_.reach_.row(boundary, state))
        for (size_t cell = at(plan_.cell_begin, state); cell < at(plan_.cell_begin, state + 1); ++cell) leave_cell(boundary, cell, lead, width);
    for (size_t composition = 0; composition < plan_.shared; ++composition) {
      const size_t outlet = at(plan_.outlet_begin, composition);
      if (chart_.reach_.composition(after, composition) && outlet < at(plan_.outlet_begin, composition + 1))
        go_back(composition, after, true, outlets_.row(after, outlet), chart_.outlets_.row(after, outlet));
    }
  }

  void leave_cell(size_t boundary, size_t cell, size_t lead, size_t width) {
    const size_t after = boundary + 1;
    const double* shares = masses_.row(boundary, cell) + lead;
    if (!chart_.holds(boundary, cell) || !any(shares, width)) return;
    const double* whole = safe(chart_.masses_.row(boundary, cell) + lead, width);
    for (size_t way = at(plan_.moves.begin, cell); way < at(plan_.moves.begin, cell + 1); ++way) {
      const int32_t label = plan_.moves.second[way];
      const double weight = chart_.weight(boundary, label);
      const size_t target = at(plan_.moves.first, way);
      if (weight == kNone || !chart_.holds(after, target)) continue;
      found(boundary, label) += pass(masses_.row(after, target), shares, whole, chart_.masses_.row(after, target), weight, width);
    }
    if (plan_.outlet_of_cell[cell] >= 0 && chart_.leads(after, at(plan_.outlet_of_cell, cell))) {
      const size_t outlet = at(plan_.outlet_of_cell, cell);
      pass(outlets_.row(after, outlet), shares, whole, chart_.outlets_.row(after, outlet), 0.0, width);
    }
  }

  // Passes the shares of the outlets of a composition on to what they are made of.
  void go_back(size_t composition, size_t boundary, bool is_shared, const double* shares, const double* whole) {
    const size_t width = masses_.width(boundary), first = at(plan_.part_begin, composition), last = at(plan_.part_begin, composition + 1);
    part_shares_.assign((last - first) * width, 0.0);
    bool is_reached = false;
    for (size_t outlet = at(plan_.outlet_begin, composition); outlet < at(plan_.outlet_begin, composition + 1);
         ++outlet, shares += width, whole += width) {
      if (!any(shares, width)) continue;
      is_reached = true;
      const double* bounded = safe(whole, width);
      for (size_t way = at(plan_.outlets.begin, outlet); way < at(plan_.outlets.begin, outlet + 1); ++way)
        leave_outlet(way, boundary, chart_.part(at(plan_.outlets.first, way), boundary, is_shared), shares, bounded,
                     part_shares_.data() + (at(plan_.outlets.first, way) - first) * width);
    }
    if (!is_reached) return;
    for (size_t index = first; index < last; ++index) {
      const double* mine = part_shares_.data() + (index - first) * width;
      if (!any(mine, width)) continue;
      const double* of_part = safe(chart_.part(index, boundary, is_shared), width);
      for (size_t way = at(plan_.parts.begin, index); way < at(plan_.parts.begin, index + 1); ++way) {
        const size_t arrival = at(plan_.parts.first, way);
        const int32_t label = plan_.parts.second[way];
        const double weight = is_shared ? chart_.weight(boundary - 1, label) : 0.0;
        if (weight == kNone || !chart_.arrives(boundary, arrival)) continue;
        const double passed = pass(arrivals_.row(boundary, arrival), mine, of_part, chart_.arrivals_.row(boundary, arrival), weight, width);
        if (is_shared) found(boundary - 1, label) += passed;
      }
    }
  }

  void leave_outlet(size_t way, size_t boundary, const double* entered, const double* shares, const double* whole, double* into) {
    const size_t width = masses_.width(boundary), start = first_of(boundary);
    if (plan_.outlets.second[way] < 0) {
      pass(into, shares, whole, entered, 0.0, width);
      return;
    }
    const size_t cell = at(plan_.outlets.second, way);
    for (size_t middle = boundary; middle <= slots_; ++middle) {
      const double mass = entered[middle - start];
      if (mass == kNone || !chart_.holds(middle, cell)) continue;
      const size_t skipped = first_of(middle) - start;
      into[middle - start] += pass(masses_.row(middle, cell), shares + skipped, whole + skipped, chart_.target(cell, middle), mass, width - skipped);
    }
  }

  double& found(size_t slot, int32_t label) { return found_[slot * plan_.labels + static_cast<size_t>(label)]; }
  // What may be subtracted: without infinities.
  const double* safe(const double* row, size_t width) {
    for (size_t i = 0; i < width; ++i) whole_[i] = std::max(row[i], kMinLog);
    return whole_.data();
  }
  bool any(const double* shares, size_t width) {
    steps_ += width / kBlock;
    double found = 0;
    for (size_t i = 0; i < width; ++i) found = std::max(found, shares[i]);
    return found > 0;
  }
  double pass(double* into, const double* shares, const double* whole, const double* row, double weight, size_t width) {
    steps_ += 3 * width / kBlock;
    return chart_loops::share(into, shares, whole, row, weight, width / kBlock);
  }

  const Chart& chart_;
  const ChartPlan& plan_;
  size_t slots_;
  ChartTable masses_, arrivals_, outlets_;
  std::vector<double> found_, scratch_, sum_, whole_, part_shares_;
  size_t steps_ = 0;
};

std::vector<double> Chart::label_shares(std::span<const double> ends, size_t ending_cell, size_t max_steps, size_t& steps) const {
  ChartShares shares(*this, ends, ending_cell, max_steps);
  steps += shares.steps();
  return shares.take();
}

}  // namespace structgen

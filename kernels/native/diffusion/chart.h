// Charts of recursive transition networks over the slots of a canvas: masses of all ways to read it, from the inside,
// and the share of them that takes each label, from the outside.
//
// Masses are kept as logarithms, so that nothing is lost whatever the probabilities: minus infinity is what cannot be.
// From boundary j between slots a way leads to a boundary k >= j; what belongs to j and an entry of a table of the plan
// is a row over k, and all rows of one j lie together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace structgen {

// Lists of pairs, one after the other.
struct PairLists {
  std::vector<int32_t> begin, first, second;
  size_t size() const { return begin.size() - 1; }
};

// The tables of `structgen.decode.diffusion.context_free.plan.Plan`, which documents them.
struct ChartPlan {
  size_t states = 0, shared = 0, labels = 0;
  std::vector<int32_t> cell_begin, port_of_cell, ending_cells, leaving_cells, outlet_of_cell, composition_of, row_of_call,
      arrival_begin, part_begin, outlet_begin;
  PairLists moves, contractions, parts, outlets;
  // Made by `finish`: the row of each cell; of each part, from `target_begin` on, the rows that it goes on with, or
  // -1 - port where it leads to a port; and the number of ports.
  std::vector<int32_t> row_of_cell, target_begin, targets;
  size_t ports = 0;

  size_t rows() const { return cell_begin.size() - 1; }
  size_t cells() const { return static_cast<size_t>(cell_begin.back()); }
  size_t arrivals() const { return contractions.size(); }
  // Throws std::invalid_argument where an index is out of range; then makes what follows from the tables.
  void finish();

 private:
  void check() const;
};

// What parses from the start may need, by boundary: the others are not computed.  Rules that end at a boundary are told
// apart by their port alone, so that some rows are here that no parse takes.
struct ChartReach {
  // `allowed`: whether each slot may hold each label.  [slots, labels]
  ChartReach(const ChartPlan& plan, std::span<const uint8_t> allowed, size_t slots);
  bool row(size_t boundary, size_t index) const { return rows[boundary * row_count + index] != 0; }
  bool arrival(size_t boundary, size_t index) const { return arrivals[boundary * arrival_count + index] != 0; }
  // Whether a token before the boundary may lead to the calls of a composition of states.
  bool composition(size_t boundary, size_t index) const { return compositions[boundary * composition_count + index] != 0; }

  size_t row_count, arrival_count, composition_count;
  std::vector<uint8_t> rows, arrivals, compositions;
  size_t edges = 0;  // that were looked at
};

// Rows begin and end with whole blocks of boundaries, so that loops over them need not look where they begin: what is
// before j or after the last boundary is minus infinity.
constexpr size_t kBlock = 8;

// Zeros, which take no memory where nothing is written.
class ZeroPages {
 public:
  explicit ZeroPages(size_t bytes);
  void* data() const { return data_.get(); }

 private:
  struct Freed {
    size_t mapped;  // bytes; 0 for memory of the heap
    void operator()(void* data) const;
  };
  std::unique_ptr<void, Freed> data_;
};

// For every boundary j, `entries` rows over the boundaries from j on.
class ChartTable {
 public:
  ChartTable(size_t entries, size_t slots);
  double* row(size_t boundary, size_t entry) { return data() + offsets_[boundary] + entry * width(boundary); }
  const double* row(size_t boundary, size_t entry) const { return const_cast<ChartTable*>(this)->row(boundary, entry); }
  size_t width(size_t boundary) const { return ((slots_ + kBlock) / kBlock - boundary / kBlock) * kBlock; }
  size_t size() const { return offsets_.back(); }
  double* data() { return static_cast<double*>(pages_.data()); }

 private:
  size_t slots_;
  std::vector<size_t> offsets_;
  ZeroPages pages_;
};

struct ChartTerm {  // weight + row; the first block of the row is that of the sum with the number `skipped`
  double weight;
  const double* row;
  size_t skipped;
};

class Chart {
 public:
  // `weights`: log weight of every label in every slot.  Where more than `max_steps` are needed, the chart is left
  // incomplete.
  Chart(std::shared_ptr<const ChartPlan> plan, std::span<const double> weights, size_t slots, bool is_max, size_t max_steps);

  const ChartTable& masses() const { return masses_; }
  const ChartTable& arrivals() const { return arrivals_; }
  size_t slots() const { return slots_; }
  const ChartPlan& plan() const { return *plan_; }
  const ChartReach& reach() const { return reach_; }
  // Blocks of masses that were added or compared, the logarithm of a block counting as four.
  size_t steps() const { return steps_; }
  bool is_complete() const { return is_complete_; }

  // How many times a way takes each label in each slot, [slots, labels], where `ends` are the shares of the ways by the
  // boundary where they end.  Adds to `steps`; nothing where more than `max_steps` are needed.
  std::vector<double> label_shares(std::span<const double> ends, size_t ending_cell, size_t max_steps, size_t& steps) const;

 private:
  void read_on(size_t boundary);
  void read_tokens(size_t boundary);
  void add_term(double weight, const double* row, size_t begin, size_t boundary);
  void arrive(size_t boundary, size_t arrival);
  void compose(size_t composition, size_t boundary, bool is_shared, double* out, uint8_t* any);
  const double* part(size_t index, size_t boundary, bool is_shared) const;
  bool combine(size_t boundary, double* out);
  void keep_target(size_t boundary, size_t cell);
  // The row of a cell that some composition goes on with, from a copy where all rows of the cell lie together.
  const double* target(size_t cell, size_t boundary) const { return targets_.get() + target_at(cell, boundary); }
  size_t target_at(size_t cell, size_t boundary) const {
    const size_t index = static_cast<size_t>(target_of_[cell]) * (slots_ + 1) + boundary;
    return index * masses_.width(0) + boundary / kBlock * kBlock;
  }
  double weight(size_t slot, int32_t label) const { return weights_[slot * plan_->labels + static_cast<size_t>(label)]; }
  // Weights of a label in the slot before each boundary, from the block of `boundary` on.
  const double* leaving(int32_t label, size_t boundary) const {
    return leaving_.row(0, static_cast<size_t>(label)) + boundary / kBlock * kBlock;
  }

  // Whether a row of masses, an arrival or an outlet of a state is other than all impossible.
  bool holds(size_t boundary, size_t cell) const { return holds_[boundary * plan_->cells() + cell] != 0; }
  bool arrives(size_t boundary, size_t arrival) const { return arrives_[boundary * plan_->arrivals() + arrival] != 0; }
  bool leads(size_t boundary, size_t outlet) const { return leads_[boundary * outlet_count_ + outlet] != 0; }

  std::shared_ptr<const ChartPlan> plan_;
  size_t slots_;
  bool is_max_;
  ChartReach reach_;
  size_t steps_ = 0;
  bool is_complete_ = true;
  size_t outlet_count_;
  std::vector<uint8_t> holds_, arrives_, leads_;
  std::vector<double> weights_;
  ChartTable leaving_, masses_, arrivals_;
  ChartTable parts_, outlets_;  // of shared compositions, by the boundary after the token that leads to them
  std::vector<ChartTerm> terms_;
  std::vector<double> scratch_, largest_, sums_;
  std::vector<uint8_t> is_leaving_, is_ending_;
  std::vector<int32_t> target_of_;
  std::unique_ptr<double[]> targets_;
  friend class ChartShares;
};

// Whether some parse takes each label in each slot, where all ways count alike.
struct PossibleParses {
  // `allowed`: whether each slot may hold each label, [slots, labels]; `may_end`: whether a string may end at each boundary.
  PossibleParses(const ChartPlan& plan, std::span<const uint8_t> allowed, std::span<const uint8_t> may_end, size_t ending_cell, size_t max_steps);

  bool is_complete = false;
  size_t steps = 0;
  std::vector<uint8_t> ends;    // whether a parse ends there; [slots + 1]
  std::vector<uint8_t> labels;  // [slots, labels]
};

}  // namespace structgen

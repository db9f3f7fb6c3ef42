// Charts of recursive transition networks over the slots of a canvas: masses of all ways to read it, from the inside,
// and the share of them that takes each label, from the outside.
//
// Masses are kept as logarithms, so that nothing is lost whatever the probabilities: minus infinity is what cannot be.
// From boundary j between slots a way leads to a boundary k >= j; what belongs to j and an entry of a table of the plan
// is a row over k, and all rows of one j lie together.
#pragma once

#include <cstddef>
#include <cstdint>
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
  std::vector<int32_t> cell_begin, ending_cells, leaving_cells, outlet_of_cell, composition_of, row_of_call, arrival_begin,
      part_begin, outlet_begin;
  PairLists moves, contractions, parts, outlets;

  size_t rows() const { return cell_begin.size() - 1; }
  size_t cells() const { return static_cast<size_t>(cell_begin.back()); }
  size_t arrivals() const { return contractions.size(); }
  // Throws std::invalid_argument where an index is out of range.
  void check() const;
};

// Rows begin and end with whole blocks of boundaries, so that loops over them need not look where they begin: what is
// before j or after the last boundary is minus infinity.
constexpr size_t kBlock = 8;

// For every boundary j, `entries` rows over the boundaries from j on.
class ChartTable {
 public:
  ChartTable(size_t entries, size_t slots);
  double* row(size_t boundary, size_t entry) { return data_.get() + offsets_[boundary] + entry * width(boundary); }
  const double* row(size_t boundary, size_t entry) const { return const_cast<ChartTable*>(this)->row(boundary, entry); }
  size_t width(size_t boundary) const { return ((slots_ + kBlock) / kBlock - boundary / kBlock) * kBlock; }
  size_t size() const { return offsets_.back(); }
  double* data() { return data_.get(); }
  void fill(double value);

 private:
  size_t slots_;
  std::vector<size_t> offsets_;
  std::unique_ptr<double[]> data_;
};

struct ChartTerm {  // weight + row; the first block of the row is that of the sum with the number `skipped`
  double weight;
  const double* row;
  size_t skipped;
};

class Chart {
 public:
  // `weights`: log weight of every label in every slot.
  Chart(std::shared_ptr<const ChartPlan> plan, std::span<const double> weights, size_t slots, bool is_max);

  const ChartTable& masses() const { return masses_; }
  const ChartTable& arrivals() const { return arrivals_; }
  size_t slots() const { return slots_; }
  const ChartPlan& plan() const { return *plan_; }

  // How many times a way takes each label in each slot, [slots, labels], where `ends` are the shares of the ways by the
  // boundary where they end.  Of a chart of maxima, whose weights must be 0 or minus infinity: 1 for what some way takes.
  std::vector<double> label_shares(std::span<const double> ends, size_t ending_cell) const;

 private:
  void read_on(size_t boundary);
  void read_tokens(size_t boundary);
  void add_term(double weight, const double* row, size_t begin, size_t boundary);
  void compose(size_t composition, size_t boundary, bool is_shared, double* out);
  const double* part(size_t index, size_t boundary, bool is_shared) const;
  void combine(size_t boundary, double* out);
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

  std::shared_ptr<const ChartPlan> plan_;
  size_t slots_;
  bool is_max_;
  std::vector<double> weights_;
  ChartTable leaving_, masses_, arrivals_;
  ChartTable parts_, outlets_;  // of shared compositions, by the boundary after the token that leads to them
  std::vector<ChartTerm> terms_;
  std::vector<double> scratch_, largest_, sums_;
  std::vector<uint8_t> is_leaving_;
  std::vector<int32_t> target_of_;
  std::unique_ptr<double[]> targets_;
  friend class ChartShares;
};

}  // namespace structgen

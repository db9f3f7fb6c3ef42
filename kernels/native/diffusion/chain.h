// Messages along the slots of a canvas, over the edges of an automaton, in logarithms.
//
// One edge is taken in each slot.  Everything that a decoder queries about all runs follows from the weight of the runs
// that lead to a state, and of those that go on from it: of all together, or of the best.  Most states of a large
// automaton are not reached at most boundaries between slots, so messages are kept for the others only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace structgen {

// The edges of an automaton by increasing source: state s has [begin[s], begin[s + 1]).  State 0 is the start.
struct ChainEdges {
  std::vector<int64_t> begin;
  std::vector<int32_t> target, label;
  std::vector<uint8_t> final;
  size_t labels = 0;
  // Made by `finish`: the number of edges to a final state, and `kFar` where there are none.
  std::vector<uint32_t> distance;

  static constexpr uint32_t kFar = UINT32_MAX;
  size_t states() const { return begin.size() - 1; }
  size_t first(size_t state) const { return static_cast<size_t>(begin[state]); }
  size_t last(size_t state) const { return static_cast<size_t>(begin[state + 1]); }
  void finish(std::span<const int32_t> source);
};

// The messages of one canvas.
class Chain {
 public:
  // `weights`: log weight of every label in every slot, a row for each slot.  Where more than `max_steps` are needed, the
  // chain is left incomplete and must not be read.
  Chain(std::shared_ptr<const ChainEdges> edges, std::span<const double> weights, size_t slots, bool is_max, size_t max_steps);

  size_t slots() const { return slots_; }
  const ChainEdges& edges() const { return *edges_; }
  bool is_complete() const { return is_complete_; }
  // Elementary steps; those of `forward` and `label_masses` are added when they are computed.
  size_t steps() const { return steps_; }
  // Weight of all runs, or of the best.
  double total() const;

  // Messages of reached states, the others minus infinity.  [slots + 1, states]
  std::vector<double> backward() const { return table(backward_); }
  // Likewise.
  std::vector<double> forward();
  // States that a run leads to and from which enough slots are left to reach a final state.  [slots + 1, states]
  std::vector<uint8_t> reached() const;
  // What all runs that have a label in a slot weigh, but for the label.  [slots, labels]
  std::vector<double> label_masses();
  // A run from the start, whose message must be finite: with a uniform number for each slot drawn by its weight, without
  // numbers the best, of equal ones the one of the first edges.  [slots], edges
  std::vector<int64_t> run(std::span<const double> uniform) const;

 private:
  void reach();
  void go_on();
  void put_label_masses(size_t first, size_t last, double* out) const;
  std::vector<double> table(const std::vector<double>& messages) const;
  // Of a pass over all edges of reached states: an edge is three eighths of a step, or six where sums are wanted.
  size_t pass_steps() const { return edge_count_ * (is_max_ ? 3 : 6) / 8; }
  const double* weight(size_t slot) const { return weights_.data() + slot * edges_->labels; }
  size_t first(size_t boundary) const { return begin_[boundary]; }
  size_t last(size_t boundary) const { return begin_[boundary + 1]; }
  // The message of a state that is reached at a boundary; minus infinity of another.
  double after(size_t boundary, int32_t state) const;

  std::shared_ptr<const ChainEdges> edges_;
  size_t slots_;
  bool is_max_;
  size_t max_steps_, steps_ = 0, edge_count_ = 0;
  bool is_complete_ = true;
  std::vector<double> weights_;
  std::vector<size_t> begin_;     // of each boundary in the following, which have the states of each in increasing order
  std::vector<int32_t> reached_;
  std::vector<double> backward_, forward_;
};

}  // namespace structgen

// Messages along the slots of a canvas, over the edges of an automaton, in logarithms.
//
// One edge is taken in each slot.  Everything that a decoder queries about all runs follows from the weight of the runs
// that lead to a state, and of those that go on from it: of all together, or of the best.  Most states of a large
// automaton are not reached at most boundaries between slots, so messages are kept for the others only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <variant>
#include <vector>

namespace structgen {

// The edges of an automaton by increasing source: state s has [begin[s], begin[s + 1]).  State 0 is the start.
struct ChainEdges {
  std::vector<int64_t> begin;
  std::vector<int32_t> target, label;
  std::vector<uint8_t> final;
  size_t labels = 0;
  std::vector<uint32_t> distance;  // the number of edges to a final state, and `kFar` where there are none

  static constexpr uint32_t kFar = UINT32_MAX;
  size_t states() const { return begin.size() - 1; }
  size_t first(size_t state) const { return static_cast<size_t>(begin[state]); }
  size_t last(size_t state) const { return static_cast<size_t>(begin[state + 1]); }
};

// The number of edges from each state to a final one; `ChainEdges::kFar` where there are none.
std::vector<uint32_t> edge_distances(std::span<const int32_t> source, std::span<const int32_t> target, std::span<const uint8_t> final);

// The states that runs lead to at each boundary between slots, and from which enough slots are left to reach a final one.
struct ChainReach {
  std::vector<size_t> begin;    // of each boundary in the following, which have the states of each in increasing order
  std::vector<int32_t> states;
  size_t edges = 0;             // of all these states
  size_t steps = 0;
  bool is_complete = true;

  // `allows(slot, label)`: whether a slot may hold a label.
  template <class Allows>
  ChainReach(const ChainEdges& edges, size_t slots, size_t max_steps, Allows allows);
  size_t first(size_t boundary) const { return begin[boundary]; }
  size_t last(size_t boundary) const { return begin[boundary + 1]; }
  std::span<const int32_t> at(size_t boundary) const { return std::span(states).subspan(first(boundary), last(boundary) - first(boundary)); }
};

// Which labels some run from the start to a final state has in each slot, where all labels count alike.
struct PossibleRuns {
  // `allowed`: whether each slot may hold each label.  [slots, labels]
  PossibleRuns(const ChainEdges& edges, std::span<const uint8_t> allowed, size_t slots, size_t max_steps);

  bool is_complete, any = false;
  size_t steps;
  std::vector<uint8_t> labels;  // [slots, labels]
};

// The mass of alternatives as their maximum: its logarithm.
struct BestMass {
  double log;

  static BestMass of(double log) { return {log}; }
  static BestMass none() { return {-std::numeric_limits<double>::infinity()}; }
  bool is_none() const { return !(log > -std::numeric_limits<double>::infinity()); }
  BestMass operator*(BestMass other) const { return {log + other.log}; }
  void add(BestMass other) {
    if (other.log > log) log = other.log;
  }
  void settle() {}
  double to_log() const { return log; }
};

// The mass of alternatives as their sum: part * 2^(256 * power), so that nothing is lost whatever the probabilities.
// An addition and a product take a tenth of what they take in logarithms.
struct SumMass {
  double part;
  int64_t power;

  static SumMass of(double log);
  static SumMass none() { return {0.0, 0}; }
  bool is_none() const { return part == 0; }
  // Of settled masses.
  SumMass operator*(SumMass other) const { return {part * other.part, power + other.power}; }
  void add(SumMass other) {
    if (power == other.power)
      part += other.part;
    else
      add_scaled(other);
  }
  // Brings `part` back to 2^-128 .. 2^128.
  void settle();
  double to_log() const;

 private:
  void add_scaled(SumMass other);
};

// The messages of one canvas in one of these algebras.
template <class Mass>
class ChainMessages {
 public:
  ChainMessages(const ChainEdges& edges, const ChainReach& reach, std::span<const double> weights, size_t slots);
  // From each reached state to the end.
  const std::vector<Mass>& backward() const { return backward_; }
  // To each reached state from the start, and what all runs that have a label in a slot weigh, but for the label.
  // [slots, labels]
  std::vector<Mass> go_on(std::vector<double>* label_masses) const;
  // The message of a state that is reached at a boundary; none of another.
  Mass after(size_t boundary, int32_t state) const;

 private:
  std::vector<Mass> row(size_t slot) const;

  const ChainEdges& edges_;
  const ChainReach& reach_;
  std::span<const double> weights_;
  size_t slots_;
  std::vector<Mass> backward_;
};

// The messages of one canvas.
class Chain {
 public:
  // `weights`: log weight of every label in every slot, a row for each slot.  Where more than `max_steps` are needed, the
  // chain is left incomplete and must not be read.
  Chain(std::shared_ptr<const ChainEdges> edges, std::span<const double> weights, size_t slots, bool is_max, size_t max_steps);
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;

  size_t slots() const { return slots_; }
  const ChainEdges& edges() const { return *edges_; }
  bool is_complete() const { return messages_.index() > 0; }
  // Elementary steps; those of `forward` and `label_masses` are not among them.
  size_t steps() const { return steps_; }
  size_t forward_steps() const { return reach_.edges / 2; }
  // Weight of all runs, or of the best.
  double total() const;

  // Messages of reached states, the others minus infinity.  [slots + 1, states]
  std::vector<double> backward() const;
  // Likewise.
  std::vector<double> forward() const;
  // States that a run leads to and from which enough slots are left to reach a final state.  [slots + 1, states]
  std::vector<uint8_t> reached() const;
  // What all runs that have a label in a slot weigh, but for the label.  [slots, labels]
  std::vector<double> label_masses() const;
  // A run from the start, whose message must be finite: with a uniform number for each slot drawn by its weight, without
  // numbers the best, of equal ones the one of the first edges.  [slots], edges
  std::vector<int64_t> run(std::span<const double> uniform) const;

 private:
  template <class Mass>
  std::vector<double> table(const std::vector<Mass>& messages) const;

  std::shared_ptr<const ChainEdges> edges_;
  size_t slots_, steps_ = 0;
  std::vector<double> weights_;
  ChainReach reach_;
  std::variant<std::monostate, ChainMessages<BestMass>, ChainMessages<SumMass>> messages_;
};

// How long random walks over the edges of an automaton are.
struct WalkLengths {
  size_t typical, longest, steps;  // both at most the largest; `longest` at most that which is asked for
  bool is_complete;
};

// Follows walks from state 0 that take an edge by its share, or stop, until `covered` of them have stopped at most, or none
// goes on, or `max_length` is reached; and then until the next multiple of `multiple`, for no longer length matters.
//   edges of the states as in ChainEdges; share: of each edge; stop: of each state
WalkLengths walk_lengths(std::span<const int64_t> begin, std::span<const int32_t> target, std::span<const double> share,
                         std::span<const double> stop, double covered, size_t multiple, size_t max_length, size_t max_steps);

}  // namespace structgen

// Messages along the slots of a canvas, over the edges of an automaton, in logarithms.
//
// One edge is taken in each slot.  Everything that a decoder queries about all runs follows from the weight of the runs
// that lead to a state, and of those that go on from it: of all together, or of the best.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace structgen {

// Edges, those of a group next to each other: group g holds [begin[g], begin[g + 1]).
struct Grouped {
  std::span<const int64_t> begin;
  std::span<const int32_t> source, target, label;

  size_t groups() const { return begin.size() - 1; }
};

// Log weights: a row of labels for each slot.
struct Weights {
  std::span<const double> values;
  size_t slots, labels;

  const double* slot(size_t number) const { return values.data() + number * labels; }
};

// From each state after `slot` slots to the end; edges are grouped by their source.  The last row of `out` is given.
//   out: [slots + 1, states]
void backward_messages(const Weights& weights, const Grouped& by_source, bool is_max, double* out);

// From the start to each state after `slot` slots; edges are grouped by their target.  The first row of `out` is given.
//   out: [slots + 1, states]
void forward_messages(const Weights& weights, const Grouped& by_target, bool is_max, double* out);

// What all runs that have a label in a slot weigh, but for the label; edges are grouped by their label.
//   forward, backward: [slots + 1, states]   out: [slots, labels]
void label_masses(size_t slots, size_t states, const Grouped& by_label, std::span<const double> forward,
                  std::span<const double> backward, bool is_max, double* out);

// A run from state 0, which must have a finite message: with a uniform number for each slot drawn by its weight, without
// numbers the best, of equal ones the one of the first edges.
//   taken: [slots], edges
void run_chain(const Weights& weights, size_t states, const Grouped& by_source, std::span<const double> backward,
               std::span<const double> uniform, int64_t* taken);

}  // namespace structgen

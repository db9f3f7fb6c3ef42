#include "chain.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace structgen {

namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();
// What is so much smaller than the largest of a sum is not seen beside it, not even a million times over.
constexpr double kUnseen = -51;

// Reduces through(edge) over the edges of each group, to out[group].
template <class Through>
void reduce(const Grouped& edges, bool is_max, std::vector<double>& held, Through through, double* out) {
  for (size_t group = 0; group < edges.groups(); ++group) {
    const auto begin = static_cast<size_t>(edges.begin[group]), end = static_cast<size_t>(edges.begin[group + 1]);
    double largest = kNone;
    held.clear();
    for (size_t edge = begin; edge < end; ++edge) {
      held.push_back(through(edge));
      largest = std::max(largest, held.back());
    }
    out[group] = largest;
    if (is_max || held.size() < 2 || largest == kNone) continue;
    double sum = 0;
    for (double each : held)
      if (each - largest > kUnseen) sum += std::exp(each - largest);
    out[group] = largest + std::log(sum);
  }
}

}  // namespace

void backward_messages(const Weights& weights, const Grouped& by_source, bool is_max, double* out) {
  const size_t states = by_source.groups();
  std::vector<double> held;
  for (size_t slot = weights.slots; slot-- > 0;) {
    const double *weight = weights.slot(slot), *after = out + (slot + 1) * states;
    reduce(by_source, is_max, held, [&](size_t edge) { return weight[by_source.label[edge]] + after[by_source.target[edge]]; }, out + slot * states);
  }
}

void forward_messages(const Weights& weights, const Grouped& by_target, bool is_max, double* out) {
  const size_t states = by_target.groups();
  std::vector<double> held;
  for (size_t slot = 0; slot < weights.slots; ++slot) {
    const double *weight = weights.slot(slot), *before = out + slot * states;
    reduce(by_target, is_max, held, [&](size_t edge) { return weight[by_target.label[edge]] + before[by_target.source[edge]]; },
           out + (slot + 1) * states);
  }
}

void label_masses(size_t slots, size_t states, const Grouped& by_label, std::span<const double> forward,
                  std::span<const double> backward, bool is_max, double* out) {
  std::vector<double> held;
  for (size_t slot = 0; slot < slots; ++slot) {
    const double *before = forward.data() + slot * states, *after = backward.data() + (slot + 1) * states;
    reduce(by_label, is_max, held, [&](size_t edge) { return before[by_label.source[edge]] + after[by_label.target[edge]]; },
           out + slot * by_label.groups());
  }
}

void run_chain(const Weights& weights, size_t states, const Grouped& by_source, std::span<const double> backward,
               std::span<const double> uniform, int64_t* taken) {
  std::vector<double> held;
  size_t state = 0;
  for (size_t slot = 0; slot < weights.slots; ++slot) {
    const double *weight = weights.slot(slot), *after = backward.data() + (slot + 1) * states;
    const auto begin = static_cast<size_t>(by_source.begin[state]), end = static_cast<size_t>(by_source.begin[state + 1]);
    held.clear();
    for (size_t edge = begin; edge < end; ++edge) held.push_back(weight[by_source.label[edge]] + after[by_source.target[edge]]);
    const auto best = std::max_element(held.begin(), held.end());
    if (held.empty() || *best == kNone) throw std::domain_error("no run leads on from state " + std::to_string(state));
    auto chosen = static_cast<size_t>(best - held.begin());
    if (!uniform.empty()) {
      const double largest = *best;
      double sum = 0;
      for (double& each : held) sum += each = std::exp(each - largest);
      double left = uniform[slot] * sum;
      for (size_t i = 0; i < held.size(); ++i) {
        if (held[i] == 0) continue;  // never taken, whatever rounding does
        chosen = i;
        if ((left -= held[i]) < 0) break;
      }
    }
    taken[slot] = static_cast<int64_t>(begin + chosen);
    state = static_cast<size_t>(by_source.target[begin + chosen]);
  }
}

}  // namespace structgen

#include "diffusion/chain.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "diffusion/exponential.h"
#include "diffusion/wide.h"

namespace structgen {

namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

STRUCTGEN_WIDE void exponentials(double* values, size_t count) {
  for (size_t i = 0; i < count; ++i) values[i] = exp_of(values[i]);
}

// Reduces through(edge) over the edges of each group, to out[group].
template <class Through>
void reduce(const Grouped& edges, bool is_max, std::vector<double>& held, Through through, double* out) {
  held.resize(edges.source.size());
  double* values = held.data();
  for (size_t group = 0; group < edges.groups(); ++group) {
    const auto begin = static_cast<size_t>(edges.begin[group]), end = static_cast<size_t>(edges.begin[group + 1]);
    double largest = kNone;
    for (size_t edge = begin; edge < end; ++edge) {
      values[edge] = through(edge);
      largest = values[edge] > largest ? values[edge] : largest;
    }
    out[group] = largest;
    for (size_t edge = begin; edge < end; ++edge) values[edge] -= largest;
  }
  if (is_max) return;
  exponentials(values, held.size());  // of all edges together, however few a group has
  for (size_t group = 0; group < edges.groups(); ++group) {
    const auto begin = static_cast<size_t>(edges.begin[group]), end = static_cast<size_t>(edges.begin[group + 1]);
    if (out[group] == kNone || end - begin < 2) continue;
    double sum = 0;
    for (size_t edge = begin; edge < end; ++edge) sum += values[edge];
    out[group] += std::log(sum);
  }
}

}  // namespace

void backward_messages(const Weights& weights, const Grouped& by_source, bool is_max, double* out) {
  const size_t states = by_source.groups();
  const int32_t *label = by_source.label.data(), *target = by_source.target.data();
  std::vector<double> held;
  for (size_t slot = weights.slots; slot-- > 0;) {
    const double *weight = weights.slot(slot), *after = out + (slot + 1) * states;
    reduce(by_source, is_max, held, [=](size_t edge) { return weight[label[edge]] + after[target[edge]]; }, out + slot * states);
  }
}

void forward_messages(const Weights& weights, const Grouped& by_target, bool is_max, double* out) {
  const size_t states = by_target.groups();
  const int32_t *label = by_target.label.data(), *source = by_target.source.data();
  std::vector<double> held;
  for (size_t slot = 0; slot < weights.slots; ++slot) {
    const double *weight = weights.slot(slot), *before = out + slot * states;
    reduce(by_target, is_max, held, [=](size_t edge) { return weight[label[edge]] + before[source[edge]]; }, out + (slot + 1) * states);
  }
}

void label_masses(size_t slots, size_t states, const Grouped& by_label, std::span<const double> forward,
                  std::span<const double> backward, bool is_max, double* out) {
  const int32_t *source = by_label.source.data(), *target = by_label.target.data();
  parallel_for(slots, [&](size_t slot) {
    std::vector<double> held;
    const double *before = forward.data() + slot * states, *after = backward.data() + (slot + 1) * states;
    reduce(by_label, is_max, held, [=](size_t edge) { return before[source[edge]] + after[target[edge]]; },
           out + slot * by_label.groups());
  });
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

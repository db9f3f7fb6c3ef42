#include "diffusion/chain.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "base/thread_pool.h"
#include "diffusion/exponential.h"
#include "diffusion/wide.h"

namespace structgen {

namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();
constexpr size_t kBlock = 8;

STRUCTGEN_WIDE void exponentials(double* values, size_t count) {
  for (size_t i = 0; i < count; ++i) values[i] = exp_of(values[i]);
}

// Values that are reduced to their maximum, or to the logarithm of the sum of their exponentials, each to one of some
// places; those of one place in the order in which they are added.
class Reduction {
 public:
  explicit Reduction(bool is_max) : is_max_(is_max) {}
  void begin() {
    values_.clear();
    places_.clear();
  }
  void add(double value, size_t place, double* out) {
    if (value > out[place]) out[place] = value;
    if (is_max_) return;
    values_.push_back(value);
    places_.push_back(static_cast<uint32_t>(place));
  }
  // `out` holds the maxima.
  void finish(double* out, size_t places) {
    if (is_max_) return;
    for (size_t i = 0; i < values_.size(); ++i) values_[i] -= out[places_[i]];
    exponentials(values_.data(), values_.size());
    sums_.assign(places, 0.0);
    for (size_t i = 0; i < values_.size(); ++i) sums_[places_[i]] += values_[i];
    for (size_t place = 0; place < places; ++place)
      if (out[place] != kNone) out[place] += std::log(sums_[place]);
  }

 private:
  bool is_max_;
  std::vector<double> values_, sums_;
  std::vector<uint32_t> places_;
};

// A number for each of some states, which are forgotten one by one so that no boundary pays for all states.
template <class Value>
class Scratch {
 public:
  Scratch(size_t states, Value none) : none_(none), values_(states, none) {}
  void put(std::span<const int32_t> states, const Value* values) {
    for (size_t i = 0; i < states.size(); ++i) values_[static_cast<size_t>(states[i])] = values[i];
  }
  void put_positions(std::span<const int32_t> states) {
    for (size_t i = 0; i < states.size(); ++i) values_[static_cast<size_t>(states[i])] = static_cast<Value>(i);
  }
  void forget(std::span<const int32_t> states) {
    for (int32_t state : states) values_[static_cast<size_t>(state)] = none_;
  }
  Value operator[](int32_t state) const { return values_[static_cast<size_t>(state)]; }

 private:
  Value none_;
  std::vector<Value> values_;
};

}  // namespace

void ChainEdges::finish(std::span<const int32_t> source) {
  std::vector<uint32_t> begins(states() + 1), into(target.size());
  for (int32_t head : target) ++begins[static_cast<size_t>(head) + 1];
  for (size_t state = 0; state < states(); ++state) begins[state + 1] += begins[state];
  std::vector<uint32_t> next(begins.begin(), begins.end() - 1);
  for (size_t edge = 0; edge < target.size(); ++edge) into[next[static_cast<size_t>(target[edge])]++] = static_cast<uint32_t>(source[edge]);
  distance.assign(states(), kFar);
  std::vector<uint32_t> queue;
  for (uint32_t state = 0; state < states(); ++state)
    if (final[state]) {
      distance[state] = 0;
      queue.push_back(state);
    }
  for (size_t i = 0; i < queue.size(); ++i)
    for (uint32_t at = begins[queue[i]]; at < begins[queue[i] + 1]; ++at)
      if (distance[into[at]] == kFar) {
        distance[into[at]] = distance[queue[i]] + 1;
        queue.push_back(into[at]);
      }
}

Chain::Chain(std::shared_ptr<const ChainEdges> edges, std::span<const double> weights, size_t slots, bool is_max, size_t max_steps)
    : edges_(std::move(edges)), slots_(slots), is_max_(is_max), max_steps_(max_steps), weights_(weights.begin(), weights.end()) {
  reach();
  steps_ += pass_steps();
  if (!is_complete_ || steps_ > max_steps_) {
    is_complete_ = false;
    return;
  }
  backward_.resize(reached_.size());
  for (size_t i = first(slots_); i < last(slots_); ++i) backward_[i] = edges_->final[static_cast<size_t>(reached_[i])] ? 0.0 : kNone;
  Scratch<double> next(edges_->states(), kNone);
  Reduction held(is_max_);
  for (size_t slot = slots_; slot-- > 0;) {
    const std::span after(reached_.data() + first(slot + 1), last(slot + 1) - first(slot + 1));
    const double* row = weight(slot);
    double* out = backward_.data() + first(slot);
    const size_t count = last(slot) - first(slot);
    next.put(after, backward_.data() + first(slot + 1));
    std::fill_n(out, count, kNone);
    held.begin();
    for (size_t i = 0; i < count; ++i) {
      const auto state = static_cast<size_t>(reached_[first(slot) + i]);
      for (size_t edge = edges_->first(state); edge < edges_->last(state); ++edge) {
        const double value = row[edges_->label[edge]] + next[edges_->target[edge]];
        if (value > kNone) held.add(value, i, out);
      }
    }
    held.finish(out, count);
    next.forget(after);
  }
}

// The states that runs lead to at each boundary, and from which enough slots are left.
void Chain::reach() {
  constexpr size_t kBits = 64;
  std::vector<uint64_t> seen((edges_->states() + kBits - 1) / kBits);
  begin_.push_back(0);
  if (edges_->distance[0] <= slots_) reached_.push_back(0);
  begin_.push_back(reached_.size());
  for (size_t slot = 0; slot < slots_; ++slot) {
    const double* row = weight(slot);
    const size_t left = slots_ - slot - 1, before = edge_count_;
    for (size_t i = first(slot); i < last(slot); ++i) {
      const auto state = static_cast<size_t>(reached_[i]);
      edge_count_ += edges_->last(state) - edges_->first(state);
      for (size_t edge = edges_->first(state); edge < edges_->last(state); ++edge) {
        const auto target = static_cast<size_t>(edges_->target[edge]);
        if (row[edges_->label[edge]] > kNone && edges_->distance[target] <= left) seen[target / kBits] |= uint64_t{1} << target % kBits;
      }
    }
    for (size_t word = 0; word < seen.size(); ++word)
      for (uint64_t bits = std::exchange(seen[word], 0); bits != 0; bits &= bits - 1)
        reached_.push_back(static_cast<int32_t>(word * kBits + static_cast<size_t>(std::countr_zero(bits))));
    begin_.push_back(reached_.size());
    steps_ += (edge_count_ - before + reached_.size() - begin_[slot + 1]) / kBlock + seen.size() / kBits + 1;
    if (steps_ > max_steps_) {
      is_complete_ = false;
      return;
    }
  }
}

double Chain::after(size_t boundary, int32_t state) const {
  const auto begin = reached_.begin() + static_cast<int64_t>(first(boundary)), end = reached_.begin() + static_cast<int64_t>(last(boundary));
  const auto found = std::lower_bound(begin, end, state);
  return found == end || *found != state ? kNone : backward_[static_cast<size_t>(found - reached_.begin())];
}

double Chain::total() const { return after(0, 0); }

void Chain::go_on() {
  if (!forward_.empty() || reached_.empty()) return;
  steps_ += pass_steps();
  forward_.assign(reached_.size(), kNone);
  forward_[0] = 0.0;
  Scratch<int32_t> position(edges_->states(), -1);
  Reduction held(is_max_);
  for (size_t slot = 0; slot < slots_; ++slot) {
    const std::span after(reached_.data() + first(slot + 1), last(slot + 1) - first(slot + 1));
    const double* row = weight(slot);
    double* out = forward_.data() + first(slot + 1);
    position.put_positions(after);
    held.begin();
    for (size_t i = first(slot); i < last(slot); ++i) {
      const auto state = static_cast<size_t>(reached_[i]);
      for (size_t edge = edges_->first(state); edge < edges_->last(state); ++edge) {
        const int32_t place = position[edges_->target[edge]];
        const double value = forward_[i] + row[edges_->label[edge]];
        if (place >= 0 && value > kNone) held.add(value, static_cast<size_t>(place), out);
      }
    }
    held.finish(out, after.size());
    position.forget(after);
  }
}

std::vector<double> Chain::forward() {
  go_on();
  return table(forward_);
}

std::vector<double> Chain::table(const std::vector<double>& messages) const {
  const size_t states = edges_->states();
  std::vector<double> made((slots_ + 1) * states, kNone);
  if (messages.empty()) return made;
  for (size_t boundary = 0; boundary <= slots_; ++boundary)
    for (size_t i = first(boundary); i < last(boundary); ++i) made[boundary * states + static_cast<size_t>(reached_[i])] = messages[i];
  return made;
}

std::vector<uint8_t> Chain::reached() const {
  const size_t states = edges_->states();
  std::vector<uint8_t> made((slots_ + 1) * states);
  for (size_t boundary = 0; boundary <= slots_; ++boundary)
    for (size_t i = first(boundary); i < last(boundary); ++i) made[boundary * states + static_cast<size_t>(reached_[i])] = 1;
  return made;
}

std::vector<double> Chain::label_masses() {
  go_on();
  steps_ += pass_steps();
  std::vector<double> made(slots_ * edges_->labels, kNone);
  if (reached_.empty()) return made;
  constexpr size_t kParts = 8;  // each with scratch of its own
  const size_t each = (slots_ + kParts - 1) / kParts;
  parallel_for(kParts, [&](size_t part) {
    put_label_masses(std::min(part * each, slots_), std::min((part + 1) * each, slots_), made.data());
  });
  return made;
}

void Chain::put_label_masses(size_t first_slot, size_t last_slot, double* made) const {
  if (first_slot == last_slot) return;
  Scratch<double> next(edges_->states(), kNone);
  Reduction held(is_max_);
  for (size_t slot = first_slot; slot < last_slot; ++slot) {
    const std::span after(reached_.data() + first(slot + 1), last(slot + 1) - first(slot + 1));
    double* out = made + slot * edges_->labels;
    next.put(after, backward_.data() + first(slot + 1));
    held.begin();
    for (size_t i = first(slot); i < last(slot); ++i) {
      const auto state = static_cast<size_t>(reached_[i]);
      for (size_t edge = edges_->first(state); edge < edges_->last(state); ++edge) {
        const double value = forward_[i] + next[edges_->target[edge]];
        if (value > kNone) held.add(value, static_cast<size_t>(edges_->label[edge]), out);
      }
    }
    held.finish(out, edges_->labels);
    next.forget(after);
  }
}

std::vector<int64_t> Chain::run(std::span<const double> uniform) const {
  std::vector<int64_t> taken(slots_);
  std::vector<double> held;
  size_t state = 0;
  for (size_t slot = 0; slot < slots_; ++slot) {
    const double* row = weight(slot);
    held.clear();
    for (size_t edge = edges_->first(state); edge < edges_->last(state); ++edge)
      held.push_back(row[edges_->label[edge]] + after(slot + 1, edges_->target[edge]));
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
    const size_t edge = edges_->first(state) + chosen;
    taken[slot] = static_cast<int64_t>(edge);
    state = static_cast<size_t>(edges_->target[edge]);
  }
  return taken;
}

}  // namespace structgen

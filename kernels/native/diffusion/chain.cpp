#include "diffusion/chain.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <string>

namespace structgen {

namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();
constexpr size_t kBits = 64;

// A number for each of some states, which are forgotten one by one so that no boundary pays for all states.
template <class Value>
class Scratch {
 public:
  Scratch(size_t states, Value none) : none_(none), values_(states, none) {}
  Value& operator[](int32_t state) { return values_[static_cast<size_t>(state)]; }
  const Value* data() const { return values_.data(); }
  void forget(std::span<const int32_t> states) {
    for (int32_t state : states) (*this)[state] = none_;
  }

 private:
  Value none_;
  std::vector<Value> values_;
};

// States that are marked in any order, and read in increasing order.
class Marks {
 public:
  explicit Marks(size_t states) : words_((states + kBits - 1) / kBits) {}
  void mark(size_t state) { words_[state / kBits] |= uint64_t{1} << state % kBits; }
  // Forgets the states, too.
  void append_to(std::vector<int32_t>& states) {
    for (size_t word = 0; word < words_.size(); ++word)
      for (uint64_t bits = std::exchange(words_[word], 0); bits != 0; bits &= bits - 1)
        states.push_back(static_cast<int32_t>(word * kBits + static_cast<size_t>(std::countr_zero(bits))));
  }
  // To look at all states: as many steps as words take.
  size_t steps() const { return words_.size() / 32; }

 private:
  std::vector<uint64_t> words_;
};

// 256 binary orders of magnitude as logarithm, whose high part has few digits.
constexpr int kPower = 256;
constexpr double kLog2 = 0.693147180559945309417232121458, kLogHigh = 0x1.62e42fee00000p+7, kLogLow = 0x1.a39ef35793c76p-25;

}  // namespace

std::vector<uint32_t> edge_distances(std::span<const int32_t> source, std::span<const int32_t> target, std::span<const uint8_t> final) {
  const size_t states = final.size();
  std::vector<uint32_t> begins(states + 1), into(target.size());
  for (int32_t head : target) ++begins[static_cast<size_t>(head) + 1];
  for (size_t state = 0; state < states; ++state) begins[state + 1] += begins[state];
  std::vector<uint32_t> next(begins.begin(), begins.end() - 1);
  for (size_t edge = 0; edge < target.size(); ++edge) into[next[static_cast<size_t>(target[edge])]++] = static_cast<uint32_t>(source[edge]);
  std::vector<uint32_t> distance(states, ChainEdges::kFar), queue;
  for (uint32_t state = 0; state < states; ++state)
    if (final[state]) {
      distance[state] = 0;
      queue.push_back(state);
    }
  for (size_t i = 0; i < queue.size(); ++i)
    for (uint32_t at = begins[queue[i]]; at < begins[queue[i] + 1]; ++at)
      if (distance[into[at]] == ChainEdges::kFar) {
        distance[into[at]] = distance[queue[i]] + 1;
        queue.push_back(into[at]);
      }
  return distance;
}

template <class Allows>
ChainReach::ChainReach(const ChainEdges& from, size_t slots, size_t max_steps, Allows allows) {
  Marks seen(from.states());
  begin.push_back(0);
  if (from.distance[0] <= slots) states.push_back(0);
  begin.push_back(states.size());
  for (size_t slot = 0; slot < slots; ++slot) {
    const size_t left = slots - slot - 1, before = edges, count = states.size();
    for (size_t i = first(slot); i < count; ++i) {
      const auto state = static_cast<size_t>(states[i]);
      edges += from.last(state) - from.first(state);
      for (size_t edge = from.first(state); edge < from.last(state); ++edge) {
        const auto target = static_cast<size_t>(from.target.data()[edge]);
        if (allows(slot, static_cast<size_t>(from.label.data()[edge])) && from.distance.data()[target] <= left) seen.mark(target);
      }
    }
    seen.append_to(states);
    begin.push_back(states.size());
    steps += (edges - before + states.size() - count) / 4 + seen.steps();
    if (steps > max_steps) {
      is_complete = false;
      return;
    }
  }
}

PossibleRuns::PossibleRuns(const ChainEdges& edges, std::span<const uint8_t> allowed, size_t slots, size_t max_steps) {
  const ChainReach reach(edges, slots, max_steps, [&](size_t slot, size_t label) { return allowed[slot * edges.labels + label] != 0; });
  steps = reach.steps + reach.edges / 4;
  is_complete = reach.is_complete && steps <= max_steps;
  if (!is_complete) return;
  labels.resize(slots * edges.labels);
  Scratch<uint8_t> lives(edges.states(), 0);
  for (int32_t state : reach.at(slots)) lives[state] = edges.final[static_cast<size_t>(state)];
  std::vector<uint8_t> here;
  for (size_t slot = slots; slot-- > 0;) {
    const uint8_t* may_hold = allowed.data() + slot * edges.labels;
    uint8_t* held = labels.data() + slot * edges.labels;
    const auto states = reach.at(slot);
    here.assign(states.size(), 0);
    for (size_t i = 0; i < states.size(); ++i) {
      const auto state = static_cast<size_t>(states[i]);
      for (size_t edge = edges.first(state); edge < edges.last(state); ++edge) {
        const int32_t label = edges.label.data()[edge];
        const auto is_taken = static_cast<uint8_t>(may_hold[label] & lives.data()[edges.target.data()[edge]]);
        held[label] |= is_taken;
        here[i] |= is_taken;
      }
    }
    lives.forget(reach.at(slot + 1));
    for (size_t i = 0; i < states.size(); ++i) lives[states[i]] = here[i];
  }
  any = lives[0] != 0;
}

SumMass SumMass::of(double log) {
  constexpr double kMost = 1e15;  // beyond, powers could overflow
  if (!(log > kNone)) return none();
  const double bounded = std::clamp(log, -kMost, kMost);
  const auto power = static_cast<int64_t>(bounded / (kLogHigh + kLogLow));
  const auto whole = static_cast<double>(power);
  SumMass made{std::exp((bounded - whole * kLogHigh) - whole * kLogLow), power};
  made.settle();
  return made;
}

double SumMass::to_log() const { return is_none() ? kNone : std::log(part) + static_cast<double>(power) * (kPower * kLog2); }

void SumMass::settle() {
  constexpr double kLarge = 0x1p128, kSmall = 0x1p-128;
  if (part >= kSmall && part < kLarge) return;
  if (part == 0) power = 0;
  for (; part >= kLarge; ++power) part *= 0x1p-256;
  for (; part > 0 && part < kSmall; --power) part *= 0x1p256;
}

// What is more than two powers below is less than a rounding error: parts are within 2^-256 and 2^300.
void SumMass::add_scaled(SumMass other) {
  if (other.is_none()) return;
  if (is_none() || other.power > power) std::swap(*this, other);
  if (other.is_none() || power - other.power > 2) return;
  for (; other.power < power; ++other.power) other.part *= 0x1p-256;
  part += other.part;
}

template <class Mass>
ChainMessages<Mass>::ChainMessages(const ChainEdges& edges, const ChainReach& reach, std::span<const double> weights, size_t slots)
    : edges_(edges), reach_(reach), weights_(weights), slots_(slots), backward_(reach.states.size(), Mass::none()) {
  Scratch<Mass> next(edges.states(), Mass::none());
  const int32_t *label = edges.label.data(), *target = edges.target.data();  // which were checked when they were taken
  for (size_t i = reach.first(slots); i < reach.last(slots); ++i)
    if (edges.final[static_cast<size_t>(reach.states[i])]) next[reach.states[i]] = backward_[i] = Mass::of(0.0);
  for (size_t slot = slots; slot-- > 0;) {
    const std::vector<Mass> taken = row(slot);
    const Mass *of_label = taken.data(), *of_target = next.data();
    for (size_t i = reach.first(slot); i < reach.last(slot); ++i) {
      const auto state = static_cast<size_t>(reach.states[i]);
      Mass sum = Mass::none();
      for (size_t edge = edges.first(state), last = edges.last(state); edge < last; ++edge)
        sum.add(of_label[label[edge]] * of_target[target[edge]]);
      sum.settle();
      backward_[i] = sum;
    }
    next.forget(reach.at(slot + 1));
    for (size_t i = reach.first(slot); i < reach.last(slot); ++i) next[reach.states[i]] = backward_[i];
  }
}

template <class Mass>
std::vector<Mass> ChainMessages<Mass>::row(size_t slot) const {
  std::vector<Mass> made;
  made.reserve(edges_.labels);
  for (double log : weights_.subspan(slot * edges_.labels, edges_.labels)) made.push_back(Mass::of(log));
  return made;
}

template <class Mass>
std::vector<Mass> ChainMessages<Mass>::go_on(std::vector<double>* label_masses) const {
  std::vector<Mass> forward(reach_.states.size(), Mass::none());
  if (forward.empty()) return forward;
  forward[0] = Mass::of(0.0);
  struct Next {
    Mass backward;
    int32_t place;
  };
  Scratch<Next> next(edges_.states(), {Mass::none(), -1});
  const int32_t *label = edges_.label.data(), *target = edges_.target.data();
  std::vector<Mass> around(edges_.labels);
  for (size_t slot = 0; slot < slots_; ++slot) {
    const std::vector<Mass> taken = row(slot);
    for (size_t i = reach_.first(slot + 1); i < reach_.last(slot + 1); ++i)
      next[reach_.states[i]] = {backward_[i], static_cast<int32_t>(i - reach_.first(slot + 1))};
    const std::span<Mass> out = std::span(forward).subspan(reach_.first(slot + 1), reach_.last(slot + 1) - reach_.first(slot + 1));
    std::fill(around.begin(), around.end(), Mass::none());
    const Mass* of_label = taken.data();
    const Next* of_target = next.data();
    for (size_t i = reach_.first(slot); i < reach_.last(slot); ++i) {
      const auto state = static_cast<size_t>(reach_.states[i]);
      const Mass sum = forward[i];
      for (size_t edge = edges_.first(state), last = edges_.last(state); edge < last; ++edge) {
        const Next& after = of_target[target[edge]];
        if (after.place < 0) continue;
        out.data()[after.place].add(sum * of_label[label[edge]]);
        around.data()[label[edge]].add(sum * after.backward);
      }
    }
    for (Mass& one : out) one.settle();
    next.forget(reach_.at(slot + 1));
    if (label_masses == nullptr) continue;
    for (size_t of = 0; of < edges_.labels; ++of) (*label_masses)[slot * edges_.labels + of] = around[of].to_log();
  }
  return forward;
}

template <class Mass>
Mass ChainMessages<Mass>::after(size_t boundary, int32_t state) const {
  const auto states = reach_.at(boundary);
  const auto found = std::lower_bound(states.begin(), states.end(), state);
  if (found == states.end() || *found != state) return Mass::none();
  return backward_[reach_.first(boundary) + static_cast<size_t>(found - states.begin())];
}

Chain::Chain(std::shared_ptr<const ChainEdges> edges, std::span<const double> weights, size_t slots, bool is_max, size_t max_steps)
    : edges_(std::move(edges)),
      slots_(slots),
      weights_(weights.begin(), weights.end()),
      reach_(*edges_, slots, max_steps, [&](size_t slot, size_t label) { return weights_[slot * edges_->labels + label] > kNone; }) {
  steps_ = reach_.steps + reach_.edges / 4;
  if (!reach_.is_complete || steps_ > max_steps) return;
  if (is_max)
    messages_.emplace<ChainMessages<BestMass>>(*edges_, reach_, weights_, slots_);
  else
    messages_.emplace<ChainMessages<SumMass>>(*edges_, reach_, weights_, slots_);
}

namespace {

// What a function of messages returns; of no messages, nothing.
template <class Made, class Messages, class Function>
Made of_messages(const Messages& messages, Function function) {
  return std::visit(
      [&](const auto& held) -> Made {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::monostate>)
          throw std::logic_error("an incomplete chain has no messages");
        else
          return function(held);
      },
      messages);
}

}  // namespace

double Chain::total() const {
  return of_messages<double>(messages_, [](const auto& held) { return held.after(0, 0).to_log(); });
}

std::vector<double> Chain::backward() const {
  return of_messages<std::vector<double>>(messages_, [&](const auto& held) { return table(held.backward()); });
}

std::vector<double> Chain::forward() const {
  return of_messages<std::vector<double>>(messages_, [&](const auto& held) { return table(held.go_on(nullptr)); });
}

std::vector<double> Chain::label_masses() const {
  std::vector<double> made(slots_ * edges_->labels, kNone);
  of_messages<size_t>(messages_, [&](const auto& held) { return held.go_on(&made).size(); });
  return made;
}

template <class Mass>
std::vector<double> Chain::table(const std::vector<Mass>& messages) const {
  std::vector<double> made((slots_ + 1) * edges_->states(), kNone);
  for (size_t boundary = 0; boundary <= slots_; ++boundary)
    for (size_t i = reach_.first(boundary); i < reach_.last(boundary); ++i)
      made[boundary * edges_->states() + static_cast<size_t>(reach_.states[i])] = messages[i].to_log();
  return made;
}

std::vector<uint8_t> Chain::reached() const {
  std::vector<uint8_t> made((slots_ + 1) * edges_->states());
  for (size_t boundary = 0; boundary <= slots_; ++boundary)
    for (int32_t state : reach_.at(boundary)) made[boundary * edges_->states() + static_cast<size_t>(state)] = 1;
  return made;
}

std::vector<int64_t> Chain::run(std::span<const double> uniform) const {
  std::vector<int64_t> taken(slots_);
  std::vector<double> held;
  size_t state = 0;
  for (size_t slot = 0; slot < slots_; ++slot) {
    const double* row = weights_.data() + slot * edges_->labels;
    held.clear();
    of_messages<size_t>(messages_, [&](const auto& messages) {
      for (size_t edge = edges_->first(state); edge < edges_->last(state); ++edge)
        held.push_back(row[edges_->label[edge]] + messages.after(slot + 1, edges_->target[edge]).to_log());
      return held.size();
    });
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
    chosen += edges_->first(state);
    taken[slot] = static_cast<int64_t>(chosen);
    state = static_cast<size_t>(edges_->target[chosen]);
  }
  return taken;
}

WalkLengths walk_lengths(std::span<const int64_t> begin, std::span<const int32_t> target, std::span<const double> share,
                         std::span<const double> stop, double covered, size_t multiple, size_t max_length, size_t max_steps) {
  WalkLengths made{max_length, max_length, 0, true};
  size_t wanted = max_length;
  std::vector<double> at(stop.size());
  std::vector<int32_t> states{0}, next;
  std::vector<double> masses{1.0};
  Marks seen(stop.size());
  double stopped = 0;
  for (size_t length = 0; length < wanted; ++length) {
    for (size_t i = 0; i < states.size(); ++i) stopped += masses[i] * stop[static_cast<size_t>(states[i])];
    if (stopped >= covered && made.typical == max_length) {
      made.typical = length;
      wanted = std::min(max_length, (length + multiple - 1) / multiple * multiple);
    }
    for (size_t i = 0; i < states.size(); ++i) {
      const auto state = static_cast<size_t>(states[i]);
      const auto first = static_cast<size_t>(begin[state]), last = static_cast<size_t>(begin[state + 1]);
      made.steps += (last - first) / 4;
      for (size_t edge = first; edge < last; ++edge) {
        const auto to = static_cast<size_t>(target[edge]);
        const double mass = masses[i] * share[edge];
        if (mass == 0) continue;
        at[to] += mass;
        seen.mark(to);
      }
    }
    next.clear();
    seen.append_to(next);
    made.steps += next.size() / 4 + seen.steps();
    if (next.empty()) {
      made.longest = length;
      break;
    }
    if (made.steps > max_steps) {
      made.is_complete = false;
      return made;
    }
    masses.clear();
    for (int32_t state : next) masses.push_back(std::exchange(at[static_cast<size_t>(state)], 0.0));
    states.swap(next);
  }
  return made;
}

}  // namespace structgen

#include "diffusion/unfolding.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "diffusion/byte_kinds.h"

namespace structgen {

namespace {

constexpr size_t kStateSteps = 160, kGroupSteps = 96;  // to make a state and where some bytes lead, and to minimise them

// Gives ids in the order of first sight.
class Numbering {
 public:
  uint32_t operator[](uint32_t id) {
    const auto [found, is_new] = numbers_.try_emplace(id, static_cast<uint32_t>(order_.size()));
    if (is_new) order_.push_back(id);
    return found->second;
  }
  size_t size() const { return order_.size(); }
  uint32_t id(size_t number) const { return order_[number]; }

 private:
  std::unordered_map<uint32_t, uint32_t> numbers_;
  std::vector<uint32_t> order_;
};

// Bytes that lead a node to the same node, as far as its first configurations show that.
struct ByteGroups {
  static constexpr size_t kMostConfigs = 8;
  static constexpr int32_t kUnknown = -2;

  ByteGroups(const Machine& machine, NodeId node) {
    const auto configs = machine.closure(node);
    if (configs.size() > kMostConfigs) {
      for (size_t byte = 0; byte < of.size(); ++byte) of[byte] = static_cast<uint16_t>(byte);
      number.assign(of.size(), kUnknown);
      return;
    }
    uint16_t groups = 1;
    for (const auto& [state, frame] : configs)
      machine.automaton()[state].next.for_each([&](const ByteSet& bytes, StateId) {
        renamed_.assign(groups, 0);
        bytes.for_each([&](uint8_t byte) {
          uint16_t& renamed = renamed_[of[byte]];
          if (renamed == 0) renamed = groups++;
          of[byte] = renamed;
        });
      });
    number.assign(groups, kUnknown);
  }

  std::array<uint16_t, 256> of{};
  std::vector<int32_t> number;  // of the state where the bytes of a group lead

 private:
  std::vector<uint16_t> renamed_;
};

// A partition of 0 .. n - 1 that is refined: marked elements are split from the others of their set.
class Refinable {
 public:
  // One set.
  explicit Refinable(size_t size) : elements_(size), positions_(size), set_of_(size) {
    for (uint32_t one = 0; one < size; ++one) elements_[one] = positions_[one] = one;
    if (size > 0) add_set(0, static_cast<uint32_t>(size));
  }
  // One set for each number that elements have.
  explicit Refinable(const std::vector<uint32_t>& numbers, size_t different) : elements_(numbers.size()), positions_(numbers.size()), set_of_(numbers.size()) {
    std::vector<uint32_t> ends(different + 1);
    for (uint32_t number : numbers) ++ends[number + 1];
    for (size_t i = 0; i < different; ++i) ends[i + 1] += ends[i];
    std::vector<uint32_t> next(ends.begin(), ends.end() - 1);
    for (uint32_t one = 0; one < numbers.size(); ++one) {
      positions_[one] = next[numbers[one]]++;
      elements_[positions_[one]] = one;
    }
    for (size_t i = 0; i < different; ++i)
      if (ends[i] < ends[i + 1]) add_set(ends[i], ends[i + 1]);
  }

  size_t sets() const { return sets_.size(); }
  uint32_t set_of(uint32_t element) const { return set_of_[element]; }
  std::span<const uint32_t> elements(size_t set) const { return std::span(elements_).subspan(sets_[set].begin, sets_[set].end - sets_[set].begin); }

  void mark(uint32_t element) {
    Set& set = sets_[set_of_[element]];
    const uint32_t position = positions_[element], to = set.begin + set.marked;
    if (position < to) return;
    std::swap(elements_[position], elements_[to]);
    positions_[elements_[position]] = position;
    positions_[element] = to;
    if (set.marked++ == 0) touched_.push_back(set_of_[element]);
  }

  // The smaller part of each set that has marked elements and others becomes a new set.
  void split() {
    for (uint32_t number : touched_) {
      Set& set = sets_[number];
      const uint32_t middle = set.begin + std::exchange(set.marked, 0);
      if (middle == set.end) continue;
      const bool is_first_smaller = middle - set.begin <= set.end - middle;
      const uint32_t begin = is_first_smaller ? set.begin : middle, end = is_first_smaller ? middle : set.end;
      (is_first_smaller ? set.begin : set.end) = middle;
      add_set(begin, end);
    }
    touched_.clear();
  }

 private:
  struct Set {
    uint32_t begin, end, marked;
  };

  void add_set(uint32_t begin, uint32_t end) {
    for (uint32_t position = begin; position < end; ++position) set_of_[elements_[position]] = static_cast<uint32_t>(sets_.size());
    sets_.push_back({begin, end, 0});
  }

  std::vector<uint32_t> elements_, positions_, set_of_, touched_;
  std::vector<Set> sets_;
};

}  // namespace

std::vector<int32_t> equal_futures(std::span<const int32_t> next, std::span<const uint8_t> accepting,
                                   std::span<const std::array<int32_t, 3>> specials) {
  const auto states = static_cast<uint32_t>(accepting.size());
  std::vector<uint32_t> tails, heads, labels;
  const auto add = [&](uint32_t tail, uint32_t label, int32_t head) {
    tails.push_back(tail);
    labels.push_back(label);
    heads.push_back(static_cast<uint32_t>(head));
  };
  uint32_t kinds = 0;
  for (uint8_t byte : ByteKinds(next).firsts) {
    for (uint32_t state = 0; state < states; ++state)
      if (next[size_t{state} * 256 + byte] >= 0) add(state, kinds, next[size_t{state} * 256 + byte]);
    ++kinds;
  }
  std::unordered_map<int32_t, uint32_t> kind_of_special;
  for (const auto& [state, token, target] : specials)
    add(static_cast<uint32_t>(state), kind_of_special.try_emplace(token, kinds + static_cast<uint32_t>(kind_of_special.size())).first->second, target);
  Refinable blocks(states), transitions(labels, kinds + kind_of_special.size());
  std::vector<uint32_t> begins(size_t{states} + 1), into(heads.size());  // transitions by the state they lead to
  for (uint32_t head : heads) ++begins[head + 1];
  for (size_t i = 0; i < states; ++i) begins[i + 1] += begins[i];
  std::vector<uint32_t> positions(begins.begin(), begins.end() - 1);
  for (uint32_t i = 0; i < heads.size(); ++i) into[positions[heads[i]]++] = i;

  for (uint32_t state = 0; state < states; ++state)
    if (accepting[state]) blocks.mark(state);
  blocks.split();
  // The first block is never looked at: what leads there is what leads to no other.
  for (size_t block = 1, done = 0; done < transitions.sets(); ++done) {
    for (uint32_t transition : transitions.elements(done)) blocks.mark(tails[transition]);
    blocks.split();
    for (; block < blocks.sets(); ++block) {
      for (uint32_t state : blocks.elements(block))
        for (uint32_t i = begins[state]; i < begins[state + 1]; ++i) transitions.mark(into[i]);
      transitions.split();
    }
  }
  std::vector<int32_t> result(states);
  for (uint32_t state = 0; state < states; ++state) result[state] = static_cast<int32_t>(blocks.set_of(state));
  return result;
}

MinimalStates minimal_states(std::span<const int32_t> next, std::span<const uint8_t> accepting,
                             std::span<const std::array<int32_t, 3>> specials) {
  const std::vector<int32_t> futures = equal_futures(next, accepting, specials);
  MinimalStates result;
  std::vector<int32_t> number_of(futures.size(), -1);  // of the states of a future
  result.number.resize(futures.size());
  for (size_t state = 0; state < futures.size(); ++state) {
    int32_t& number = number_of[static_cast<size_t>(futures[state])];
    if (number < 0) {
      number = static_cast<int32_t>(result.kept.size());
      result.kept.push_back(static_cast<int32_t>(state));
    }
    result.number[state] = number;
  }
  result.next.resize(result.kept.size() * 256);
  for (size_t row = 0; row < result.kept.size(); ++row) {
    const int32_t* targets = next.data() + static_cast<size_t>(result.kept[row]) * 256;
    for (size_t byte = 0; byte < 256; ++byte)
      result.next[row * 256 + byte] = targets[byte] < 0 ? -1 : result.number[static_cast<size_t>(targets[byte])];
  }
  return result;
}

ByteAutomaton unfold(Machine& machine, NodeId start, size_t max_states, size_t max_steps) {
  ByteAutomaton result;
  Numbering number;
  number[start];
  for (uint32_t state = 0; state < number.size(); ++state) {
    if (number.size() > max_states || result.steps > max_steps) {
      result.complete = false;
      return result;
    }
    machine.automaton().meter().steps = 0;  // the table is what is counted, so that what the engine has made makes no difference
    const NodeId node = number.id(state);
    const size_t begin = result.next.size();
    result.next.insert(result.next.end(), 256, -1);
    int32_t* row = result.next.data() + begin;
    const ByteSet live = machine[node].live;
    result.accepting.push_back(machine[node].accepting);
    result.steps += kStateSteps;
    ByteGroups groups(machine, node);
    live.for_each([&](uint8_t byte) {
      int32_t& reached = groups.number[groups.of[byte]];
      if (reached == ByteGroups::kUnknown) {
        const NodeId target = machine.step(node, byte);
        reached = target != kDeadNode && machine[target].distance < kInfinite ? static_cast<int32_t>(number[target]) : -1;
        result.steps += kGroupSteps;
      }
      row[byte] = reached;
    });
    if (machine[node].has_token_sets) throw std::invalid_argument("a set of tokens as symbols has no automaton over bytes");
    for (uint32_t token : machine.specials(node)) {
      const NodeId target = machine.step_special(node, token);
      if (target != kDeadNode && machine[target].distance < kInfinite) result.specials.emplace_back(state, token, number[target]);
    }
  }
  return result;
}

ByteNetwork unfold_calls(Automaton& automaton, TermId term, size_t max_states) {
  ByteNetwork result;
  Numbering number;
  std::unordered_set<RuleId> named;
  number[automaton.state_of(term)];
  for (uint32_t state = 0; state < number.size(); ++state) {
    if (number.size() > max_states) {
      result.complete = false;
      return result;
    }
    automaton.meter().steps = 0;
    const StateId id = number.id(state);
    const size_t begin = result.next.size();
    result.next.insert(result.next.end(), 256, -1);
    int32_t* row = result.next.data() + begin;
    const auto alive = [&](StateId target) { return target != kDead && automaton[target].distance < kInfinite; };
    const State& held = automaton.expanded(id);
    result.final.push_back(held.final);
    held.next.for_each([&](const ByteSet& bytes, StateId target) {
      if (!alive(target)) return;
      const auto to = static_cast<int32_t>(number[target]);
      bytes.for_each([&](uint8_t byte) {
        if (held.live.contains(byte)) row[byte] = to;
      });
    });
    const auto calls = held.calls;  // starting a rule may move the states
    for (const auto& [rule, after] : calls) {
      const StateId callee = automaton.rule_start(rule);
      if (!alive(after) || !alive(callee)) continue;
      const uint32_t start = number[callee];
      result.calls.emplace_back(state, start, number[after]);
      if (named.insert(rule).second) result.rules.emplace_back(start, rule);
    }
    for (const auto& [token, target] : automaton[id].specials)
      if (token & kTokenSet) throw std::invalid_argument("a set of tokens as symbols has no automaton over bytes");
      else if (alive(target)) result.specials.emplace_back(state, token, number[target]);
  }
  return result;
}

}  // namespace structgen

#include "diffusion/unfolding.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace structgen {

namespace {

constexpr size_t kStateSteps = 256, kByteSteps = 4;  // to make a state and a byte that it reads, and to minimise them

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

// The kinds of bytes that all states treat alike, in the order of their first bytes.
struct ByteKinds {
  explicit ByteKinds(std::span<const int32_t> next) {
    std::array<uint8_t, 256> first{};  // of the bytes that are treated like each
    for (size_t row = 0; row < next.size(); row += 256) {
      const int32_t* targets = next.data() + row;
      unsigned differs = 0;
      for (size_t byte = 0; byte < 256; ++byte) differs |= targets[byte] != targets[first[byte]];
      if (differs) split(targets, first);
    }
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (first[byte] == byte) firsts.push_back(static_cast<uint8_t>(byte));
      of[byte] = static_cast<uint8_t>(std::find(firsts.begin(), firsts.end(), first[byte]) - firsts.begin());
    }
  }
  size_t size() const { return firsts.size(); }

  std::vector<uint8_t> firsts;
  std::array<uint8_t, 256> of{};

 private:
  static void split(const int32_t* targets, std::array<uint8_t, 256>& first) {
    const std::array<uint8_t, 256> before = first;
    for (size_t byte = 0; byte < 256; ++byte)
      for (size_t other = 0; other <= byte; ++other)
        if (before[other] == before[byte] && targets[other] == targets[byte]) {
          first[byte] = static_cast<uint8_t>(other);
          break;
        }
  }
};

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0xFF51AFD7ED558CCD;
  return hash ^ hash >> 32;
}

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
    NodeId last = kDeadNode;  // bytes next to each other mostly lead to the same node
    int32_t last_number = -1;
    live.for_each([&](uint8_t byte) {
      const NodeId target = machine.step(node, byte);
      result.steps += kByteSteps;
      if (target != last) {
        last = target;
        last_number = target != kDeadNode && machine[target].distance < kInfinite ? static_cast<int32_t>(number[target]) : -1;
      }
      row[byte] = last_number;
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

namespace {

// What strings do in all states of an automaton, each different effect once: the states in which a string is alive, and
// where it leads from each.  Most strings have the effect of another one, so few effects are computed.
class Effects {
 public:
  static constexpr uint32_t kDead = UINT32_MAX;

  Effects(std::span<const int32_t> next, size_t states) : kinds_(next), columns_(kinds_.size()) {
    for (size_t kind = 0; kind < kinds_.size(); ++kind) {
      columns_[kind].reserve(states);
      for (size_t state = 0; state < states; ++state) columns_[kind].push_back(next[state * 256 + kinds_.firsts[kind]]);
    }
    for (size_t state = 0; state < states; ++state) {
      sources_.push_back(static_cast<int32_t>(state));
      targets_.push_back(static_cast<int32_t>(state));
    }
    steps_ = states * (kinds_.size() + 32) / 8;
    add();
  }

  uint32_t start() const { return 0; }
  uint32_t after(uint32_t effect, uint8_t byte) {
    const size_t kind = kinds_.of[byte];
    const uint32_t known = after_[effect * kinds_.size() + kind];
    if (known != kUnknown) return known;
    const uint32_t made = step(effect, columns_[kind]);
    return after_[effect * kinds_.size() + kind] = made;
  }
  std::span<const int32_t> sources(uint32_t effect) const { return std::span(sources_).subspan(begin_[effect], begin_[effect + 1] - begin_[effect]); }
  std::span<const int32_t> targets(uint32_t effect) const { return std::span(targets_).subspan(begin_[effect], begin_[effect + 1] - begin_[effect]); }
  size_t size() const { return begin_.size() - 1; }
  size_t moves() const { return sources_.size(); }
  size_t steps() const { return steps_; }

 private:
  static constexpr uint32_t kUnknown = UINT32_MAX - 1;

  uint32_t step(uint32_t effect, const std::vector<int32_t>& column) {
    const size_t begin = begin_.back();
    uint64_t hash = 0;
    steps_ += 2 + (begin_[effect + 1] - begin_[effect]) / 3;
    for (size_t i = begin_[effect]; i < begin_[effect + 1]; ++i) {
      const int32_t target = column[static_cast<size_t>(targets_[i])];
      if (target < 0) continue;
      sources_.push_back(sources_[i]);
      targets_.push_back(target);
      hash = mixed(hash, uint64_t{static_cast<uint32_t>(sources_.back())} << 32 | static_cast<uint32_t>(target));
    }
    if (sources_.size() == begin) return kDead;
    std::vector<uint32_t>& same_hash = known_[hash];
    for (uint32_t one : same_hash)
      if (std::ranges::equal(sources(one), std::span(sources_).subspan(begin)) && std::ranges::equal(targets(one), std::span(targets_).subspan(begin))) {
        sources_.resize(begin);
        targets_.resize(begin);
        return one;
      }
    same_hash.push_back(static_cast<uint32_t>(size()));
    return add();
  }

  uint32_t add() {
    begin_.push_back(sources_.size());
    after_.insert(after_.end(), kinds_.size(), kUnknown);
    steps_ += kinds_.size() / 8;
    return static_cast<uint32_t>(size() - 1);
  }

  ByteKinds kinds_;
  std::vector<std::vector<int32_t>> columns_;  // the state after a byte of each kind
  std::vector<size_t> begin_{0};
  std::vector<int32_t> sources_, targets_;
  std::vector<uint32_t> after_;
  std::unordered_map<uint64_t, std::vector<uint32_t>> known_;  // effects by the hash of their moves
  size_t steps_ = 0;
};

}  // namespace

TokenClasses token_classes(const TokenTrie& tokens, size_t vocabulary_size, std::span<const int32_t> next, size_t states,
                           size_t max_moves, size_t max_steps) {
  constexpr size_t kNodesPerStep = 4, kKept = 4;
  const Trie& trie = tokens.trie();
  TokenClasses result;
  result.of.assign(vocabulary_size, 0);
  result.begin = {0, 0};
  Effects effects(next, states);
  std::vector<int32_t> class_of;  // of an effect
  std::vector<uint32_t> path(size_t{trie.max_depth} + 1, effects.start());
  size_t nodes = 0;
  for (uint32_t node = 1; node < trie.size(); ++nodes) {
    const uint16_t depth = trie.depth[node];
    const uint32_t effect = effects.after(path[depth - 1u], trie.byte[node]);
    result.steps = effects.steps() + nodes / kNodesPerStep + result.sources.size() / 8;
    if (effects.moves() > kKept * max_moves + states || result.sources.size() > max_moves || result.steps > max_steps) {
      result.complete = false;
      return result;
    }
    path[depth] = effect;
    if (effect == Effects::kDead) {
      node = trie.end[node];
      continue;
    }
    if (const auto ending = trie.tokens_at(node); !ending.empty()) {
      class_of.resize(effects.size(), -1);
      int32_t& found = class_of[effect];
      if (found < 0) {
        found = static_cast<int32_t>(result.begin.size() - 1);
        const auto sources = effects.sources(effect), targets = effects.targets(effect);
        result.sources.insert(result.sources.end(), sources.begin(), sources.end());
        result.targets.insert(result.targets.end(), targets.begin(), targets.end());
        result.begin.push_back(static_cast<uint32_t>(result.sources.size()));
      }
      for (uint32_t token : ending) result.of[token] = found;
    }
    ++node;
  }
  result.complete = result.sources.size() <= max_moves;
  return result;
}

LabelledEdges labelled_edges(std::span<const std::array<int32_t, 3>> moves, size_t states) {
  std::vector<size_t> begins(states + 1);
  for (const auto& move : moves) ++begins[static_cast<size_t>(move[0]) + 1];
  for (size_t state = 0; state < states; ++state) begins[state + 1] += begins[state];
  struct Move {
    int32_t target, copy, of;
    auto operator<=>(const Move&) const = default;
  };
  std::vector<Move> sorted(moves.size());
  std::vector<size_t> next(begins.begin(), begins.end() - 1);
  for (const auto& [source, target, of] : moves) sorted[next[static_cast<size_t>(source)]++] = {target, 0, of};
  LabelledEdges result;
  result.label_begin.push_back(0);
  std::unordered_map<uint64_t, std::vector<int32_t>> known;  // labels by the hash of their classes
  for (size_t state = 0; state < states; ++state) {
    const auto first = sorted.begin() + static_cast<int64_t>(begins[state]), last = sorted.begin() + static_cast<int64_t>(begins[state + 1]);
    std::sort(first, last);
    bool has_copies = false;
    for (auto move = first; move != last; ++move)
      if (move != first && move[-1].target == move->target && move[-1].of == move->of) {
        move->copy = move[-1].copy + 1;
        has_copies = true;
      }
    if (has_copies) std::sort(first, last);  // the n-th copy of a move belongs to the n-th edge between its states
    for (auto move = first; move != last;) {
      auto end = move;
      uint64_t hash = 0;
      for (; end != last && end->target == move->target && end->copy == move->copy; ++end) hash = mixed(hash, static_cast<uint32_t>(end->of));
      std::vector<int32_t>& same_hash = known[hash];
      const auto found = std::find_if(same_hash.begin(), same_hash.end(), [&](int32_t label) {
        const auto begin = result.label_class.begin() + result.label_begin[static_cast<size_t>(label)];
        return result.label_begin[static_cast<size_t>(label) + 1] - result.label_begin[static_cast<size_t>(label)] == end - move &&
               std::equal(move, end, begin, [](const Move& one, int32_t of) { return one.of == of; });
      });
      int32_t label = 0;
      if (found == same_hash.end()) {
        label = static_cast<int32_t>(result.label_begin.size() - 1);
        for (auto one = move; one != end; ++one) result.label_class.push_back(one->of);
        result.label_begin.push_back(static_cast<int64_t>(result.label_class.size()));
        same_hash.push_back(label);
      } else {
        label = *found;
      }
      result.source.push_back(static_cast<int32_t>(state));
      result.target.push_back(move->target);
      result.label.push_back(label);
      move = end;
    }
  }
  return result;
}

}  // namespace structgen

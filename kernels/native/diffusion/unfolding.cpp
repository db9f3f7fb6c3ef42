#include "diffusion/unfolding.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "terms/permutation.h"

namespace structgen {

namespace {

constexpr size_t kStateSteps = 160, kGroupSteps = 96;  // to make a state and where some bytes lead, and to minimise them
constexpr size_t kPartSteps = 400;                     // to derive a part of an intersection or complement
constexpr size_t kMostParts = 256;                     // terms that are looked at to find these

// The parts of intersections and complements that a state stands in: where its bytes lead is derived from those of each.
size_t boolean_parts(const Automaton& automaton, StateId state) {
  const TermStore& terms = automaton.terms();
  const auto items = automaton.items(state);
  size_t found = 0;
  std::vector<TermId> work(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(std::min(items.size(), kMostParts)));
  for (size_t i = 0; i < work.size() && i < kMostParts; ++i) {
    const Term& term = terms[work[i]];
    switch (term.kind) {
      case Kind::kSequence:
      case Kind::kRepeat:
      case Kind::kJson:
      case Kind::kJsonEscape: work.push_back(term.a); break;
      case Kind::kNot:
        ++found;
        work.push_back(term.a);
        break;
      case Kind::kAnd: found += terms.list(term.a).size(); [[fallthrough]];
      case Kind::kChoice: {
        const auto parts = terms.list(term.a);
        work.insert(work.end(), parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(std::min(parts.size(), kMostParts)));
        break;
      }
      default: break;
    }
  }
  return found;
}

// Gives ids in the order of first sight.
class Numbering {
 public:
  uint32_t operator[](uint32_t id) {
    uint32_t& number = numbers_.at(id);
    if (number == kNone) {
      number = static_cast<uint32_t>(order_.size());
      order_.push_back(id);
    }
    return number;
  }
  size_t size() const { return order_.size(); }
  uint32_t id(size_t number) const { return order_[number]; }

 private:
  ById<uint32_t, kNone> numbers_;
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

std::vector<int32_t> equal_futures(const ByteColumns& next, std::span<const uint8_t> accepting, std::span<const std::array<int32_t, 3>> specials) {
  const auto states = static_cast<uint32_t>(accepting.size());
  std::vector<uint32_t> tails, heads, labels;
  const auto add = [&](uint32_t tail, uint32_t label, int32_t head) {
    tails.push_back(tail);
    labels.push_back(label);
    heads.push_back(static_cast<uint32_t>(head));
  };
  const auto kinds = static_cast<uint32_t>(next.kinds());
  for (uint32_t kind = 0; kind < kinds; ++kind) {
    const auto column = next.column(kind);
    for (uint32_t state = 0; state < states; ++state)
      if (column[state] >= 0) add(state, kind, column[state]);
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

ByteAutomaton minimal(const ByteAutomaton& automaton) {
  const std::vector<int32_t> futures = equal_futures(automaton.columns(), automaton.accepting, automaton.specials);
  ByteAutomaton made;
  made.steps = automaton.steps;
  std::vector<size_t> kept;                          // the first state of each future
  std::vector<int32_t> number_of(futures.size(), -1);  // of the states of a future
  for (size_t state = 0; state < futures.size(); ++state) {
    int32_t& number = number_of[static_cast<size_t>(futures[state])];
    if (number >= 0) continue;
    number = static_cast<int32_t>(kept.size());
    kept.push_back(state);
    made.accepting.push_back(automaton.accepting[state]);
  }
  std::vector<int32_t> numbers;
  numbers.reserve(futures.size());
  for (int32_t future : futures) numbers.push_back(number_of[static_cast<size_t>(future)]);
  const ByteColumns next = automaton.columns();
  std::vector<uint8_t> kind_of_kind;  // kinds that are treated alike now are one
  size_t kinds = 0;
  for (size_t kind = 0; kind < next.kinds(); ++kind) {
    const auto column = next.column(kind);
    for (size_t state : kept) made.targets.push_back(column[state] < 0 ? -1 : numbers.data()[column[state]]);
    const auto mine = made.targets.end() - static_cast<std::ptrdiff_t>(kept.size());
    size_t same = 0;
    while (same < kinds && !std::equal(mine, made.targets.end(), made.targets.begin() + static_cast<std::ptrdiff_t>(same * kept.size()))) ++same;
    if (same < kinds)
      made.targets.erase(mine, made.targets.end());
    else
      ++kinds;
    kind_of_kind.push_back(static_cast<uint8_t>(same));
  }
  for (size_t byte = 0; byte < made.kind_of.size(); ++byte) made.kind_of[byte] = kind_of_kind[automaton.kind_of[byte]];
  for (const auto& [state, token, target] : automaton.specials)
    if (const int32_t number = numbers[static_cast<size_t>(state)]; kept[static_cast<size_t>(number)] == static_cast<size_t>(state))
      made.specials.push_back({number, token, numbers[static_cast<size_t>(target)]});
  return made;
}

namespace {

class Unfolding {
 public:
  Unfolding(Machine& machine, size_t max_states, size_t max_steps) : machine_(machine), max_states_(max_states), max_steps_(max_steps) {}

  ByteAutomaton made_from(TermId term) {
    number_of(machine_.start(term));
    for (size_t state = 0; state < order_.size(); ++state) {
      if (order_.size() > max_states_ || made_.steps > max_steps_) {
        made_.complete = false;
        return std::move(made_);
      }
      machine_.automaton().meter().steps = 0;  // the table is what is counted, so that what the engine has made makes no difference
      made_.steps += kStateSteps;
      row_.fill(-1);
      const Reached reached = order_[state];
      const auto configs = reached.node == kDeadNode ? std::span(&reached.only, 1) : machine_.closure(reached.node);
      for (const auto& [held, frame] : configs) made_.steps += kPartSteps * boolean_parts(machine_.automaton(), held);
      if (reached.node != kDeadNode)
        read_node(state, reached.node);
      else if (const State& held = machine_.automaton().expanded(reached.only.first); held.calls.empty() && held.specials.empty())
        read_state(held, reached.only.second);
      else
        read_node(state, machine_.node_of(std::span(&reached.only, 1)));
      columns_.add(row_);
    }
    std::tie(made_.kind_of, made_.targets) = columns_.take();
    return std::move(made_);
  }

 private:
  // A node, or, as most are, one configuration alone, whose node need not be made.
  struct Reached {
    NodeId node;
    Config only;
  };

  int32_t number_of(NodeId node) {
    const auto configs = machine_.configs(node);
    if (configs.size() == 1) return number_of(configs[0]);
    uint32_t& number = of_node_.at(node);
    if (number == kNone) {
      number = static_cast<uint32_t>(order_.size());
      order_.push_back({node, {}});
    }
    return static_cast<int32_t>(number);
  }
  int32_t number_of(const Config& only) {
    const uint64_t key = uint64_t{only.first} << 32 | only.second;
    if (const uint32_t* const known = of_config_.find(key)) return static_cast<int32_t>(*known);
    const auto number = static_cast<uint32_t>(order_.size());
    of_config_.insert(key, number);
    order_.push_back({kDeadNode, only});
    return static_cast<int32_t>(number);
  }

  // A state that calls nothing.
  void read_state(const State& held, FrameId frame) {
    Automaton& automaton = machine_.automaton();
    made_.accepting.push_back(held.final && frame == kRoot);
    ways_.clear();
    held.next.for_each([&](const ByteSet& bytes, StateId target) {
      const ByteSet live = bytes & held.live;
      if (!live.empty()) ways_.push_back({live.first(), live, target});
    });
    std::sort(ways_.begin(), ways_.end(), [](const Way& one, const Way& other) { return one.first < other.first; });
    for (const Way& way : ways_) {
      made_.steps += kGroupSteps;
      if (way.target == kDead || add(automaton[way.target].distance, machine_.frame(frame).distance) >= kInfinite) continue;
      const Config after{way.target, frame};
      // Where a rule may end, the machine knows what follows.
      const bool ends = frame != kRoot && automaton.expanded(way.target).final;
      const int32_t number = ends ? number_of(machine_.node_of(std::span(&after, 1))) : number_of(after);
      way.bytes.for_each([&](uint8_t byte) { row_.data()[byte] = number; });
    }
  }

  void read_node(size_t state, NodeId node) {
    const auto is_alive = [&](NodeId target) { return target != kDeadNode && machine_[target].distance < kInfinite; };
    const ByteSet live = machine_[node].live;
    made_.accepting.push_back(machine_[node].accepting);
    ByteGroups groups(machine_, node);
    live.for_each([&](uint8_t byte) {
      int32_t& reached = groups.number[groups.of[byte]];
      if (reached == ByteGroups::kUnknown) {
        const NodeId target = machine_.step(node, byte);
        reached = is_alive(target) ? number_of(target) : -1;
        made_.steps += kGroupSteps;
      }
      row_[byte] = reached;
    });
    if (machine_[node].has_token_sets) throw std::invalid_argument("a set of tokens as symbols has no automaton over bytes");
    for (uint32_t token : machine_.specials(node))
      if (const NodeId target = machine_.step_special(node, token); is_alive(target))
        made_.specials.push_back({static_cast<int32_t>(state), static_cast<int32_t>(token), number_of(target)});
  }

  struct Way {
    uint8_t first;
    ByteSet bytes;
    StateId target;
  };

  Machine& machine_;
  size_t max_states_, max_steps_;
  ByteAutomaton made_;
  GrowingColumns columns_;
  GrowingColumns::Row row_{};
  std::vector<Reached> order_;
  NumberMap<uint32_t> of_config_;  // by state and frame
  ById<uint32_t, kNone> of_node_;
  std::vector<Way> ways_;
};

}  // namespace

ByteAutomaton unfold(Machine& machine, TermId term, size_t max_states, size_t max_steps) {
  return Unfolding(machine, max_states, max_steps).made_from(term);
}

std::pair<bool, size_t> may_recur(const TermStore& terms, TermId root) {
  std::unordered_map<TermId, bool> is_open;  // whether what is below a term is still being looked at
  std::vector<std::pair<TermId, bool>> work{{root, true}};
  const auto enter = [&](TermId part) {
    if (terms.distance(part) != kInfinite) work.emplace_back(part, true);  // the others have no texts
  };
  while (!work.empty()) {
    const auto [id, is_entered] = work.back();
    if (!is_entered) {
      is_open[id] = false;
      work.pop_back();
      continue;
    }
    work.back().second = false;
    if (const auto [found, is_new] = is_open.try_emplace(id, true); !is_new) {
      if (found->second) return {true, is_open.size()};
      work.pop_back();
      continue;
    }
    const Term& term = terms[id];
    switch (term.kind) {  // only these have parts that may call rules
      case Kind::kSequence: enter(term.b); [[fallthrough]];
      case Kind::kRepeat:
      case Kind::kPermutationPrefix:
      case Kind::kPermutationTail: enter(term.a); break;
      case Kind::kChoice:
        for (TermId part : terms.list(term.a)) enter(part);
        break;
      case Kind::kPermutation: {
        const Permutation parts(terms, term);
        enter(parts.separator);
        enter(parts.rest);
        for (uint32_t item : parts.items) enter(Permutation::term_of(item));
        break;
      }
      case Kind::kCall: enter(terms.rule_body(term.a)); break;
      default: break;
    }
  }
  return {false, is_open.size()};
}

ByteNetwork unfold_calls(Automaton& automaton, TermId term, size_t max_states, size_t state_steps, size_t max_steps) {
  ByteNetwork result;
  Numbering number;
  std::unordered_set<RuleId> named;
  number[automaton.state_of(term)];
  for (uint32_t state = 0; state < number.size(); ++state) {
    if (number.size() > max_states || result.steps > max_steps) {
      result.complete = false;
      return result;
    }
    automaton.meter().steps = 0;
    const StateId id = number.id(state);
    result.steps += state_steps + kPartSteps * boolean_parts(automaton, id);
    const size_t begin = result.next.size();
    result.next.insert(result.next.end(), 256, -1);
    int32_t* row = result.next.data() + begin;
    const auto alive = [&](StateId target) { return target != kDead && automaton[target].distance < kInfinite; };
    const State& held = automaton.expanded(id);
    result.final.push_back(held.final);
    held.next.for_each([&](const ByteSet& bytes, StateId target) {
      result.steps += kGroupSteps;
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

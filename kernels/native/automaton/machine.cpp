#include "automaton/machine.h"

#include <algorithm>
#include <map>
#include <unordered_set>

namespace structgen {

namespace {

constexpr size_t kFewTransitions = 8;

// Steps of work, in the unit of `Meter`.
constexpr uint64_t kStepSteps = 2, kConfigSteps = 8;
constexpr const char* kMoving = "making automaton configurations";

void sort_unique(std::vector<Config>& configs) {
  std::sort(configs.begin(), configs.end());
  configs.erase(std::unique(configs.begin(), configs.end()), configs.end());
}

}  // namespace

Machine::Machine(const ByteSet& spellable) : automaton_(spellable) { forget(); }

void Machine::forget() {
  automaton_.forget();
  lists_ = {};
  frames_.clear();
  nodes_.clear();
  edge_lists_.clear();
  std::vector<Config> none;
  const uint32_t empty = lists_.intern(none);
  frames_.push_back({empty, kNone, 0, Scope::kNone, false, kNoTemperature});
  for (auto& frames : frame_of_list_) frames.clear();
  budget_frames_.clear();
  frame_of_list_[0].at(0) = kRoot;
  nodes_.emplace_back();
  node_of_list_.clear();
  node_of_list_.at(0) = kDeadNode;
}

FrameId Machine::intern_frame(std::vector<Config>& entries, RuleId rule, Scope scope, uint32_t tokens) {
  sort_unique(entries);
  const uint32_t list = lists_.intern(entries);
  const uint64_t key = uint64_t{list} << 32 | tokens;
  FrameId& slot = tokens == kNone ? frame_of_list_[static_cast<size_t>(scope)].at(list) : budget_frames_.try_emplace(key, kNone).first->second;
  if (slot != kNone) return slot;
  automaton_.meter().charge("making call frames");
  Distance distance = kInfinite;
  bool in_scope = is_container(scope);
  double temperature = kNoTemperature;
  for (const auto& [state, below] : entries) {
    distance = std::min(distance, add(automaton_[state].distance, frames_[below].distance));
    in_scope |= frames_[below].in_scope;
    temperature = std::max(temperature, frames_[below].temperature);
  }
  if (is_tempered(scope)) temperature = automaton_.terms().temperature(scope);
  Frame& frame = frames_.emplace_back(Frame{list, rule, distance, scope, in_scope, temperature});
  frame.tokens = frame.least = tokens;
  frame.in_budget = tokens != kNone;
  frame.slack = 0;
  frame.rest = kInfinite;
  for (const auto& [state, below] : entries) {
    const Frame& next = frames_[below];
    frame.in_budget |= next.in_budget;
    const uint32_t least = least_budget(state);
    frame.least = std::min({frame.least, next.least, least});
    frame.meets_budget |= next.meets_budget || least != kNone;
    const Distance missing = automaton_[state].distance;
    if (missing > next.slack) continue;
    const Distance slack = next.slack == kInfinite ? kInfinite : next.slack - missing, rest = add(missing, next.rest);
    if (rest < kInfinite && (frame.rest == kInfinite || slack > frame.slack || (slack == frame.slack && rest < frame.rest)))
      frame.slack = slack, frame.rest = rest;
  }
  frame.slack = std::min<Distance>(frame.slack, tokens);
  return slot = static_cast<FrameId>(frames_.size() - 1);
}

uint32_t Machine::least_budget(StateId state) {
  TermStore& terms = automaton_.terms();
  if (!terms.has_budgets()) return kNone;
  uint32_t least = kNone;
  for (TermId term : automaton_.items(state)) least = std::min(least, terms.least_budget(term));
  return least;
}

// Enters every rule that the configurations call without consuming anything.  Callers come before callees, so a
// callee's frame is complete when it is made: one frame a rule and position, however many calls lead there.
std::vector<Config> Machine::enter_calls(std::span<const Config> configs) {
  std::vector<Config> result(configs.begin(), configs.end());
  std::map<std::pair<uint32_t, RuleId>, std::vector<Config>> pending;  // (height, rule) -> returns
  const auto add_calls = [&](StateId state, FrameId frame) {
    for (const auto& [rule, after] : automaton_.expanded(state).calls) {
      automaton_.meter().work(kConfigSteps, kMoving);
      if (automaton_.terms().rule_budget(rule) == 0) continue;  // what it reads is more than it may
      std::vector<Config>& returns = pending[{automaton_.height(rule), rule}];
      const bool is_plain = frame != kRoot && frames_[frame].scope == Scope::kNone && frames_[frame].tokens == kNone;
      if (is_plain && automaton_.expanded(after).only_final) {  // a tail call returns where its caller does
        const auto below = entries(frame);
        automaton_.meter().work(below.size(), kMoving);
        returns.insert(returns.end(), below.begin(), below.end());
      } else {
        returns.emplace_back(after, frame);
      }
    }
  };
  for (const auto& [state, frame] : configs) add_calls(state, frame);
  while (!pending.empty()) {
    const auto highest = std::prev(pending.end());
    const RuleId rule = highest->first.second;
    std::vector<Config> returns = std::move(highest->second);
    pending.erase(highest);
    const FrameId frame = intern_frame(returns, rule, automaton_.terms().rule_scope(rule), automaton_.terms().rule_budget(rule));
    const StateId start = automaton_.rule_start(rule);
    result.emplace_back(start, frame);
    add_calls(start, frame);
  }
  return result;
}

// Pops finished rules, merges configurations with the same frame, and gives the set its node.
NodeId Machine::intern(std::vector<Config>& configs) {
  automaton_.meter().work(kConfigSteps * configs.size(), kMoving);
  sort_unique(configs);
  bool finished = false;
  for (const auto& [state, frame] : configs) finished |= automaton_.expanded(state).final && frame != kRoot;
  if (finished) {
    std::vector<Config> work = configs;
    std::unordered_set<uint64_t> seen;
    for (const auto& [state, frame] : configs) seen.insert(uint64_t{state} << 32 | frame);
    while (!work.empty()) {
      const auto [state, frame] = work.back();
      work.pop_back();
      if (frame == kRoot || !automaton_.expanded(state).final) continue;
      automaton_.meter().work(kConfigSteps * entries(frame).size(), kMoving);
      for (const Config& entry : entries(frame)) {
        if (!seen.insert(uint64_t{entry.first} << 32 | entry.second).second) continue;
        configs.push_back(entry);
        work.push_back(entry);
      }
    }
    std::erase_if(configs, [&](const Config& config) {
      return config.second != kRoot && automaton_[config.first].only_final;
    });
  }
  if (configs.size() > 1)
    std::sort(configs.begin(), configs.end(), [](const Config& a, const Config& b) {
      return std::pair(a.second, a.first) < std::pair(b.second, b.first);
    });
  size_t kept = 0;
  for (const Config& config : configs) {
    if (kept && configs[kept - 1].second == config.second)
      configs[kept - 1].first = automaton_.union_of(configs[kept - 1].first, config.first);
    else
      configs[kept++] = config;
  }
  configs.resize(kept);
  const uint32_t list = lists_.intern(configs);
  if (node_of_list_[list] != kNone) return node_of_list_[list];
  automaton_.meter().charge(kMoving);

  bool calls = false;
  for (const auto& [state, frame] : configs) calls |= !automaton_.expanded(state).calls.empty();
  uint32_t closure = list;
  if (calls) closure = lists_.intern(enter_calls(configs));
  Node& node = nodes_.emplace_back();
  node.configs = list;
  node.closure = closure;
  node.only_accepting = true;
  for (const auto& [state, frame] : lists_[closure]) {
    const State& held = automaton_.expanded(state);
    node.live |= held.live;
    node.has_specials |= !held.specials.empty();
    for (const auto& [symbol, after] : held.specials) node.has_token_sets |= (symbol & kTokenSet) != 0;
    if (!held.live.empty() || !held.specials.empty()) node.temperature = std::max(node.temperature, frames_[frame].temperature);
    node.accepting |= held.final && frame == kRoot;
  }
  for (const auto& [state, frame] : configs) {
    node.distance = std::min(node.distance, add(automaton_[state].distance, frames_[frame].distance));
    node.in_scope |= frames_[frame].in_scope;
    node.in_budget |= frames_[frame].in_budget;
    const uint32_t least = least_budget(state);
    node.least = std::min({node.least, frames_[frame].least, least});
    node.meets_budget |= frames_[frame].meets_budget || least != kNone;
    if (automaton_[state].distance <= frames_[frame].slack)
      node.sure = std::min(node.sure, add(automaton_[state].distance, frames_[frame].rest));
    node.in_label |= is_label(frames_[frame].scope);
  }
  if (node.least == 0) node.sure = kInfinite;
  node.only_accepting = node.accepting && node.live.empty() && !node.has_specials;
  return node_of_list_.at(list) = static_cast<NodeId>(nodes_.size() - 1);
}

NodeId Machine::start(TermId term) { return local(automaton_.state_of(term)); }

NodeId Machine::local(StateId state) {
  if (state == kDead) return kDeadNode;
  std::vector<Config> configs{{state, kRoot}};
  return intern(configs);
}

NodeId Machine::known_step(NodeId id, uint8_t byte) const {
  const Node& node = nodes_[id];
  if (!node.live.contains(byte)) return kDeadNode;
  if (node.many) return node.many[byte];
  for (const auto& [known, target] : node.few.first(node.known))
    if (known == byte) return target;
  return kNone;
}

NodeId Machine::node_of(std::span<const Config> configs) {
  std::vector<Config> held(configs.begin(), configs.end());
  return intern(held);
}

NodeId Machine::step(NodeId id, uint8_t byte) {
  const NodeId known = known_step(id, byte);
  if (known != kNone) return known;
  automaton_.meter().work(kStepSteps * closure(id).size(), kMoving);
  std::vector<Config> moved;
  for (const auto& [state, frame] : closure(id)) {
    const StateId target = automaton_[state].next[byte];
    if (target != kDead) moved.emplace_back(target, frame);
  }
  const NodeId target = intern(moved);
  remember(id, byte, target);
  return target;
}

NodeId Machine::advance(NodeId id, std::string_view& text) {
  constexpr size_t kMaxLeaping = 4;
  if (const NodeId known = known_step(id, static_cast<uint8_t>(text[0])); known != kNone) {
    text.remove_prefix(1);
    return known;
  }
  const std::vector<Config> from(configs(id).begin(), configs(id).end());  // what is made may move the pool
  size_t count = from.size() <= kMaxLeaping ? text.size() : 1;
  for (const auto& [state, frame] : from)
    if (count > 1) count = std::min(count, automaton_.leap(state, text));
  if (count < 2) {
    const auto byte = static_cast<uint8_t>(text[0]);
    text.remove_prefix(1);
    return step(id, byte);
  }
  automaton_.meter().work(kStepSteps * count * from.size(), kMoving);
  std::vector<Config> moved;
  for (const auto& [state, frame] : from)
    if (const StateId after = automaton_.after_leap(state, text.substr(0, count)); after != kDead) moved.emplace_back(after, frame);
  text.remove_prefix(count);
  return moved.empty() ? kDeadNode : intern(moved);
}

std::string_view Machine::literal(NodeId id) const {
  const auto found = configs(id).size() == 1 ? automaton_.literal(configs(id)[0].first) : std::nullopt;
  return found ? automaton_.terms().blob(found->head.a).substr(found->head.b) : std::string_view{};
}

bool Machine::same_step(NodeId one, NodeId other, uint8_t byte) const {
  const auto first = closure(one), second = closure(other);
  return first.size() == 1 && second.size() == 1 && first[0].second == second[0].second &&
         automaton_[first[0].first].next[byte] == automaton_[second[0].first].next[byte];
}

NodeId Machine::step_special(NodeId id, uint32_t token) {
  if (!nodes_[id].has_specials) return kDeadNode;
  std::vector<Config> moved;
  for (const auto& [state, frame] : closure(id))
    for (const auto& [symbol, after] : automaton_[state].specials)
      if (automaton_.terms().is_symbol_of(symbol, token)) moved.emplace_back(after, frame);
  return moved.empty() ? kDeadNode : intern(moved);
}

std::vector<uint32_t> Machine::specials(NodeId id) const {
  std::vector<uint32_t> found;
  if (!nodes_[id].has_specials) return found;
  for (const auto& [state, frame] : closure(id))
    for (const auto& [symbol, after] : automaton_[state].specials)
      automaton_.terms().for_each_token(symbol, [&](uint32_t token) { found.push_back(token); });
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

std::vector<std::pair<std::vector<uint32_t>, NodeId>> Machine::special_steps(NodeId id) {
  std::vector<std::pair<std::vector<uint32_t>, NodeId>> steps;
  if (!nodes_[id].has_specials) return steps;
  std::vector<uint32_t> symbols;
  for (const auto& [state, frame] : closure(id))
    for (const auto& [symbol, after] : automaton_[state].specials) symbols.push_back(symbol);
  std::sort(symbols.begin(), symbols.end());
  symbols.erase(std::unique(symbols.begin(), symbols.end()), symbols.end());
  std::vector<std::pair<uint32_t, uint32_t>> members;  // token, symbol
  for (uint32_t symbol : symbols)
    automaton_.terms().for_each_token(symbol, [&](uint32_t token) { members.emplace_back(token, symbol); });
  automaton_.meter().work(members.size(), kMoving);
  if (symbols.size() > 1) std::sort(members.begin(), members.end());
  std::map<std::vector<uint32_t>, size_t> groups;  // by the symbols that a token is one of
  size_t last = 0;  // the group of the token before
  std::vector<uint32_t> held, before;
  for (size_t i = 0; i < members.size();) {
    const uint32_t token = members[i].first;
    held.clear();
    for (; i < members.size() && members[i].first == token; ++i) held.push_back(members[i].second);
    if (held != before) {
      const auto [slot, is_new] = groups.try_emplace(held, steps.size());
      if (is_new) steps.emplace_back(std::vector<uint32_t>{}, step_special(id, token));
      last = slot->second;
      before = held;
    }
    steps[last].first.push_back(token);
  }
  return steps;
}

NodeId Machine::joined(NodeId one, NodeId other) {
  if (one == kDeadNode || one == other) return other;
  if (other == kDeadNode) return one;
  const auto first = configs(one), second = configs(other);
  std::vector<Config> both(first.begin(), first.end());
  both.insert(both.end(), second.begin(), second.end());
  return intern(both);
}

std::vector<FrameId> Machine::scopes(NodeId id) const {
  std::vector<FrameId> found, work;
  std::unordered_set<FrameId> seen;
  for (const auto& [state, frame] : configs(id)) work.push_back(frame);
  while (!work.empty()) {
    const FrameId frame = work.back();
    work.pop_back();
    if (!frames_[frame].in_scope || !seen.insert(frame).second) continue;
    if (is_container(frames_[frame].scope)) found.push_back(frame);
    for (const auto& [state, below] : entries(frame)) work.push_back(below);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<FrameId> Machine::pending_scopes(NodeId id) {
  std::vector<FrameId> found;  // the closure has what a call enters after the configurations that call
  for (const auto& [state, frame] : closure(id).subspan(configs(id).size()))
    if (is_container(frames_[frame].scope)) found.push_back(frame);
  return found;
}

// The node with other frames: `remake` gives what becomes of a frame whose ways down have changed, kNone where every way
// through it is dropped.  Frames that are not touched stay, and so do those below them.
template <class IsTouched, class Remake>
NodeId Machine::rebuilt(NodeId id, std::map<FrameId, FrameId> kept, IsTouched&& is_touched, Remake&& remake) {
  std::vector<FrameId> work;
  for (const auto& [state, frame] : configs(id)) work.push_back(frame);
  while (!work.empty()) {
    const FrameId frame = work.back();
    if (!is_touched(frames_[frame])) kept.emplace(frame, frame);
    if (kept.contains(frame)) {
      work.pop_back();
      continue;
    }
    const size_t before = work.size();
    for (const auto& [state, below] : entries(frame))
      if (!kept.contains(below)) work.push_back(below);
    if (work.size() != before) continue;
    std::vector<Config> left;
    for (const auto& [state, below] : entries(frame))
      if (kept.at(below) != kNone) left.emplace_back(state, kept.at(below));
    const Frame held = frames_[frame];
    kept[frame] = left.empty() ? kNone : remake(held, left);
  }
  std::vector<Config> left;
  for (const auto& [state, frame] : configs(id))
    if (kept.at(frame) != kNone) left.emplace_back(state, kept.at(frame));
  return left.empty() ? kDeadNode : intern(left);
}

NodeId Machine::without(NodeId id, std::span<const FrameId> dropped) {
  std::map<FrameId, FrameId> kept;
  for (FrameId frame : dropped) kept[frame] = kNone;
  return rebuilt(
      id, std::move(kept), [](const Frame& frame) { return frame.in_scope; },
      [&](const Frame& held, std::vector<Config>& left) { return intern_frame(left, held.rule, held.scope, held.tokens); });
}

bool Machine::is_sure(NodeId id, Distance more) const {
  if (nodes_[id].least == kNone) return nodes_[id].distance < kInfinite;
  if (nodes_[id].sure == kInfinite) return false;
  const auto held = configs(id);
  return std::any_of(held.begin(), held.end(), [&](const Config& config) {
    const Frame& frame = frames_[config.second];
    return frame.rest < kInfinite && add(automaton_[config.first].distance, more) <= frame.slack;
  });
}

bool Machine::is_sure_everywhere(NodeId id) const {
  for (const auto& [state, frame] : configs(id)) {
    const Frame* held = &frames_[frame];
    if (held->in_budget && (held->rest == kInfinite || automaton_[state].distance > held->slack)) return false;
    while (held->in_budget) {  // `slack` is that of the best way down, so there must be one
      const auto below = lists_[held->entries];
      const bool is_outermost = std::none_of(below.begin(), below.end(), [&](const Config& entry) { return frames_[entry.second].in_budget; });
      if (is_outermost) break;
      if (below.size() != 1) return false;
      held = &frames_[below[0].second];
    }
  }
  return true;
}

// The last byte that was read stands in every frame below a configuration, so the token is one of its part.  Where a
// part may hold no further token, what comes after it was reached when its text ended, and the part itself is left.
NodeId Machine::tick(NodeId id) {
  if (!nodes_[id].in_budget || nodes_[id].ticked != kNone) return known_tick(id);
  const NodeId after = rebuilt(
      id, {}, [](const Frame& frame) { return frame.in_budget; },
      [&](const Frame& held, std::vector<Config>& left) {
        if (held.tokens == 1) return kNone;
        return intern_frame(left, held.rule, held.scope, held.tokens == kNone ? kNone : held.tokens - 1);
      });
  nodes_[id].ticked = after;
  return after;
}

void Machine::remember(NodeId id, uint8_t byte, NodeId target) {
  Node& node = nodes_[id];
  if (!node.many && node.known == kFewTransitions) {
    node.many = edge_lists_.allocate<NodeId>(256);
    std::fill_n(node.many, 256, kNone);
    for (const auto& [known, to] : node.few) node.many[known] = to;
  }
  if (node.many) {
    node.many[byte] = target;
    return;
  }
  if (node.known == node.few.size()) {
    const size_t capacity = std::max<size_t>(2 * node.few.size(), 1);
    auto* const wider = edge_lists_.allocate<std::pair<uint8_t, NodeId>>(capacity);
    std::uninitialized_default_construct_n(wider, capacity);
    std::copy(node.few.begin(), node.few.end(), wider);
    node.few = {wider, capacity};
  }
  node.few[node.known++] = {byte, target};
}

size_t Machine::bytes_used() const {
  size_t ids = node_of_list_.bytes();
  for (const auto& frames : frame_of_list_) ids += frames.bytes();
  return automaton_.bytes_used() + lists_.bytes() + frames_.bytes() + nodes_.bytes() + ids + budget_frames_.size() * 2 * sizeof(*budget_frames_.begin()) + edge_lists_.bytes();
}

}  // namespace structgen

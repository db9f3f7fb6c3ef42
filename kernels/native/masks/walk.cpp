// Walks over a trie from one state, which find the tokens that may follow, and from two states at once, which find those
// that follow only one of them.
#include <algorithm>
#include <vector>

#include "masks/dense_walk.h"
#include "masks/engine.h"

namespace structgen {

namespace {

constexpr uint32_t kFewEdges = 4;  // of a state: made one by one, they are cheaper than all at once

}  // namespace

void Engine::add_tokens(const Trie& trie, uint32_t position, Found& found) {
  const auto tokens = trie.tokens_at(position);
  found.tokens.insert(found.tokens.end(), tokens.begin(), tokens.end());
}

Engine::Spot Engine::spot(StateId state) {
  if (machine_.automaton().expanded(state).calls.empty()) return {state, kNone};
  return {kNone, machine_.local(state)};
}

Engine::Spot Engine::step(Spot from, uint8_t byte) {
  if (from.state == kNone) return {kNone, machine_.step(from.node, byte)};
  return spot(machine_.automaton()[from.state].next[byte]);
}

// Whether both go to the same node by `byte`, as far as that shows without making it.
bool Engine::same_step(Spot one, Spot other, uint8_t byte) const {
  const Automaton& automaton = machine_.automaton();
  if (one.state != kNone && other.state != kNone) return automaton[one.state].next[byte] == automaton[other.state].next[byte];
  return one.state == kNone && other.state == kNone && machine_.same_step(one.node, other.node, byte);
}

// How far completion is after a byte, without making what comes after it.
Distance Engine::distance_after(Spot from, uint8_t byte) const {
  const Automaton& automaton = machine_.automaton();
  if (from.state != kNone) return automaton[automaton[from.state].next[byte]].distance;
  Distance nearest = kInfinite;
  for (const auto& [state, frame] : machine_.closure(from.node))
    nearest = std::min(nearest, add(automaton[automaton[state].next[byte]].distance, machine_.frame(frame).distance));
  return nearest;
}

// The same of a token that no other begins with.
void Engine::add_leaf(const Trie& trie, uint32_t position, Spot above, Found& found) {
  add_tokens(trie, position, found);
  found.reach = std::max(found.reach, distance_after(above, trie.byte[position]));
}

// Files what a node of the trie with others below contributes, `here` being alive; whether the walk has to go on.
bool Engine::enter(const Trie& trie, uint32_t position, Spot here, Found& found) {
  add_tokens(trie, position, found);
  const uint32_t end = trie.end[position];
  found.reach = std::max(found.reach, distance(here));
  if (accepting(here)) found.exits.push_back(position);
  if (only_accepting(here)) return false;
  if (!absorbs(here, trie, position)) return true;
  found.reach = std::max(found.reach, absorption(here).distance);
  found.tokens.insert(found.tokens.end(), trie.tokens.begin() + trie.token_begin[position + 1], trie.tokens.begin() + trie.token_begin[end]);
  return false;
}

// The tokens below `top` that may follow at `from`, `top` being its position in the trie.
void Engine::walk(const Trie& trie, uint32_t top, Spot from, Found& found) {
  if (DenseWalk::pays(trie, top, live(from))) DenseWalk(*this, trie, found).run(top, from);
  else walk_levels(trie, top, from, found);
}

// The same in the trie's levels: each looks up only the children by bytes that are live.
void Engine::walk_levels(const Trie& trie, uint32_t top, Spot from, Found& found) {
  struct Level {
    uint32_t next, stop;  // children to visit
    Spot spot;
  };
  std::vector<Level> path{{trie.child_begin[top], trie.child_begin[top + 1], from}};
  look_at(path[0].stop - path[0].next);
  while (!path.empty()) {
    Level& level = path.back();
    const uint32_t at = trie.next_child(level.next, level.stop, live(level.spot));
    if (at == level.stop) {
      path.pop_back();
      continue;
    }
    level.next = at + 1;
    uint32_t position = trie.child_node[at];
    if (trie.is_leaf(position)) {  // as most are
      add_leaf(trie, position, level.spot, found);
      continue;
    }
    Spot here;
    if (level.spot.state == kNone) {
      here = step(level.spot, trie.child_byte[at]);
      if (!enter(trie, position, here, found)) continue;
    } else {
      StateId state = machine_.automaton()[level.spot.state].next[trie.child_byte[at]];
      if (!follow_literal(trie, position, state, found)) continue;
      here = spot(state);
      if (!enter(trie, position, here, found)) continue;
    }
    path.push_back({trie.child_begin[position], trie.child_begin[position + 1], here});
    look_at(path.back().stop - path.back().next);
  }
}

// Goes down the trie as long as `state`, which stands at `position`, reads literals: their states need not be made.
// False where the tokens end within one; else the state is not filed yet.
bool Engine::follow_literal(const Trie& trie, uint32_t& position, StateId& state, Found& found) {
  Automaton& automaton = machine_.automaton();
  while (const auto literal = automaton.literal(state)) {
    const std::string_view text = automaton.terms().blob(literal->head.a).substr(literal->head.b);
    Distance distance = automaton[state].distance;
    for (char byte : text) {
      if (position != 0) {  // the root stands for no text
        add_tokens(trie, position, found);
        found.reach = std::max(found.reach, distance);
      }
      position = trie.child(position, static_cast<uint8_t>(byte));
      if (position == 0) return false;
      if (distance < kFar) --distance;
    }
    if (trie.is_leaf(position)) {
      add_tokens(trie, position, found);
      found.reach = std::max(found.reach, distance);
      return false;
    }
    state = automaton.state_of(literal->tail);
  }
  return true;
}

// What `one` allows and `other` does not, and the reverse, from the root of the vocabulary's trie, but for the rules that
// they call at once.  Texts of at most `same` bytes are known to be in both or in neither.  False where so much differs
// that a walk from one is quicker.
bool Engine::compare(StateId one, StateId other, uint32_t same, Found& more, Found& fewer) {
  const Trie& all = tokens_->trie();
  Automaton& automaton = machine_.automaton();
  struct Level {
    uint32_t next, stop;
    Spot one, other;
    bool is_sparse;  // few of the texts below are long: their states are made by single bytes
  };
  const auto is_same = [&](uint32_t position) { return uint32_t{all.depth[position]} + all.height[position] <= same; };
  const auto is_sparse = [&](uint32_t position) {
    uint32_t longer = 0;
    for (uint32_t at = all.child_begin[position]; at < all.child_begin[position + 1]; ++at) longer += !is_same(all.child_node[at]);
    return longer <= kFewEdges;
  };
  // Where the state is not looked into yet.
  const auto after = [&](Spot from, uint8_t byte) {
    return from.state == kNone ? step(from, byte) : Spot{automaton[from.state].next[byte], kNone};
  };
  const auto whole = [&](Spot at) { return at.state == kNone ? at : spot(at.state); };
  const auto is_dead = [](Spot at) { return at.state == kNone ? at.node == kDeadNode : at.state == kDead; };
  const auto ends = [&](Spot at) { return at.state == kNone ? accepting(at) : distance(at) == 0; };
  uint32_t left = all.size() / kDearness;
  std::vector<Level> path;
  const auto open = [&](uint32_t position, Spot first, Spot second, bool sparse) {
    path.push_back({all.child_begin[position], all.child_begin[position + 1], first, second, sparse});
    look_at(path.back().stop - path.back().next);
  };
  automaton.expanded(one);
  automaton.expanded(other);
  open(0, {one, kNone}, {other, kNone}, false);
  while (!path.empty()) {
    Level& level = path.back();
    const uint32_t at = level.is_sparse ? level.next : all.next_child(level.next, level.stop, live(level.one) | live(level.other));
    if (at == level.stop) {
      path.pop_back();
      continue;
    }
    const uint8_t byte = all.child_byte[at];
    const uint32_t position = all.child_node[at];
    level.next = at + 1;
    if (is_same(position)) continue;
    if (left-- == 0) return false;
    Spot first, second;
    if (level.is_sparse) {
      const auto next = automaton.after_alone(level.one.state, byte);
      const auto next_other = next ? automaton.after_alone(level.other.state, byte) : std::nullopt;
      if (!next_other) {
        level = {at, level.stop, spot(level.one.state), spot(level.other.state), false};
        continue;
      }
      first = {*next, kNone};
      second = {*next_other, kNone};
    } else if (same_step(level.one, level.other, byte)) {
      continue;
    } else if (all.is_leaf(position)) {  // no node need be made for it
      const bool in_one = live(level.one).contains(byte), in_other = live(level.other).contains(byte);
      if (in_one != in_other) add_leaf(all, position, in_one ? level.one : level.other, in_one ? more : fewer);
      else more.reach = std::max(more.reach, distance_after(level.one, byte));
      continue;
    } else {
      first = after(level.one, byte);
      second = after(level.other, byte);
    }
    if (first == second) continue;
    if (is_dead(first) || is_dead(second)) {
      Found& found = is_dead(first) ? fewer : more;
      const Spot here = is_dead(first) ? second : first;
      if (all.is_leaf(position)) {
        add_tokens(all, position, found);
        found.reach = std::max(found.reach, distance(here));
      } else if (const Spot looked_into = whole(here); enter(all, position, looked_into, found)) {
        walk(all, position, looked_into, found);
      }
      continue;
    }
    more.reach = std::max(more.reach, distance(first));
    if (all.is_leaf(position)) continue;
    if (ends(first) != ends(second)) (ends(first) ? more : fewer).exits.push_back(position);
    if (!level.is_sparse && absorbs(first, all, position) && absorbs(second, all, position)) {
      more.reach = std::max(more.reach, absorption(first).distance);
      continue;
    }
    const bool sparse = same != 0 && first.state != kNone && second.state != kNone && is_sparse(position);
    if (sparse) open(position, first, second, true);
    else open(position, whole(first), whole(second), false);
  }
  return true;
}

}  // namespace structgen

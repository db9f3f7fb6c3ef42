#include "dense_walk.h"

#include <algorithm>

namespace structgen {

// The number of a state or node; kUnnumbered if there are too many.
Engine::DenseWalk::Number Engine::DenseWalk::number_of(Spot spot) {
  const uint64_t key = spot.state == kNone ? uint64_t{1} << 32 | spot.node : uint64_t{spot.state};
  if (const Number* known = numbers_.find(key)) return *known;
  if (spots_.size() == kMostNumbers) return kUnnumbered;
  const auto made = static_cast<Number>(spots_.size());
  spots_.push_back(spot);
  flags_.push_back(0);
  edges_.resize(spots_.size() * 256, kNowhere);
  return numbers_.insert(key, made);
}

void Engine::DenseWalk::add_edges(Number number) {
  const Spot spot = spots_[number];
  const size_t row = size_t{number} * 256;
  if (spot.state == kNone) {  // nodes are made where they are reached
    engine_.live(spot).for_each([&](uint8_t byte) { edges_[row + byte] = kUnnumbered; });
    return;
  }
  engine_.machine_.automaton()[spot.state].next.for_each([&](const ByteSet& set, StateId target) {
    if (target == kDead) return;
    const Number after = number_of({target, kNone});
    set.for_each([&](uint8_t byte) { edges_[row + byte] = after; });
  });
}

// Prepares for the children of a node of the trie at which the walk stands for the first time.
void Engine::DenseWalk::enter(Number number) {
  uint8_t flags = flags_[number] | kEntered;
  const StateId state = spots_[number].state;
  if (state != kNone && engine_.machine_.automaton().literal(state)) {
    flags_[number] = flags | kAttention | kLiteral;
    return;
  }
  const Spot spot = state == kNone ? spots_[number] : engine_.spot(state);
  spots_[number] = spot;
  found_.reach = std::max(found_.reach, engine_.distance(spot));
  if (engine_.accepting(spot)) flags |= kAttention | kEnds;
  if (engine_.only_accepting(spot)) flags |= kAttention | kOnlyEnds;
  else if (engine_.absorption(spot).groups != 0) flags |= kAttention | kAbsorbs;
  flags_[number] = flags;
  if (!(flags & kOnlyEnds)) add_edges(number);
}

// The number after an edge that is not in the table; kUnnumbered if all below `place` has been filed.
Engine::DenseWalk::Number Engine::DenseWalk::step(Number above, uint32_t place) {
  const uint8_t byte = trie_.byte[place];
  const Spot from = spots_[above];
  if (trie_.is_leaf(place)) {
    engine_.add_leaf(trie_, place, from, found_);
    return kUnnumbered;
  }
  const Spot here = engine_.step(from, byte);
  const Number after = number_of(here);
  if (after != kUnnumbered) return edges_[size_t{above} * 256 + byte] = after;
  if (engine_.enter(trie_, place, here, found_)) engine_.walk_levels(trie_, place, here, found_);
  return kUnnumbered;
}

// What else is to be done at a node with others below; where the walk goes on: the node itself if with its children.
uint32_t Engine::DenseWalk::attend(Number number, uint32_t place) {
  const uint8_t flags = flags_[number];
  const uint32_t end = trie_.end[place];
  if (flags & kEnds) found_.exits.push_back(place);
  if (flags & kOnlyEnds) return end;
  if (!(flags & kAbsorbs) || !engine_.absorbs(spots_[number], trie_, place)) return place;
  found_.reach = std::max(found_.reach, engine_.absorption(spots_[number]).distance);
  found_.tokens.insert(found_.tokens.end(), trie_.tokens.begin() + trie_.token_begin[place + 1], trie_.tokens.begin() + trie_.token_begin[end]);
  return end;
}

void Engine::DenseWalk::run(uint32_t top, Spot from) {
  constexpr uint32_t kReported = 4096;  // nodes at a time
  const uint8_t* const bytes = trie_.byte.data();
  const uint16_t* const depths = trie_.depth.data();
  const uint32_t* const ends = trie_.end.data();
  const uint32_t* const token_begin = trie_.token_begin.data();
  const uint32_t* const tokens = trie_.tokens.data();
  spots_.assign(1, Spot{});
  flags_.assign(1, 0);
  edges_.assign(256, kNowhere);
  path_.assign(size_t{trie_.max_depth} + 1, kNowhere);
  const Number start = number_of(from);
  flags_[start] = kMet | kEntered;
  add_edges(start);
  path_[depths[top]] = start;
  uint32_t looked_at = 0;
  for (uint32_t place = top + 1; place < ends[top];) {
    if (++looked_at % kReported == 0) engine_.look_at(kReported);
    const Number above = path_[depths[place] - 1];
    Number here = edges_.data()[size_t{above} * 256 + bytes[place]];
    if (here == kNowhere) {
      place = ends[place];
      continue;
    }
    if (here == kUnnumbered && (here = step(above, place)) == kUnnumbered) {
      place = ends[place];
      continue;
    }
    if (!(flags_.data()[here] & kMet)) {
      flags_[here] |= kMet;
      found_.reach = std::max(found_.reach, engine_.distance(spots_[here]));
    }
    const bool is_leaf = ends[place] == place + 1;
    if (!is_leaf) {
      if (!(flags_.data()[here] & kEntered)) enter(here);
      if (flags_.data()[here] & kLiteral) {
        const uint32_t first = place;
        StateId state = spots_[here].state;
        if (!engine_.follow_literal(trie_, place, state, found_)) {
          place = ends[first];
          continue;
        }
        // What turns off the literal is dead.
        std::fill(path_.begin() + depths[first], path_.begin() + depths[place], kNowhere);
        const Spot after = engine_.spot(state);
        here = number_of(after);
        if (here == kUnnumbered) {
          if (engine_.enter(trie_, place, after, found_)) engine_.walk_levels(trie_, place, after, found_);
          place = ends[place];
          continue;
        }
        flags_[here] |= kMet;
        if (!(flags_[here] & kEntered)) enter(here);
      }
    }
    for (uint32_t at = token_begin[place]; at < token_begin[place + 1]; ++at) found_.tokens.push_back(tokens[at]);
    if (is_leaf) {
      ++place;
      continue;
    }
    path_[depths[place]] = here;
    if (flags_.data()[here] & kAttention) {
      if (const uint32_t next = attend(here, place); next != place) {
        place = next;
        continue;
      }
    }
    ++place;
  }
  engine_.look_at(looked_at % kReported);
}

}  // namespace structgen

#include "masks/dense_walk.h"

#include <algorithm>

namespace structgen {

Engine::DenseWalk::DenseWalk(Engine& engine, const Trie& trie, Found& found)
    : engine_(engine), trie_(trie), found_(found),
      scratch_(engine.dense_scratch_ ? std::move(engine.dense_scratch_) : std::make_unique<DenseScratch>()),
      numbers_(scratch_->numbers), spots_(scratch_->spots), flags_(scratch_->flags),
      passing_(scratch_->passing), edges_(scratch_->edges), path_(scratch_->path) {
  found_.bits.resize(engine_.words());
  numbers_.clear();
  spots_.assign(1, Spot{});
  flags_.assign(1, 0);
  passing_.assign(1, {});
  edges_.assign(256, kNowhere);
  path_.assign(size_t{trie_.max_depth} + 1, kNowhere);
}

Engine::DenseWalk::~DenseWalk() { engine_.dense_scratch_ = std::move(scratch_); }

// The number of a state or node; kUnnumbered if there are too many.
Engine::DenseWalk::Number Engine::DenseWalk::number_of(Spot spot) {
  const uint64_t key = spot.state == kNone ? uint64_t{1} << 32 | spot.node : uint64_t{spot.state};
  if (const Number* known = numbers_.find(key)) return *known;
  if (spots_.size() == kMaxNumbers) return kUnnumbered;
  const auto made = static_cast<Number>(spots_.size());
  spots_.push_back(spot);
  flags_.push_back(0);
  passing_.push_back({});
  edges_.resize(spots_.size() * 256, kNowhere);
  return numbers_.insert(key, made);
}

// An edge to what has a number, as far as that is known by now.
Engine::DenseWalk::Number Engine::DenseWalk::edge_to(Number number) const {
  const uint8_t flags = flags_[number];
  if (flags == (kMet | kEntered)) return number;
  return number | (flags == (kMet | kEntered | kAbsorbs) ? kAbsorbing : kUnseen);
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
    const Number edge = after == kUnnumbered ? kUnnumbered : edge_to(after);
    set.for_each([&](uint8_t byte) { edges_[row + byte] = edge; });
  });
}

// Prepares for the children of a node of the trie at which the walk stands for the first time.
void Engine::DenseWalk::enter(Number number) {
  uint8_t flags = flags_[number] | kEntered;
  const StateId state = spots_[number].state;
  if (state != kNone && engine_.machine_.automaton().literal(state)) {
    flags_[number] = flags | kLiteral;
    return;
  }
  const Spot spot = state == kNone ? spots_[number] : engine_.spot(state);
  spots_[number] = spot;
  found_.reach = std::max(found_.reach, engine_.distance(spot));
  if (engine_.accepting(spot)) flags |= kEnds;
  if (engine_.only_accepting(spot)) flags |= kOnlyEnds;
  else if (const Absorption held = engine_.absorption(spot); held.groups != 0) {
    flags |= kAbsorbs;
    passing_[number] = {held.groups, held.count, held.distance};
  }
  flags_[number] = flags;
  if (!(flags & kOnlyEnds)) add_edges(number);
}

// The number after an edge that is not in the table; kUnnumbered if all below `position` has been filed.
Engine::DenseWalk::Number Engine::DenseWalk::step(Number above, uint32_t position) {
  const uint8_t byte = trie_.byte[position];
  const Spot from = spots_[above];
  if (trie_.is_leaf(position)) {
    engine_.add_leaf(trie_, position, from, found_);
    return kUnnumbered;
  }
  const Spot here = engine_.step(from, byte);
  const Number after = number_of(here);
  if (after != kUnnumbered) return after;
  if (engine_.enter(trie_, position, here, found_)) engine_.walk_levels(trie_, position, here, found_);
  return kUnnumbered;
}

// Files what a node of the trie contributes that the loop of visit() does not settle by itself, `edge` being what the
// table has.  Returns where the walk goes on.
uint32_t Engine::DenseWalk::look(Number edge, uint32_t position) {
  const uint32_t end = trie_.end[position];
  const Number above = path_[trie_.depth[position] - 1u];
  Number here = edge == kUnnumbered ? step(above, position) : edge & kNumber;
  if (here == kUnnumbered) return end;
  if (!(flags_[here] & kMet)) {
    flags_[here] |= kMet;
    found_.reach = std::max(found_.reach, engine_.distance(spots_[here]));
  }
  const bool is_leaf = trie_.is_leaf(position);  // its state need not be looked into
  if (!is_leaf && !(flags_[here] & kEntered)) enter(here);
  edges_[size_t{above} * 256 + trie_.byte[position]] = edge_to(here);
  if (is_leaf) {
    add_tokens(position, end);
    return end;
  }
  if (flags_[here] & kLiteral) {
    const uint32_t first = position;
    StateId state = spots_[here].state;
    if (!engine_.follow_literal(trie_, position, state, found_)) return end;
    // What turns off the literal is dead.
    std::fill(path_.begin() + trie_.depth[first], path_.begin() + trie_.depth[position], kNowhere);
    const Spot after = engine_.spot(state);
    here = number_of(after);
    if (here == kUnnumbered) {
      if (engine_.enter(trie_, position, after, found_)) engine_.walk_levels(trie_, position, after, found_);
      return trie_.end[position];
    }
    if (!(flags_[here] & kMet)) found_.reach = std::max(found_.reach, engine_.distance(spots_[here]));
    flags_[here] |= kMet;
    if (!(flags_[here] & kEntered)) enter(here);
  }
  add_tokens(position, position + 1);
  path_[trie_.depth[position]] = here;
  const uint8_t flags = flags_[here];
  if (flags & kEnds) found_.exits.push_back(position);
  if (flags & kOnlyEnds) return trie_.end[position];
  return flags & kAbsorbs && passes(here, position) ? pass(here, position) : position + 1;
}

// Files the tokens below a node that are absorbed whole.  Returns where the walk goes on.
uint32_t Engine::DenseWalk::pass(Number here, uint32_t position) {
  found_.reach = std::max(found_.reach, passing_[here].distance);
  add_tokens(position + 1, trie_.end[position]);
  return trie_.end[position];
}

// Files the tokens that end at some nodes, `end` being beyond them.
void Engine::DenseWalk::add_tokens(uint32_t position, uint32_t end) {
  const uint32_t last = trie_.token_begin[end];
  for (uint32_t at = trie_.token_begin[position]; at < last; ++at) found_.bits[trie_.tokens[at] >> 5] |= uint32_t{1} << (trie_.tokens[at] & 31);
}

void Engine::DenseWalk::run(uint32_t top, Spot from) {
  const Number start = number_of(from);
  if (start == kUnnumbered) return engine_.walk_levels(trie_, top, from, found_);
  if (!(flags_[start] & kEntered)) {
    // A loop may lead back here, after some text, where the automaton may end; only then its distance counts.
    flags_[start] = static_cast<uint8_t>(kEntered | (engine_.accepting(from) ? kEnds : 0));
    add_edges(start);
  }
  path_[trie_.depth[top]] = start;
  uint32_t position = top + 1;
  if (top == 0 && !trie_.whole.empty()) position = pass_foreign(from);
  visit(position, trie_.end[top]);
}

// Passes what begins with characters beyond ASCII, which are a third of a vocabulary, where any of them may stand.
// Returns where the walk has to go on.
uint32_t Engine::DenseWalk::pass_foreign(Spot from) {
  uint32_t position = 1;
  const Absorption held = engine_.foreign_absorption(from);
  if (held.groups == 0) return position;
  for (uint32_t at = trie_.child_begin[0]; at < trie_.child_begin[1]; ++at) {
    const uint32_t child = trie_.child_node[at];
    if (trie_.child_byte[at] < 0x80 || (trie_.whole[child] & ~held.groups) != 0 || trie_.height[child] >= held.count) continue;
    visit(position, child);
    add_tokens(child, trie_.end[child]);
    found_.reach = std::max(found_.reach, held.distance);
    position = trie_.end[child];
  }
  return position;
}

// The nodes from `position` on, each below one that the path has.
void Engine::DenseWalk::visit(uint32_t position, uint32_t stop) {
  constexpr uint32_t kReported = 4096;  // nodes at a time
  const uint8_t* const bytes = trie_.byte.data();
  const uint16_t* const depths = trie_.depth.data();
  const uint32_t* const token_begin = trie_.token_begin.data();
  const uint32_t* const tokens = trie_.tokens.data();
  Number* const path = path_.data();
  uint32_t* const bits = found_.bits.data();
  const Number* edges = edges_.data();
  uint32_t looked_at = 0;
  while (position < stop) {
    if (++looked_at % kReported == 0) engine_.look_at(kReported);
    const Number edge = edges[size_t{path[depths[position] - 1]} * 256 + bytes[position]];
    if (edge == kNowhere) {
      position = trie_.end[position];
      continue;
    }
    if (edge >= kUnseen) {
      position = look(edge, position);
      edges = edges_.data();
      continue;
    }
    // Nodes have a token or none, but for a few, and which of them is not predictable: there is no branch on it.
    // Some token ends here or below, so there is one to read.
    const uint32_t first = token_begin[position], count = token_begin[position + 1] - first;
    bits[tokens[first] >> 5] |= uint32_t{count != 0} << (tokens[first] & 31);
    if (count > 1) add_tokens(position, position + 1);
    path[depths[position]] = edge & kNumber;
    if (edge & kAbsorbing && passes(edge & kNumber, position)) position = pass(edge & kNumber, position);
    else ++position;
  }
  engine_.look_at(looked_at % kReported);
}

}  // namespace structgen

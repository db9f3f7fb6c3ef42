#include "counted.h"

#include <algorithm>
#include <array>

namespace structgen {

// `C{min,max} T` as the only item of a state, if what begins C cannot begin T: then every text is inside the class, or
// has left it after a number of characters that all readings agree on.
std::optional<Engine::Counted> Engine::counted(StateId state) {
  Automaton& automaton = machine_.automaton();
  TermStore& terms = automaton.terms();
  const auto items = automaton.items(state);
  if (items.size() != 1) return std::nullopt;
  const TermId item = items[0];
  const Term whole = terms[item];
  if (whole.kind != Kind::kSequence || terms.distance(whole.b) == 0) return std::nullopt;
  const bool json = terms[whole.a].kind == Kind::kJson;
  const Term head = json ? terms[terms[whole.a].a] : terms[whole.a];
  if (head.kind != Kind::kRepeat || (head.b == 0 && head.c == kNone) || !automaton.is_char_class(head.a)) return std::nullopt;
  const auto repeated = [&](uint32_t min) {
    const TermId loop = terms.repeat(head.a, min, kNone);
    return automaton.state_of(terms.sequence(json ? automaton.json(loop) : loop, whole.b));
  };
  const ByteSet inside = automaton.expanded(repeated(1)).live;
  if (!(inside & machine_[machine_.start(whole.b)].live).empty()) return std::nullopt;
  return Counted{head.b, head.c, repeated(0)};
}

Engine::CountTable& Engine::count_table(StateId star) {
  auto& held = count_tables_[star];
  if (held) return *held;
  auto made = std::make_unique<CountTable>();
  const Trie& all = tokens_->trie();
  const NodeId start = machine_.local(star);
  const Absorption absorbed = absorption({star, kNone});
  const auto beyond = absorbed.groups ? tokens_->part(absorbed.groups, absorption_breaks(star, absorbed.groups)) : nullptr;
  const Trie& walked = beyond ? beyond->trie : all;
  if (beyond)
    tokens_->for_each_within(absorbed.groups, [&](uint32_t token, uint32_t chars) { made->put(made->inside, chars, {&token, 1}); });
  // Few nodes are met over and over: for the first of them, the node after each byte is looked up but once.
  constexpr size_t kNumbered = 64;
  constexpr uint32_t kNowhere = kNone - 1;
  std::vector<NodeId> numbered;
  std::vector<std::array<uint32_t, 256>> after;  // a number, kNowhere, or kNone: not asked for yet
  const auto number_of = [&](NodeId node) -> uint32_t {
    const auto found = std::find(numbered.begin(), numbered.end(), node);
    if (found != numbered.end()) return static_cast<uint32_t>(found - numbered.begin());
    if (numbered.size() == kNumbered) return kNone;
    numbered.push_back(node);
    after.emplace_back().fill(kNone);
    return static_cast<uint32_t>(numbered.size() - 1);
  };
  struct Place {
    NodeId node;
    uint32_t number;
    uint32_t count;  // characters that have begun
    bool closed;     // the class was left
  };
  std::vector<Place> path(size_t{walked.max_depth} + 1);  // by depth
  path[0] = {start, number_of(start), 0, false};
  const ByteSet closers = closing_bytes(star);
  constexpr uint32_t kReported = 4096;  // nodes at a time
  uint32_t looked_at = 0;
  for (uint32_t place = 1; place < walked.size();) {
    if (++looked_at % kReported == 0) look_at(kReported);
    const Place above = path[walked.depth[place] - 1u];
    const uint8_t byte = walked.byte[place];
    uint32_t number = above.number == kNone ? kNone : after[above.number][byte];
    if (number == kNone && !machine_[above.node].live.contains(byte)) {
      number = kNowhere;
      if (above.number != kNone) after[above.number][byte] = kNowhere;
    }
    if (number == kNowhere) {
      place = walked.end[place];
      continue;
    }
    const bool boundary = above.node == start && !above.closed;
    const bool closed = above.closed || (boundary && closers.contains(byte));
    const uint32_t count = above.count + (boundary && !closed);
    made->put(closed ? made->closing : made->inside, count, walked.tokens_at(place));
    if (walked.is_leaf(place)) {
      ++place;
      continue;
    }
    const NodeId here = number == kNone ? machine_.step(above.node, byte) : numbered[number];
    if (number == kNone && above.number != kNone) after[above.number][byte] = number = number_of(here);
    if (machine_[here].accepting) {
      const uint32_t origin = beyond ? beyond->origin[place] : place;
      made->put(made->exits, count, std::span(&origin, 1));
    }
    if (machine_[here].only_accepting) {
      place = walked.end[place];
      continue;
    }
    path[walked.depth[place]] = {here, number, count, closed};
    ++place;
  }
  look_at(looked_at % kReported);
  cache_bytes_ += made->bytes();
  held = std::move(made);
  return *held;
}

// The bytes by which `C* T` leaves the class.
ByteSet Engine::closing_bytes(StateId star) {
  Automaton& automaton = machine_.automaton();
  const TermId tail = automaton.terms()[automaton.items(star)[0]].b;
  return machine_[machine_.start(tail)].live;
}

std::shared_ptr<const Row> Engine::counted_row(const Counted& bounds) {
  CountTable& table = count_table(bounds.star);
  const uint32_t least = std::min(bounds.min, table.most_closing() + 1);
  const uint32_t most = std::min(bounds.max, table.most());
  auto& held = table.rows[{least, most}];
  if (held) return held;
  Row made;
  std::vector<uint32_t> exits;
  const auto append = [](std::vector<uint32_t>& to, const std::vector<uint32_t>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  for (uint32_t k = least; k < table.exits.size() && k <= most; ++k) append(exits, table.exits[k]);
  std::sort(exits.begin(), exits.end());
  set_exits(made, std::move(exits));
  if (table.size() <= CountTable::kFewTokens) {
    for (uint32_t k = 0; k < table.inside.size() && k <= most; ++k) append(made.added, table.inside[k]);
    for (uint32_t k = least; k < table.closing.size() && k <= most; ++k) append(made.added, table.closing[k]);
  } else {
    // Few tokens are long, so a high maximum is the mask without one, less those.
    const uint32_t covered = table.longer_than(most) <= CountTable::kFewTokens ? table.most() : most;
    auto& mask = table.masks[covered];
    if (!mask) {
      auto fresh = std::make_shared<Words>(words());
      for (const auto* lists : {&table.inside, &table.closing})
        for (uint32_t k = 0; k < lists->size() && k <= covered; ++k)
          for (uint32_t token : (*lists)[k]) (*fresh)[token >> 5] |= uint32_t{1} << (token & 31);
      cache_bytes_ += fresh->size() * 4;
      mask = std::move(fresh);
    }
    made.mask = mask;
    for (const auto* lists : {&table.inside, &table.closing})
      for (uint32_t k = most + 1; k < lists->size() && k <= covered; ++k) append(made.removed, (*lists)[k]);
    for (uint32_t k = 0; k < least && k < table.closing.size() && k <= most; ++k) append(made.removed, table.closing[k]);
  }
  cache_bytes_ += made.bytes();
  held = std::make_shared<const Row>(std::move(made));
  return held;
}

}  // namespace structgen

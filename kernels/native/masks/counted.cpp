#include "masks/counted.h"

#include <algorithm>

namespace structgen {

// `C{min,max} T` as the only item of a state, if what begins C cannot begin T: then every text is inside the class, or
// has left it after a number of characters that all readings agree on.  Where T begins with tokens as symbols, a row has
// more than texts.
std::optional<Engine::Counted> Engine::counted(StateId state) {
  Automaton& automaton = machine_.automaton();
  TermStore& terms = automaton.terms();
  const auto items = automaton.items(state);
  if (items.size() != 1 || !automaton.expanded(state).specials.empty()) return std::nullopt;
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
  if (absorbed.groups != 0) {
    made->groups = absorbed.groups;
    made->within = tokens_->within(absorbed.groups);
  }
  // Few nodes are met over and over.  The first of them are numbered, those after the class apart, and an edge between
  // two is looked up but once.
  constexpr size_t kNumbered = 64;
  constexpr uint16_t kUnknown = UINT16_MAX, kNowhere = kUnknown - 1;  // of edges; kUnknown: of nodes without a number
  constexpr uint16_t kBegins = 0x100;                                 // with an edge: it begins a character of the class
  struct Numbered {
    NodeId node;
    bool closed;  // the class was left
    bool accepting, only_accepting;
  };
  std::vector<Numbered> numbered;
  std::vector<uint16_t> edges;  // by number and byte
  const auto number_of = [&](NodeId node, bool closed) -> uint16_t {
    const auto is_it = [&](const Numbered& held) { return held.node == node && held.closed == closed; };
    const auto found = std::find_if(numbered.begin(), numbered.end(), is_it);
    if (found != numbered.end()) return static_cast<uint16_t>(found - numbered.begin());
    if (numbered.size() == kNumbered) return kUnknown;
    numbered.push_back({node, closed, machine_[node].accepting, machine_[node].only_accepting});
    edges.resize(numbered.size() * 256, kUnknown);
    return static_cast<uint16_t>(numbered.size() - 1);
  };
  struct Step {
    Numbered at;
    uint16_t number;
    uint32_t count;  // characters that have begun
  };
  std::vector<Step> path(size_t{walked.max_depth} + 1);  // by depth
  path[0] = {{start, false, false, false}, number_of(start, false), 0};
  const ByteSet closers = closing_bytes(star);
  constexpr uint32_t kReported = 4096;  // nodes at a time
  uint32_t looked_at = 0;
  const bool skips = made->groups != 0 && !beyond;
  for (uint32_t position = 1; position < walked.size();) {
    if (++looked_at % kReported == 0) look_at(kReported);
    const bool is_within = skips && (all.prefix[position] & ~made->groups) == 0;  // so are its tokens
    if (is_within && (walked.groups[position] & ~made->groups) == 0) {
      position = walked.end[position];
      continue;
    }
    const Step& above = path[walked.depth[position] - 1u];
    const uint8_t byte = walked.byte[position];
    uint16_t edge = above.number == kUnknown ? kUnknown : edges[size_t{above.number} * 256 + byte];
    if (edge == kUnknown && !machine_[above.at.node].live.contains(byte)) {
      edge = kNowhere;
      if (above.number != kUnknown) edges[size_t{above.number} * 256 + byte] = kNowhere;
    }
    if (edge == kNowhere) {
      position = walked.end[position];
      continue;
    }
    const bool is_leaf = walked.is_leaf(position);
    Step here{{kDeadNode, above.at.closed, false, false}, kUnknown, above.count};
    if (edge != kUnknown) {
      here.number = edge & ~kBegins;
      here.at = numbered[here.number];
      here.count += edge >= kBegins;
    } else {
      const bool boundary = above.at.node == start && !above.at.closed;
      here.at.closed |= boundary && closers.contains(byte);
      const bool begins = boundary && !here.at.closed;
      here.count += begins;
      if (!is_leaf) {
        const NodeId node = machine_.step(above.at.node, byte);
        made->missing = std::max(made->missing, machine_[node].distance);
        here.at = {node, here.at.closed, machine_[node].accepting, machine_[node].only_accepting};
        here.number = number_of(node, here.at.closed);
        if (above.number != kUnknown && here.number != kUnknown)
          edges[size_t{above.number} * 256 + byte] = static_cast<uint16_t>(here.number | (begins ? kBegins : 0));
      } else {
        made->missing = std::max(made->missing, distance_after({kNone, above.at.node}, byte));
      }
    }
    if (!is_within) made->put(here.at.closed ? made->closing : made->inside, here.count, walked.tokens_at(position));
    if (is_leaf) {
      ++position;
      continue;
    }
    if (here.at.accepting) {
      const uint32_t origin = beyond ? beyond->origin[position] : position;
      made->put(made->exits, here.count, std::span(&origin, 1));
    }
    if (here.at.only_accepting) {
      position = walked.end[position];
      continue;
    }
    path[walked.depth[position]] = here;
    ++position;
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

const Row& Engine::counted_row(StateId state, const Counted& bounds) {
  constexpr Distance kLongest = 12;  // bytes of a character, as two escapes in JSON
  CountTable& table = count_table(bounds.star);
  // Within the class at most so much is missing as before the token, and the rest of a character.
  const Distance missing = std::max(table.missing, add(machine_.automaton()[state].distance, kLongest));
  const Row& shared = counted_row(table, bounds, missing);
  if (shared.missing == missing) return shared;
  Row made = shared;
  made.missing = missing;
  return own(std::move(made));
}

const Row& Engine::counted_row(CountTable& table, const Counted& bounds, Distance missing) {
  const uint32_t min = std::min(bounds.min, table.max_closing() + 1);
  const uint32_t max = std::min(bounds.max, table.max());
  auto& held = table.rows[{min, max}];
  if (held) return *held;
  Row made;
  made.missing = missing;
  std::vector<uint32_t> exits, added, removed;
  const auto append = [](std::vector<uint32_t>& to, const std::vector<uint32_t>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  for (uint32_t k = min; k < table.exits.size() && k <= max; ++k) append(exits, table.exits[k]);
  std::sort(exits.begin(), exits.end());
  made.exits = exit_list(std::move(exits));
  if (table.size() <= CountTable::kFewTokens) {
    for (const auto* lists : table.token_lists())
      for (uint32_t k = lists == &table.closing ? min : 0; k < lists->size() && k <= max; ++k) append(added, (*lists)[k]);
  } else {
    // Few tokens are long, so a high maximum is the mask without one, less those.
    const uint32_t covered = table.longer_than(max) <= CountTable::kFewTokens ? table.max() : max;
    auto& mask = table.masks[covered];
    if (!mask) {
      auto fresh = std::make_shared<Words>(words());
      if (table.groups != 0) tokens_->mark_within(table.groups, covered, fresh->data());
      for (const auto* lists : {&table.inside, &table.closing})
        for (uint32_t k = 0; k < lists->size() && k <= covered; ++k)
          for (uint32_t token : (*lists)[k]) (*fresh)[token >> 5] |= uint32_t{1} << (token & 31);
      cache_bytes_ += fresh->size() * 4;
      mask = std::move(fresh);
    }
    made.mask = mask;
    for (const auto* lists : table.token_lists())
      for (uint32_t k = max + 1; k < lists->size() && k <= covered; ++k) append(removed, (*lists)[k]);
    for (uint32_t k = 0; k < min && k < table.closing.size() && k <= max; ++k) append(removed, table.closing[k]);
  }
  made.added = row_lists_.keep(added);
  made.removed = row_lists_.keep(removed);
  held = &own(std::move(made));
  return *held;
}

}  // namespace structgen

// States without their large bounds.
//
// A text of at most n bytes meets no bound on a repetition of more than n items, unless the items may be empty.  So a
// state and the same without such bounds allow the same tokens, as long as a token and what completes it are that
// short; and the one without bounds is the same after any number of items.
#include <algorithm>

#include "masks/engine.h"

namespace structgen {

namespace {

constexpr size_t kMaxTerms = 512;  // that are looked at for one state

}  // namespace

Engine::Near Engine::unbounded(StateId state, uint32_t least) {
  Automaton& automaton = machine_.automaton();
  const auto held = automaton.items(state);
  std::vector<TermId> items(held.begin(), held.end());
  Near near;
  near.same = kNone;
  size_t fuel = kMaxTerms;
  for (TermId& item : items) {
    const auto [free, bound] = automaton.unbounded_term(item, least, fuel);
    if (fuel == 0) return {};
    item = free;
    near.same = std::min(near.same, bound);
  }
  if (near.same == kNone) return {};
  near.state = automaton.state_of(automaton.terms().choice(std::move(items)));
  return near.state == state ? Near{} : near;
}

// Of `json(C{min,max} & L) '"'` the same without the maximum, which bounds the characters of the whole string.
Engine::Near Engine::without_length(StateId state) {
  Automaton& automaton = machine_.automaton();
  TermStore& terms = automaton.terms();
  const auto items = automaton.items(state);
  if (items.size() != 1) return {};
  const Term whole = terms[items[0]];
  if (whole.kind != Kind::kSequence || whole.b != terms.literal("\"") || terms[whole.a].kind != Kind::kJson) return {};
  const Term value = terms[terms[whole.a].a];
  if (value.kind != Kind::kAnd) return {};
  const auto list = terms.list(value.a);
  std::vector<TermId> parts(list.begin(), list.end());
  uint32_t max = kNone;
  for (TermId& part : parts) {
    const Term term = terms[part];
    if (term.kind != Kind::kRepeat || term.c == kNone || !automaton.is_char_class(term.a)) continue;
    max = std::min(max, term.c);
    part = terms.repeat(term.a, term.b, kNone);
  }
  if (max == kNone || max == 0) return {};
  return {automaton.state_of(terms.sequence(automaton.json(automaton.conjunction(std::move(parts))), whole.b)), max, Near::Way::kLength, {}};
}

namespace {

// How far a text that begins inside a JSON string has come, in characters.
struct Written {
  uint32_t begun = 0;    // characters, or more where they are not counted
  uint8_t lacking = 0;   // bytes of the last one; after a backslash, one
  bool escapes = false;  // the last byte is a backslash
  bool counted = true;   // no escape by a number is read, which may be half of a character

  Written after(uint8_t byte) const {
    Written next = *this;
    next.escapes = false;
    if (!counted) {
      ++next.begun;
    } else if (escapes) {
      next.counted = byte != 'u';
      next.lacking = 0;
    } else if ((byte & 0xC0) == 0x80) {
      --next.lacking;
    } else {
      ++next.begun;
      next.escapes = byte == '\\';
      next.lacking = byte >= 0xF0 ? 3 : byte >= 0xE0 ? 2 : byte >= 0xC0 || next.escapes ? 1 : 0;
    }
    return next;
  }
  // Whether a text of at most `max` characters may begin so, where `missing` bytes complete the shortest and the quote
  // that ends it is one of them; nothing where bytes do not decide.
  std::optional<bool> fits(uint32_t max, Distance missing) const {
    if (counted && begun > max) return false;
    if (uint64_t{begun} + missing <= uint64_t{max} + 1 + lacking) return true;
    // More bytes than the last character lacks are one character at least, but for those of an escape.
    return counted && !escapes && begun == max ? std::optional(false) : std::nullopt;
  }
};

}  // namespace

// The tokens and exits of the row of `near` that are too long for `state`.  Nearly all are settled by counting; `state`
// itself is queried only where it is close.  False where so many are in question that a walk is quicker.
bool Engine::cut(StateId state, const Near& near, const Row& base, Found& fewer) {
  constexpr uint32_t kDearness = 16;  // of a node of the trie here, where a walk has one
  const Trie& all = tokens_->trie();
  uint32_t left = all.size() / kDearness;
  const auto exits = exit_lists_[base.exits];
  struct Level {
    uint32_t next, stop;
    Spot free;
    NodeId bound;  // kNone until it is needed
    uint8_t byte;
    Written written;
  };
  std::vector<Level> path{{all.child_begin[0], all.child_begin[1], spot(near.state), machine_.local(state), 0, {}}};
  const auto bound_node = [&] {  // of the last level
    size_t known = path.size() - 1;
    while (path[known].bound == kNone) --known;
    for (; known + 1 < path.size(); ++known) path[known + 1].bound = machine_.step(path[known].bound, path[known + 1].byte);
    return path.back().bound;
  };
  while (!path.empty()) {
    Level& level = path.back();
    const uint32_t at = all.next_child(level.next, level.stop, live(level.free));
    if (at == level.stop) {
      path.pop_back();
      continue;
    }
    level.next = at + 1;
    const uint32_t position = all.child_node[at];
    // All tokens below may be completed so that they fit, the last byte being the quote.
    if (uint64_t{tokens_->max_chars(position)} + base.reach <= uint64_t{near.same} + 1) continue;
    if (left-- == 0) return false;
    const uint8_t byte = all.child_byte[at];
    const bool is_leaf = all.is_leaf(position);
    const Spot here = is_leaf ? Spot{} : step(level.free, byte);
    const Distance missing = is_leaf ? distance_after(level.free, byte) : distance(here);
    const bool closes = missing == 0;  // by the quote, which is no character of the string
    const Written written = closes ? level.written : level.written.after(byte);
    std::optional<bool> fits = written.fits(near.same, closes ? 1 : missing);
    if (!fits) {
      fits = machine_[bound_node()].live.contains(byte);
      if (*fits) fewer.reach = kNone;
    }
    if (!*fits) {
      const uint32_t end = all.end[position];
      fewer.tokens.insert(fewer.tokens.end(), all.tokens.begin() + all.token_begin[position], all.tokens.begin() + all.token_begin[end]);
      fewer.exits.insert(fewer.exits.end(), std::lower_bound(exits.begin(), exits.end(), position),
                         std::lower_bound(exits.begin(), exits.end(), end));
      continue;
    }
    if (is_leaf || only_accepting(here)) continue;
    path.push_back({all.child_begin[position], all.child_begin[position + 1], here, kNone, byte, written});
    look_at(path.back().stop - path.back().next);
  }
  return true;
}

}  // namespace structgen

// Rows of strings that must differ from some texts, such as the keys of an object that are none of its declared names.
//
// A text that is not closed yet can go on to infinitely many strings, so finitely many that are excluded keep no token
// out but those that close an excluded string.  These are looked up in the trie by their spellings; neither the
// prefixes of the texts nor their escapes become states.
#include <algorithm>

#include "masks/engine.h"

namespace structgen {

namespace {

struct Character {
  uint32_t code;
  size_t length;  // in bytes; 0: no well-formed character stands there
};

Character character_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  const uint8_t lead = byte(at);
  if (lead < 0x80) return {lead, 1};
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  uint32_t code = lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return {0, 0};
    code = code << 6 | (byte(at + i) & 0x3Fu);
  }
  constexpr uint32_t kMinCode[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_well_formed = lead >= 0xC2 && code >= kMinCode[length] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
  return is_well_formed ? Character{code, length} : Character{0, 0};
}

// The positions after a code point in hex digits, `position` being that after the backslash.
std::vector<uint32_t> after_unicode_escape(const Trie& trie, uint32_t position, uint32_t code) {
  std::vector<uint32_t> positions{position};
  const auto advance = [&](std::initializer_list<uint8_t> bytes) {
    std::vector<uint32_t> next;
    for (uint32_t from : positions)
      for (uint8_t byte : bytes)
        if (const uint32_t to = trie.child(from, byte)) next.push_back(to);
    positions = std::move(next);
  };
  const auto unit = [&](uint32_t value) {
    advance({'u'});
    for (int shift = 12; shift >= 0 && !positions.empty(); shift -= 4) {
      const auto digit = static_cast<uint8_t>(value >> shift & 15);
      if (digit < 10) advance({static_cast<uint8_t>('0' + digit)});
      else advance({static_cast<uint8_t>('a' + digit - 10), static_cast<uint8_t>('A' + digit - 10)});
    }
  };
  if (code < 0x10000) {
    unit(code);
  } else {
    unit(0xD800 + ((code - 0x10000) >> 10));
    advance({'\\'});
    unit(0xDC00 + ((code - 0x10000) & 0x3FF));
  }
  return positions;
}

// Calls visit(position) for the nodes of the trie after every spelling of `text` in JSON and a closing quote.
template <class Visit>
void for_each_closing(const Trie& trie, std::string_view text, Visit&& visit) {
  std::vector<std::pair<uint32_t, size_t>> stack{{0, 0}};  // node, offset into the text
  while (!stack.empty()) {
    const auto [position, at] = stack.back();
    stack.pop_back();
    if (at == text.size()) {
      if (const uint32_t closed = trie.child(position, '"')) visit(closed);
      continue;
    }
    const auto byte = static_cast<uint8_t>(text[at]);
    if (byte >= 0x20 && byte != '"' && byte != '\\')
      if (const uint32_t next = trie.child(position, byte)) stack.emplace_back(next, at + 1);
    const uint32_t escape = trie.child(position, '\\');
    const Character character = character_at(text, at);
    if (escape == 0 || character.length == 0) continue;
    for (const SimpleEscape& simple : kSimpleEscapes)
      if (simple.value == character.code)
        if (const uint32_t next = trie.child(escape, simple.letter)) stack.emplace_back(next, at + 1);
    for (uint32_t next : after_unicode_escape(trie, escape, character.code)) stack.emplace_back(next, at + character.length);
  }
}

}  // namespace

// Of `json(C{n,} & !texts) '"'` the same with nothing excluded.
Engine::Near Engine::without_excluded(StateId state) {
  Automaton& automaton = machine_.automaton();
  TermStore& terms = automaton.terms();
  const auto items = automaton.items(state);
  if (items.size() != 1) return {};
  const Term whole = terms[items[0]];
  if (whole.kind != Kind::kSequence || terms[whole.a].kind != Kind::kJson || whole.b != terms.literal("\"")) return {};
  const auto found = automaton.excluding(terms[whole.a].a);
  if (!found) return {};
  const Term loop = terms[found->language];
  if (loop.kind != Kind::kRepeat || loop.c != kNone || char_groups(loop.a) == 0) return {};  // some character can be added for ever
  Near near;
  near.way = Near::Way::kExcluded;
  near.texts = automaton.alternatives(found->texts);
  near.state = automaton.state_of(terms.sequence(automaton.json(found->language), whole.b));
  return near;
}

// The tokens and exits of the row of `near` that close an excluded string.
void Engine::exclude(const Near& near, Found& fewer) {
  const Trie& all = tokens_->trie();
  const TermStore& terms = machine_.automaton().terms();
  for (TermId text : near.texts) {
    const Term held = terms[text];
    const std::string_view bytes = text == kEpsilonTerm ? std::string_view{} : terms.blob(held.a).substr(held.b);
    for_each_closing(all, bytes, [&](uint32_t position) {
      add_tokens(all, position, fewer);
      fewer.exits.push_back(position);
    });
  }
}

// The reach of a row without these texts, of one that has them: so many more characters make more texts than these.
uint32_t Engine::reach_without(const Near& near, uint32_t reach) {
  const State& loop = machine_.automaton().expanded(near.state);
  unsigned choices = 0;  // characters of one byte each that lead back
  for (unsigned byte = loop.live.next(0); byte < 0x80; byte = loop.live.next(byte + 1))
    choices += loop.next[static_cast<uint8_t>(byte)] == near.state;
  if (choices < 2 || reach == kNone) return kNone;
  for (uint64_t texts = 1; texts <= near.texts.size(); texts *= choices) ++reach;
  return reach;
}

}  // namespace structgen

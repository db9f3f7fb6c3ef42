// Texts as the values of JSON strings: their characters, and the escapes that spell these.
#include <algorithm>
#include <map>

#include "automaton/automaton.h"
#include "automaton/expansion.h"

namespace structgen {

namespace {

constexpr uint32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF, kFirstAstral = 0x10000;

}  // namespace

TermId Automaton::json(TermId value) {
  const TermId term = terms_.json(value);
  if (terms_.distance(term) == kUnsolved) terms_.set_distance(term, settled_json_distance(value));
  return terms_.distance(term) == kInfinite ? kEmptyTerm : term;
}

TermId Automaton::json_escape(TermId value) {
  const TermId term = terms_.json_escape(value);
  if (terms_.distance(term) == kUnsolved) terms_.set_distance(term, escape_distance(value));
  return term;
}

Distance Automaton::escape_distance(TermId value) {
  constexpr Distance kSimple = 1, kUnicode = 5, kPair = 11;
  if (const auto found = excluding(value)) {  // hardly ever farther than without the texts
    const Distance least = terms_.distance(json_escape(found->language));
    const State& free = expanded(state_of(found->language));
    ByteSet firsts;
    for (TermId text : alternatives(found->texts))
      if (text != kEpsilonTerm) firsts.insert(static_cast<uint8_t>(terms_.blob(terms_[text].a)[terms_[text].b]));
    for (const SimpleEscape& escape : kSimpleEscapes) {
      const StateId target = free.next[escape.value];
      if (target == kDead || firsts.contains(escape.value)) continue;
      if (add(terms_.distance(json(as_term(target))), kSimple) == least) return least;
    }
  }
  Distance best = kInfinite;
  const StateId start = state_of(value);
  const auto is_simple = [](const ByteSet& set) {
    return std::any_of(std::begin(kSimpleEscapes), std::end(kSimpleEscapes), [&](const SimpleEscape& one) { return set.contains(one.value); });
  };
  expanded(start).next.for_each([&](const ByteSet& set, StateId target) {
    if (set.next(0) < 0x80) best = std::min(best, add(terms_.distance(json(as_term(target))), is_simple(set) ? kSimple : kUnicode));
  });
  // A longer way costs at least as much as an escape by hex digits, and no less than the shortest spelling without the
  // character's own, which takes at most four bytes where they can be written.
  static const ByteSet foreign = ByteSet::range(0x80, 0xBF) | ByteSet::range(0xC2, 0xF4);
  if (best <= kUnicode) return best;
  if ((foreign & ~terms_.spellable()).empty() && best <= add(settled_json_distance(value), kUnicode - 4)) return best;
  for (const Code& code : foreign_codes(start)) {
    if (code.low >= kFirstSurrogate && code.high <= kLastSurrogate) continue;
    best = std::min(best, add(terms_.distance(json(code.rest)), code.low < kFirstAstral ? kUnicode : kPair));
  }
  return best;
}

// The first characters of a term, as ranges of code points in increasing order, with what remains after each.
const std::vector<Automaton::Code>& Automaton::first_codes(TermId term) {
  if (const auto found = first_codes_.find(term); found != first_codes_.end()) return found->second;
  std::vector<Code> codes;
  const StateId start = state_of(term);
  expanded(start);
  for (uint32_t byte = 0; byte < 0x80; ++byte)
    if (const StateId target = states_[start].next[static_cast<uint8_t>(byte)]; target != kDead)
      append(codes, {byte, byte, as_term(target)});
  for (const Code& code : foreign_codes(start)) append(codes, code);
  return first_codes_.emplace(term, std::move(codes)).first->second;
}

void Automaton::append(std::vector<Code>& codes, const Code& next) {
  if (!codes.empty() && codes.back().rest == next.rest && codes.back().high + 1 == next.low) codes.back().high = next.high;
  else codes.push_back(next);
}

// Those beyond ASCII.  In them few states differ, so they are kept by where the lead bytes go.
const std::vector<Automaton::Code>& Automaton::foreign_codes(StateId start) {
  const auto tail = [&](auto&& self, StateId state, unsigned count) -> const std::vector<Code>& {
    // Codes spelled by `count` continuation bytes from `state`; count is at most 3.
    const uint64_t key = uint64_t{state} << 2 | count;
    if (const auto found = code_tails_.find(key); found != code_tails_.end()) return found->second;
    meter_.work(kClassSteps, kDeriving);
    std::vector<Code> result;
    const uint32_t width = uint32_t{1} << (6 * (count - 1));
    for (uint32_t digit = 0; digit < 64; ++digit) {
      const StateId target = expanded(state).next[static_cast<uint8_t>(0x80 | digit)];
      if (target == kDead) continue;
      if (count == 1) {
        append(result, {digit, digit, as_term(target)});
      } else {
        for (const Code& code : self(self, target, count - 1))
          append(result, {digit * width + code.low, digit * width + code.high, code.rest});
      }
    }
    return code_tails_.emplace(key, std::move(result)).first->second;
  };
  meter_.work(kClassSteps, kDeriving);
  constexpr uint32_t kFirstLead = 0xC2, kLastLead = 0xF4;
  std::vector<uint32_t> leads;
  leads.reserve(kLastLead - kFirstLead + 1);
  for (uint32_t byte = kFirstLead; byte <= kLastLead; ++byte) leads.push_back(states_[start].next[static_cast<uint8_t>(byte)]);
  if (const auto found = foreign_codes_.find(leads); found != foreign_codes_.end()) return found->second;
  std::vector<Code> codes;
  for (uint32_t byte = kFirstLead; byte <= kLastLead; ++byte) {
    const StateId target = leads[byte - kFirstLead];
    if (target == kDead) continue;
    const unsigned count = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
    const uint32_t base = (byte & (0x3Fu >> count)) << (6 * count);
    for (const Code& code : tail(tail, target, count)) {
      if (base + code.low < (count == 1 ? 0x80u : count == 2 ? 0x800u : kFirstAstral)) continue;  // overlong
      append(codes, {base + code.low, base + code.high, code.rest});
    }
  }
  return foreign_codes_.emplace(std::move(leads), std::move(codes)).first->second;
}

std::optional<std::vector<CodePoints>> Automaton::as_char_class(TermId term) {
  if (terms_.distance(term) == 0 || !expanded(state_of(term)).calls.empty() || !expanded(state_of(term)).specials.empty())
    return std::nullopt;
  std::vector<CodePoints> ranges;
  for (const Code& code : first_codes(term)) {
    if (code.rest != kEpsilonTerm) return std::nullopt;
    ranges.emplace_back(code.low, code.high);
  }
  return ranges;
}

bool Automaton::is_char_class(TermId term) {
  const auto ranges = as_char_class(term);
  return ranges && terms_.chars(*ranges) == term;
}

// What may follow the `\u` of an escape: four hex digits of a character, or a surrogate pair.
TermId Automaton::unicode_escape(TermId value) {
  std::vector<TermStore::Target> targets;
  std::map<uint32_t, std::vector<TermStore::Target>> partial;  // high surrogate -> low surrogates
  const std::vector<Code> codes = first_codes(value);
  meter_.work(kTermSteps * codes.size(), kDeriving);
  const TermId prefix = terms_.literal("\\u");
  const auto pair_of = [&](std::span<const TermStore::Target> low) {
    return terms_.sequence(prefix, terms_.hex(4, low));
  };
  const auto add_range = [&](uint32_t low, uint32_t high, TermId rest) {
    if (low > high) return;
    if (high < kFirstAstral) {
      targets.push_back({low, high, rest});
      return;
    }
    for (uint32_t code = low; code <= high;) {
      const uint32_t offset = code - kFirstAstral, lead = kFirstSurrogate + (offset >> 10);
      const uint32_t block_end = std::min(high, code | 0x3FF);
      if ((offset & 0x3FF) == 0 && block_end == (code | 0x3FF)) {  // a run of full blocks
        const uint32_t blocks = (high + 1 - code) >> 10;
        const TermStore::Target all[] = {{0xDC00, 0xDFFF, rest}};
        targets.push_back({lead, lead + blocks - 1, pair_of(all)});
        code += blocks << 10;
      } else {
        partial[lead].push_back({0xDC00 + (offset & 0x3FF), 0xDC00 + ((block_end - kFirstAstral) & 0x3FF), rest});
        code = block_end + 1;
      }
    }
  };
  for (const Code& code : codes) {
    const TermId rest = json(code.rest);
    if (rest == kEmptyTerm) continue;
    // Raw byte classes may spell surrogates, which are no characters.
    if (code.low < kFirstSurrogate) add_range(code.low, std::min(code.high, kFirstSurrogate - 1), rest);
    if (code.high > kLastSurrogate) {
      const uint32_t low = std::max(code.low, kLastSurrogate + 1);
      if (low < kFirstAstral) add_range(low, std::min(code.high, kFirstAstral - 1), rest);
      if (code.high >= kFirstAstral) add_range(std::max(low, kFirstAstral), code.high, rest);
    }
  }
  for (const auto& [lead, low] : partial) targets.push_back({lead, lead, pair_of(low)});
  std::sort(targets.begin(), targets.end(), [](const auto& a, const auto& b) { return a.low < b.low; });
  return terms_.hex(4, targets);
}

}  // namespace structgen

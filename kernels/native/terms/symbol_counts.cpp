#include "terms/symbol_counts.h"

#include <algorithm>

namespace structgen {

namespace {

// Beyond this many bytes a literal is not counted anew for each of its ends.
constexpr size_t kLongLiteral = 64;

// Every byte but those within a character is counted as a character, and once more in a group of its own kind.
constexpr std::array<uint8_t, 256> kGroupOf = [] {
  std::array<uint8_t, 256> group{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (byte >= '0' && byte <= '9') group[byte] = 1;
    else if ((byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z')) group[byte] = 2;
    else if (byte == '-') group[byte] = 3;
    else if (byte == '.') group[byte] = 4;
    else if (byte == ':') group[byte] = 5;
    else if (byte == '/') group[byte] = 6;
    else group[byte] = 7;
  }
  return group;
}();
constexpr bool begins_character(uint8_t byte) { return (byte & 0xC0) != 0x80; }

uint32_t sum(uint32_t a, uint32_t b) { return a == kNone || b == kNone ? kNone : static_cast<uint32_t>(std::min<uint64_t>(uint64_t{a} + b, kNone - 1)); }
uint32_t product(uint32_t a, uint32_t b) {
  if (a == 0 || b == 0) return 0;
  return a == kNone || b == kNone ? kNone : static_cast<uint32_t>(std::min<uint64_t>(uint64_t{a} * b, kNone - 1));
}

SymbolCounts unbounded() {
  SymbolCounts counts;
  counts.max.fill(kNone);
  return counts;
}

SymbolCounts of_literal(std::string_view text) {
  SymbolCounts counts;
  if (text.size() > kLongLiteral) {
    counts.max.fill(static_cast<uint32_t>(text.size()));
    return counts;
  }
  for (char character : text) {
    const auto byte = static_cast<uint8_t>(character);
    counts.min[kCharacters] += begins_character(byte);
    ++counts.min[kGroupOf[byte]];
  }
  counts.max = counts.min;
  return counts;
}

SymbolCounts of_bytes(const ByteSet& set) {
  SymbolCounts counts;
  counts.min.fill(1);
  set.for_each([&](uint8_t byte) {
    for (size_t group = 0; group < kSymbolGroups; ++group) {
      const uint32_t count = group == kCharacters ? begins_character(byte) : kGroupOf[byte] == group;
      counts.min[group] = std::min(counts.min[group], count);
      counts.max[group] = std::max(counts.max[group], count);
    }
  });
  return counts;
}

}  // namespace

const SymbolCounts& SymbolCounter::of(TermId root) {
  std::vector<TermId> stack{root};
  while (!stack.empty()) {
    const TermId id = stack.back();
    if (known_.contains(id)) {
      stack.pop_back();
      continue;
    }
    const Term& term = terms_[id];
    const size_t before = stack.size();
    const auto need = [&](TermId part) {
      if (!known_.contains(part)) stack.push_back(part);
    };
    SymbolCounts made = unbounded();
    switch (term.kind) {
      case Kind::kEpsilon: made = {}; break;
      case Kind::kLiteral: made = of_literal(terms_.blob(term.a).substr(term.b)); break;
      case Kind::kBytes: made = of_bytes(terms_.byte_set(term.a)); break;
      case Kind::kSequence: {
        need(term.a);
        need(term.b);
        if (stack.size() != before) continue;
        const SymbolCounts &head = *known_.find(term.a), &tail = *known_.find(term.b);
        for (size_t group = 0; group < kSymbolGroups; ++group) {
          made.min[group] = sum(head.min[group], tail.min[group]);
          made.max[group] = sum(head.max[group], tail.max[group]);
        }
        break;
      }
      case Kind::kRepeat: {
        need(term.a);
        if (stack.size() != before) continue;
        const SymbolCounts& item = *known_.find(term.a);
        for (size_t group = 0; group < kSymbolGroups; ++group) {
          made.min[group] = product(item.min[group], term.b);
          made.max[group] = product(item.max[group], term.c);
        }
        break;
      }
      case Kind::kChoice:
      case Kind::kAnd: {
        const auto list = terms_.list(term.a);
        for (TermId item : list) need(item);
        if (stack.size() != before) continue;
        made = *known_.find(list[0]);
        for (TermId item : list.subspan(1)) {
          const SymbolCounts& other = *known_.find(item);
          const bool either = term.kind == Kind::kChoice;
          for (size_t group = 0; group < kSymbolGroups; ++group) {
            made.min[group] = either ? std::min(made.min[group], other.min[group]) : std::max(made.min[group], other.min[group]);
            made.max[group] = either ? std::max(made.max[group], other.max[group]) : std::min(made.max[group], other.max[group]);
          }
        }
        break;
      }
      default: break;  // nothing is known
    }
    known_.insert(id, made);
    stack.pop_back();
  }
  return *known_.find(root);
}

}  // namespace structgen

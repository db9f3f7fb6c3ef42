// Distances of terms as the values of JSON strings: how many bytes spell the shortest one.
#include <algorithm>

#include "terms/permutation.h"
#include "terms/term.h"

namespace structgen {

Distance TermStore::json_weight(uint8_t byte) const {
  switch (byte) {
    case '"': case '\\': case '\b': case '\t': case '\n': case '\f': case '\r': return 2;
    default: break;
  }
  if (byte < 0x20) return 6;
  if (spellable_.contains(byte)) return 1;
  // The character must be escaped: \uXXXX, or a pair of them.  The lead byte bears what its tail does not.
  if (byte < 0x80) return 6;
  return byte < 0xE0 ? 5 : byte < 0xF0 ? 4 : 9;
}

void TermStore::set_json_distance(TermId id, Distance distance) {
  json_distances_.at(id) = distance;
}

std::optional<Distance> TermStore::json_distance(TermId root, TermId& missing) {
  std::vector<TermId> stack{root};
  while (!stack.empty()) {
    const TermId id = stack.back();
    if (json_known(id)) {
      stack.pop_back();
      continue;
    }
    const Term term = terms_[id];
    const size_t before = stack.size();
    const auto need = [&](TermId part) {
      if (!json_known(part)) stack.push_back(part);
    };
    const auto of = [&](TermId part) { return json_distances_[part]; };
    switch (term.kind) {
      case Kind::kEmpty: set_json_distance(id, kInfinite); break;
      case Kind::kEpsilon: set_json_distance(id, 0); break;
      case Kind::kLiteral: {
        Distance total = 0;
        for (char character : blob(term.a).substr(term.b)) total = add(total, json_weight(static_cast<uint8_t>(character)));
        set_json_distance(id, total);
        break;
      }
      case Kind::kBytes: {
        Distance best = kInfinite;
        sets_[term.a].for_each([&](uint8_t byte) { best = std::min(best, json_weight(byte)); });
        set_json_distance(id, best);
        break;
      }
      case Kind::kSequence:
        need(term.a);
        need(term.b);
        if (stack.size() == before) set_json_distance(id, add(of(term.a), of(term.b)));
        break;
      case Kind::kChoice: {
        for (TermId item : lists_[term.a]) need(item);
        if (stack.size() != before) break;
        Distance best = kInfinite;
        for (TermId item : lists_[term.a]) best = std::min(best, of(item));
        set_json_distance(id, best);
        break;
      }
      case Kind::kRepeat:
        need(term.a);
        if (stack.size() != before) break;
        set_json_distance(id, term.b == 0 ? 0
                              : of(term.a) == kInfinite
                                  ? kInfinite
                                  : static_cast<Distance>(std::min<uint64_t>(uint64_t{of(term.a)} * term.b, kFar)));
        break;
      case Kind::kPermutation: {
        const Permutation parts(*this, term);
        need(parts.separator);
        need(parts.rest);
        for (uint32_t item : parts.items) need(Permutation::term_of(item));
        if (stack.size() == before) set_json_distance(id, PermutationDistances(parts, of).members());
        break;
      }
      case Kind::kPermutationPrefix: case Kind::kPermutationTail: {
        const TermId same = spelled_out(id);
        need(same);
        if (stack.size() == before) set_json_distance(id, of(same));
        break;
      }
      default:
        missing = id;
        return std::nullopt;
    }
  }
  return json_distances_[root];
}

}  // namespace structgen

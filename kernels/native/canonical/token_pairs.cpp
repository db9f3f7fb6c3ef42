#include "canonical/token_pairs.h"

#include <bit>

namespace structgen {

TokenPairs::TokenPairs(size_t tokens, std::span<const Merge> merges, std::span<const uint32_t> units)
    : made_(tokens), left_(tokens), right_(tokens), taken_(tokens, kNever), filter_(kFilterBits / 64), begins_(tokens) {
  const size_t slots = std::bit_ceil(2 * merges.size() + 2);
  ranks_.resize(slots);
  mask_ = slots - 1;
  for (uint32_t token : units) made_[token] = 1;
  for (const auto& [left, right, whole, rank] : merges) {
    // A token is always made by the pair that makes it when its bytes alone are encoded: by no other.
    if (made_[whole] || !made_[left] || !made_[right] || conflict(left, right, rank)) continue;
    made_[whole] = 2;
    left_[whole] = left;
    right_[whole] = right;
    taken_[whole] = rank;
    begins_[left] = 1;
    size_t at = mix(key(left, right)) & mask_;
    while (ranks_[at].pair != UINT64_MAX && ranks_[at].pair != key(left, right)) at = (at + 1) & mask_;
    ranks_[at] = {key(left, right), rank};
    const size_t bit = mix(key(left, right)) >> 40 & (kFilterBits - 1);
    filter_[bit / 64] |= uint64_t{1} << bit % 64;
  }
  index();
}

bool TokenPairs::conflict(uint32_t left, uint32_t right, uint32_t before) const {
  uint32_t one = left, one_taken = kNever;
  while (true) {
    if (begins_[one]) {
      uint32_t other = right, other_taken = kNever;
      while (true) {
        const uint32_t crossing = rank_of(one, other);
        // Of equal ranks the leftmost is merged first: that within the left token, that across before the right.  With the
        // rank of the merge of both tokens, that across is possible before the right token is made.
        const bool is_before = crossing < before || (crossing == before && one == left && other != right);
        if (is_before && crossing < one_taken && crossing <= other_taken) return true;
        if (made_[other] != 2) break;
        other_taken = taken_[other];
        other = left_[other];
      }
    }
    if (made_[one] != 2) return false;
    one_taken = taken_[one];
    one = right_[one];
  }
}

// Sorts the parts at left edges by the part, and the merges by their left part.
void TokenPairs::index() {
  const size_t count = tokens();
  partners_begin_.assign(count + 1, 0);
  edges_begin_.assign(count + 1, 0);
  const auto for_each_edge = [&](auto&& visit) {
    for (uint32_t token = 0; token < count; ++token) {
      if (!made_[token]) continue;
      uint32_t part = token;
      visit(part, Edge{kNever, token});
      for (; made_[part] == 2; part = left_[part]) visit(left_[part], Edge{taken_[part], token});
    }
  };
  for_each_edge([&](uint32_t part, Edge) { ++edges_begin_[part + 1]; });
  for (uint32_t token = 0; token < count; ++token)
    if (made_[token] == 2) ++partners_begin_[left_[token] + 1];
  for (size_t token = 0; token < count; ++token) {
    edges_begin_[token + 1] += edges_begin_[token];
    partners_begin_[token + 1] += partners_begin_[token];
  }
  edges_.resize(edges_begin_[count]);
  partners_.resize(partners_begin_[count]);
  std::vector<uint32_t> next(edges_begin_.begin(), edges_begin_.end() - 1);
  for_each_edge([&](uint32_t part, Edge edge) { edges_[next[part]++] = edge; });
  next.assign(partners_begin_.begin(), partners_begin_.end() - 1);
  for (uint32_t token = 0; token < count; ++token)
    if (made_[token] == 2) partners_[next[left_[token]]++] = {right_[token], taken_[token]};
}

void TokenPairs::clear_conflicts(uint32_t token, uint32_t* words) const {
  uint32_t part = token, taken = kNever;
  while (true) {
    for (uint32_t i = partners_begin_[part]; i < partners_begin_[part + 1]; ++i) {
      const auto [right, rank] = partners_[i];
      if (rank >= taken) continue;
      for (uint32_t at = edges_begin_[right]; at < edges_begin_[right + 1]; ++at) {
        const auto [other_taken, owner] = edges_[at];
        if (rank <= other_taken) words[owner >> 5] &= ~(uint32_t{1} << (owner & 31));
      }
    }
    if (made_[part] != 2) return;
    taken = taken_[part];
    part = right_[part];
  }
}

}  // namespace structgen

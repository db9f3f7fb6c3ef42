#include "canonical/token_pairs.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace structgen {

TokenPairs::TokenPairs(size_t tokens, std::span<const Merge> merges, std::span<const uint32_t> units)
    : made_(tokens), left_(tokens), right_(tokens), taken_(tokens, kNever), filter_(kFilterBits / 64), begins_(tokens) {
  const size_t slots = std::bit_ceil(2 * merges.size() + 2);
  ranks_.resize(slots);
  mask_ = slots - 1;
  std::vector<uint32_t> made;
  for (uint32_t token : units) {
    if (made_[token] == 0) made.push_back(token);
    made_[token] = 1;
  }
  for (const auto& [left, right, whole, rank] : merges) {
    // A token is always made by the pair that makes it when its bytes alone are encoded: by no other.
    if (made_[whole] || !made_[left] || !made_[right] || conflict(left, right, rank)) continue;
    made_[whole] = 2;
    made.push_back(whole);
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
  index(made);
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

// `made`: all tokens that can be made, after their parts.
void TokenPairs::index(std::span<const uint32_t> made) {
  std::vector<uint32_t>& begin = crossings_begin_;
  begin.assign(tokens() + 1, 0);
  for (uint32_t token : made)
    if (made_[token] == 2) ++begin[left_[token] + 1];
  for (size_t token = 0; token < tokens(); ++token) begin[token + 1] += begin[token];
  std::vector<uint32_t> children(begin.back()), next(begin.begin(), begin.end() - 1), size(tokens()), place(tokens());
  for (size_t i = made.size(); i-- > 0;) {
    const uint32_t token = made[i];
    ++size[token];
    if (made_[token] != 2) continue;
    size[left_[token]] += size[token];
    children[next[left_[token]]++] = token;
  }
  order_.resize(made.size());
  uint32_t first = 0;
  for (uint32_t token : made) {
    if (made_[token] != 2) place[token] = std::exchange(first, first + size[token]);
    order_[place[token]] = token;
    uint32_t below = place[token] + 1;
    for (uint32_t i = begin[token]; i < begin[token + 1]; ++i) place[children[i]] = std::exchange(below, below + size[children[i]]);
  }
  crossings_.resize(children.size());
  for (size_t i = 0; i < children.size(); ++i) {
    const uint32_t rank = taken_[children[i]], right = right_[children[i]];
    const auto all = std::span(children).subspan(begin[right], begin[right + 1] - begin[right]);
    const auto later = std::ranges::partition_point(all, [&](uint32_t child) { return taken_[child] >= rank; });
    const uint32_t end = later == all.begin() ? place[right] + 1 : place[*(later - 1)] + size[*(later - 1)];
    crossings_[i] = {rank, place[right], end};
  }
}

void TokenPairs::add_conflicts(uint32_t token, uint32_t* words) const {
  uint32_t part = token, taken = kNever;
  while (true) {
    for (uint32_t i = crossings_begin_[part + 1]; i-- > crossings_begin_[part];) {
      const Crossing& crossing = crossings_[i];
      if (crossing.rank >= taken) break;
      for (uint32_t place = crossing.begin; place < crossing.end; ++place) {
        const uint32_t owner = order_[place];
        words[owner >> 5] |= uint32_t{1} << (owner & 31);
      }
    }
    if (made_[part] != 2) return;
    taken = taken_[part];
    part = right_[part];
  }
}

}  // namespace structgen

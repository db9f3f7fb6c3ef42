// What tokens do in the states of an automaton over bytes, and the edges that they make.
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "diffusion/byte_kinds.h"
#include "diffusion/unfolding.h"

namespace structgen {

namespace {

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0xFF51AFD7ED558CCD;
  return hash ^ hash >> 32;
}

// What strings do in all states of an automaton, each different effect once: the states in which a string is alive, and
// where it leads from each.  Most strings have the effect of another one, so few effects are computed.
class Effects {
 public:
  static constexpr uint32_t kDead = UINT32_MAX;

  explicit Effects(const ByteColumns& next) : next_(next), kinds_(next.kinds()) {
    for (size_t state = 0; state < next.states; ++state) {
      sources_.push_back(static_cast<int32_t>(state));
      targets_.push_back(static_cast<int32_t>(state));
    }
    steps_ = next.states * (kinds_ + 32) / 8;
    add();
  }

  uint32_t start() const { return 0; }
  uint32_t after(uint32_t effect, uint8_t byte) {
    const size_t kind = next_.kind_of[byte];
    const uint32_t known = after_[effect * kinds_ + kind];
    if (known != kUnknown) return known;
    const uint32_t made = step(effect, next_.column(kind));
    return after_[effect * kinds_ + kind] = made;
  }
  std::span<const int32_t> sources(uint32_t effect) const { return std::span(sources_).subspan(begin_[effect], begin_[effect + 1] - begin_[effect]); }
  std::span<const int32_t> targets(uint32_t effect) const { return std::span(targets_).subspan(begin_[effect], begin_[effect + 1] - begin_[effect]); }
  size_t size() const { return begin_.size() - 1; }
  size_t moves() const { return sources_.size(); }
  size_t steps() const { return steps_; }

 private:
  static constexpr uint32_t kUnknown = UINT32_MAX - 1;

  uint32_t step(uint32_t effect, std::span<const int32_t> column) {
    const size_t begin = begin_.back();
    uint64_t hash = 0;
    steps_ += 2 + (begin_[effect + 1] - begin_[effect]) / 3;
    for (size_t i = begin_[effect]; i < begin_[effect + 1]; ++i) {
      const int32_t target = column[static_cast<size_t>(targets_[i])];
      if (target < 0) continue;
      sources_.push_back(sources_[i]);
      targets_.push_back(target);
      hash = mixed(hash, uint64_t{static_cast<uint32_t>(sources_.back())} << 32 | static_cast<uint32_t>(target));
    }
    if (sources_.size() == begin) return kDead;
    std::vector<uint32_t>& same_hash = known_[hash];
    for (uint32_t one : same_hash)
      if (std::ranges::equal(sources(one), std::span(sources_).subspan(begin)) && std::ranges::equal(targets(one), std::span(targets_).subspan(begin))) {
        sources_.resize(begin);
        targets_.resize(begin);
        return one;
      }
    same_hash.push_back(static_cast<uint32_t>(size()));
    return add();
  }

  uint32_t add() {
    begin_.push_back(sources_.size());
    after_.insert(after_.end(), kinds_, kUnknown);
    steps_ += kinds_ / 8;
    return static_cast<uint32_t>(size() - 1);
  }

  ByteColumns next_;
  size_t kinds_;
  std::vector<size_t> begin_{0};
  std::vector<int32_t> sources_, targets_;
  std::vector<uint32_t> after_;
  std::unordered_map<uint64_t, std::vector<uint32_t>> known_;  // effects by the hash of their moves
  size_t steps_ = 0;
};

}  // namespace

TokenClasses token_classes(const TokenTrie& tokens, size_t vocabulary_size, const ByteColumns& next, size_t max_moves, size_t max_steps) {
  constexpr size_t kNodesPerStep = 4, kKept = 4;
  const Trie& trie = tokens.trie();
  TokenClasses result;
  result.of.assign(vocabulary_size, 0);
  result.begin = {0, 0};
  Effects effects(next);
  std::vector<int32_t> class_of;  // of an effect
  std::vector<uint32_t> path(size_t{trie.max_depth} + 1, effects.start());
  size_t nodes = 0;
  for (uint32_t node = 1; node < trie.size(); ++nodes) {
    const uint16_t depth = trie.depth[node];
    const uint32_t effect = effects.after(path[depth - 1u], trie.byte[node]);
    result.steps = effects.steps() + nodes / kNodesPerStep + result.sources.size() / 8;
    if (effects.moves() > kKept * max_moves + next.states || result.sources.size() > max_moves || result.steps > max_steps) {
      result.complete = false;
      return result;
    }
    path[depth] = effect;
    if (effect == Effects::kDead) {
      node = trie.end[node];
      continue;
    }
    if (const auto ending = trie.tokens_at(node); !ending.empty()) {
      class_of.resize(effects.size(), -1);
      int32_t& found = class_of[effect];
      if (found < 0) {
        found = static_cast<int32_t>(result.begin.size() - 1);
        const auto sources = effects.sources(effect), targets = effects.targets(effect);
        result.sources.insert(result.sources.end(), sources.begin(), sources.end());
        result.targets.insert(result.targets.end(), targets.begin(), targets.end());
        result.begin.push_back(static_cast<uint32_t>(result.sources.size()));
      }
      for (uint32_t token : ending) result.of[token] = found;
    }
    ++node;
  }
  result.complete = result.sources.size() <= max_moves;
  return result;
}

LabelledEdges labelled_edges(std::span<const std::array<int32_t, 3>> moves, size_t states) {
  std::vector<size_t> begins(states + 1);
  for (const auto& move : moves) ++begins[static_cast<size_t>(move[0]) + 1];
  for (size_t state = 0; state < states; ++state) begins[state + 1] += begins[state];
  struct Move {
    int32_t target, copy, of;
    auto operator<=>(const Move&) const = default;
  };
  std::vector<Move> sorted(moves.size());
  std::vector<size_t> next(begins.begin(), begins.end() - 1);
  for (const auto& [source, target, of] : moves) sorted[next[static_cast<size_t>(source)]++] = {target, 0, of};
  LabelledEdges result;
  result.label_begin.push_back(0);
  std::unordered_map<uint64_t, std::vector<int32_t>> known;  // labels by the hash of their classes
  for (size_t state = 0; state < states; ++state) {
    const auto first = sorted.begin() + static_cast<int64_t>(begins[state]), last = sorted.begin() + static_cast<int64_t>(begins[state + 1]);
    std::sort(first, last);
    bool has_copies = false;
    for (auto move = first; move != last; ++move)
      if (move != first && move[-1].target == move->target && move[-1].of == move->of) {
        move->copy = move[-1].copy + 1;
        has_copies = true;
      }
    if (has_copies) std::sort(first, last);  // the n-th copy of a move belongs to the n-th edge between its states
    for (auto move = first; move != last;) {
      auto end = move;
      uint64_t hash = 0;
      for (; end != last && end->target == move->target && end->copy == move->copy; ++end) hash = mixed(hash, static_cast<uint32_t>(end->of));
      std::vector<int32_t>& same_hash = known[hash];
      const auto found = std::find_if(same_hash.begin(), same_hash.end(), [&](int32_t label) {
        const auto begin = result.label_class.begin() + result.label_begin[static_cast<size_t>(label)];
        return result.label_begin[static_cast<size_t>(label) + 1] - result.label_begin[static_cast<size_t>(label)] == end - move &&
               std::equal(move, end, begin, [](const Move& one, int32_t of) { return one.of == of; });
      });
      int32_t label = 0;
      if (found == same_hash.end()) {
        label = static_cast<int32_t>(result.label_begin.size() - 1);
        for (auto one = move; one != end; ++one) result.label_class.push_back(one->of);
        result.label_begin.push_back(static_cast<int64_t>(result.label_class.size()));
        same_hash.push_back(label);
      } else {
        label = *found;
      }
      result.source.push_back(static_cast<int32_t>(state));
      result.target.push_back(move->target);
      result.label.push_back(label);
      move = end;
    }
  }
  return result;
}

}  // namespace structgen

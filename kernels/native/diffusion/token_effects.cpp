#include "diffusion/token_effects.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "diffusion/byte_kinds.h"

namespace structgen {

namespace {

constexpr int32_t kUnknown = -1, kWanted = -2, kNothing = 0;  // effects that are not known yet, and the dead one

constexpr EffectPair paired(size_t first, size_t second) { return EffectPair{first} << 32 | second; }
constexpr size_t first_of(EffectPair pair) { return pair >> 32; }
constexpr size_t second_of(EffectPair pair) { return pair & UINT32_MAX; }

void make_unique(std::vector<EffectPair>& pairs) {
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
}

// Thrown where a limit is met, and caught at the end of the file.
struct Ended {
  TokenEffects::End why;
};

class Effects {
 public:
  Effects(const EffectNetwork& network, size_t max_effects, size_t max_steps, TokenEffects& made)
      : network_(network), kinds_(network.next), max_effects_(max_effects), max_steps_(max_steps), made_(made), calls_(network.states()) {
    std::vector<int32_t> tokens;
    for (const auto& special : network.specials) tokens.push_back(special[1]);
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    specials_ = tokens;
    for (uint8_t byte : kinds_.firsts) {
      columns_.emplace_back();
      for (size_t state = 0; state < network.states(); ++state) columns_.back().push_back(network.next[state * 256 + byte]);
    }
    columns_.resize(columns_.size() + tokens.size(), std::vector<int32_t>(network.states(), -1));
    for (const auto& [state, token, after] : network.specials) columns_[kind_of_special(token)][static_cast<size_t>(state)] = after;
    spend(columns_.size() * network.states() / 4);
    std::vector<size_t> after_calls;
    for (const auto& [state, start, after] : network.calls) {
      calls_[static_cast<size_t>(state)].emplace_back(start, after);
      after_calls.push_back(static_cast<size_t>(after));
    }
    numbered({}, {}, {}, false);
    // A rule that ends before it reads anything ends at the boundary between two tokens, or passes on the whole rest.
    // Neither is an effect of the bytes read here, so in a fresh effect the first byte must be read.
    std::sort(after_calls.begin(), after_calls.end());
    after_calls.erase(std::unique(after_calls.begin(), after_calls.end()), after_calls.end());
    unread_ = fresh(after_calls);
    std::vector<size_t> all(network.states());
    for (size_t state = 0; state < all.size(); ++state) all[state] = state;
    start_ = fresh(all);
  }

  // The effect of each token, level by level of the trie, so that effects are numbered by their first shortest prefix.
  void put_tokens(const TokenTrie& tokens, size_t vocabulary_size) {
    const Trie& trie = tokens.trie();
    made_.of.assign(vocabulary_size, kNothing);
    struct Prefix {
      uint32_t node;
      int32_t effect;
    };
    std::vector<Prefix> level{{0, static_cast<int32_t>(start_)}}, below;
    std::vector<EffectPair> unknown;
    while (!level.empty()) {
      below.clear();
      unknown.clear();
      for (const auto [above, effect] : level)
        for (uint32_t child = trie.child_begin[above]; child < trie.child_begin[above + 1]; ++child) {
          const size_t kind = kinds_.of[trie.child_byte[child]];
          below.push_back({trie.child_node[child], effect});
          if (after(effect, kind) != kUnknown) continue;
          after(effect, kind) = kWanted;
          unknown.push_back(paired(static_cast<size_t>(effect), kind));
        }
      spend(below.size() + unknown.size());
      std::sort(unknown.begin(), unknown.end());
      for (EffectPair pair : unknown) step(first_of(pair), second_of(pair));
      level.clear();
      for (const auto [node, effect] : below) {
        const int32_t then = after(effect, kinds_.of[trie.byte[node]]);
        if (then == kNothing) continue;
        for (uint32_t token : trie.tokens_at(node)) made_.of[token] = then;
        level.push_back({node, then});
      }
    }
    for (int32_t token : specials_) made_.of[static_cast<size_t>(token)] = step(start_, kind_of_special(token));
  }

 private:
  struct StackRead {
    std::vector<int32_t> stacks;  // after the byte
    bool is_left;                 // the callers of the whole stack may read the byte
  };

  size_t kind_of_special(int32_t token) const {
    return kinds_.size() + static_cast<size_t>(std::lower_bound(specials_.begin(), specials_.end(), token) - specials_.begin());
  }
  bool is_single(size_t state) const { return calls_[state].empty(); }
  int32_t& after(int32_t effect, size_t kind) { return after_[static_cast<size_t>(effect) * columns_.size() + kind]; }
  void spend(size_t steps) {
    if ((made_.steps += steps) > max_steps_) throw Ended{TokenEffects::End::kSteps};
  }

  int32_t stack(int32_t below, int32_t top) {
    const auto [found, is_new] = stacks_.try_emplace(paired(static_cast<uint32_t>(below), static_cast<size_t>(top)), static_cast<int32_t>(made_.top.size()));
    if (is_new) {
      made_.below.push_back(below);
      made_.top.push_back(top);
      depth_.push_back(below < 0 ? 1 : depth_[static_cast<size_t>(below)] + 1);
    }
    return found->second;
  }

  // The effect of reading nothing yet, from some states.
  size_t fresh(const std::vector<size_t>& states) {
    std::vector<EffectPair> single, other;
    for (size_t state : states)
      if (is_single(state))
        single.push_back(paired(state, state));
      else
        other.push_back(paired(state, static_cast<size_t>(stack(-1, static_cast<int32_t>(state)))));
    return numbered(single, {}, other, true);
  }

  static uint64_t mixed(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0xFF51AFD7ED558CCD;
    return hash ^ hash >> 32;
  }

  // The number of an effect, whose pairs are ascending.
  size_t numbered(const std::vector<EffectPair>& single, const std::vector<EffectPair>& left, const std::vector<EffectPair>& other, bool is_fresh) {
    uint64_t hash = is_fresh;
    for (const std::vector<EffectPair>* pairs : {&single, &left, &other}) {
      hash = mixed(hash, pairs->size());
      for (EffectPair pair : *pairs) hash = mixed(hash, pair);
    }
    std::vector<size_t>& same_hash = known_[hash];
    for (size_t number : same_hash)
      if (is_fresh_[number] == is_fresh && std::ranges::equal(singles(number), single) && std::ranges::equal(lefts(number), left) &&
          std::ranges::equal(others(number), other))
        return number;
    const size_t number = is_fresh_.size();
    same_hash.push_back(number);
    is_fresh_.push_back(is_fresh);
    const auto append = [](std::vector<EffectPair>& to, std::vector<size_t>& begin, const std::vector<EffectPair>& pairs) {
      to.insert(to.end(), pairs.begin(), pairs.end());
      begin.push_back(to.size());
    };
    append(made_.single, made_.single_begin, single);
    append(made_.left, made_.left_begin, left);
    append(made_.other, made_.other_begin, other);
    after_.insert(after_.end(), columns_.size(), kUnknown);
    spend(columns_.size() / 4);
    if (made_.single.size() + made_.left.size() + made_.other.size() > max_effects_) throw Ended{TokenEffects::End::kEffects};
    return number;
  }
  static std::span<const EffectPair> part(const std::vector<EffectPair>& all, const std::vector<size_t>& begin, size_t number) {
    return std::span(all).subspan(begin[number], begin[number + 1] - begin[number]);
  }
  std::span<const EffectPair> singles(size_t number) const { return part(made_.single, made_.single_begin, number); }
  std::span<const EffectPair> lefts(size_t number) const { return part(made_.left, made_.left_begin, number); }
  std::span<const EffectPair> others(size_t number) const { return part(made_.other, made_.other_begin, number); }

  // The effect after one more byte.
  int32_t step(size_t effect, size_t kind) {
    std::vector<size_t> agenda{effect};
    while (!agenda.empty()) {
      const size_t one = agenda.back();
      if (after(static_cast<int32_t>(one), kind) < 0 && !try_step(one, kind, agenda)) continue;
      agenda.pop_back();
    }
    return after(static_cast<int32_t>(effect), kind);
  }

  // Whether the effect after a byte is known now; otherwise the effects are on the agenda that must take the byte first.
  bool try_step(size_t effect, size_t kind, std::vector<size_t>& agenda) {
    const bool is_fresh = effect == unread_ || effect == start_;
    spend(64 + singles(effect).size() + lefts(effect).size() + 8 * others(effect).size());
    std::vector<EffectPair> before(lefts(effect).begin(), lefts(effect).end()), single, other, left;
    const std::vector<int32_t>& column = columns_[kind];
    const auto reach = [&](size_t source, int32_t state) {
      if (is_single(static_cast<size_t>(state)))
        single.push_back(paired(source, static_cast<size_t>(state)));
      else
        other.push_back(paired(source, static_cast<size_t>(stack(-1, state))));
    };
    for (EffectPair pair : singles(effect)) {
      const size_t state = second_of(pair);
      if (!is_fresh && network_.final[state]) before.push_back(paired(first_of(pair), unread_));  // the caller reads the byte
      if (column[state] >= 0) reach(first_of(pair), column[state]);
    }
    for (EffectPair pair : others(effect)) {
      const StackRead& found = read(static_cast<int32_t>(second_of(pair)), kind, is_fresh);
      if (found.is_left) before.push_back(paired(first_of(pair), unread_));
      spend(2 * found.stacks.size());
      for (int32_t each : found.stacks)
        if (made_.below[static_cast<size_t>(each)] < 0)
          reach(first_of(pair), made_.top[static_cast<size_t>(each)]);
        else
          other.push_back(paired(first_of(pair), static_cast<size_t>(each)));
    }
    std::vector<size_t> needed;
    for (EffectPair pair : before) {
      const size_t rest = second_of(pair);
      const int32_t then = after(static_cast<int32_t>(rest), kind);
      if (then < 0)
        needed.push_back(rest);
      else if (then != kNothing)
        left.push_back(paired(first_of(pair), static_cast<size_t>(then)));
    }
    if (!needed.empty()) {
      std::sort(needed.begin(), needed.end());
      agenda.insert(agenda.end(), needed.begin(), std::unique(needed.begin(), needed.end()));
      return false;
    }
    for (std::vector<EffectPair>* pairs : {&single, &left, &other}) make_unique(*pairs);
    const size_t number = numbered(single, left, other, false);
    after(static_cast<int32_t>(effect), kind) = static_cast<int32_t>(number);
    return true;
  }

  // The stacks after a byte.
  const StackRead& read(int32_t from, size_t kind, bool is_fresh) {
    const EffectPair key = paired(static_cast<size_t>(from), kind * 2 + is_fresh);
    if (const auto known = reads_.find(key); known != reads_.end()) return known->second;
    StackRead made{{}, false};
    const std::vector<int32_t>& column = columns_[kind];
    std::vector<std::pair<int32_t, bool>> seen{{from, false}};  // stacks, and whether a call was entered last
    std::unordered_map<EffectPair, bool> is_seen{{paired(static_cast<size_t>(from), 0), true}};
    const auto add = [&](int32_t one, bool is_entered) {
      if (!is_seen.try_emplace(paired(static_cast<size_t>(one), is_entered), true).second) return;
      if (depth_[static_cast<size_t>(one)] > depth_[static_cast<size_t>(from)] + network_.states()) throw Ended{TokenEffects::End::kRecursion};
      seen.emplace_back(one, is_entered);
    };
    for (size_t i = 0; i < seen.size(); ++i) {
      const auto [one, is_entered] = seen[i];
      const int32_t below = made_.below[static_cast<size_t>(one)];
      const auto top = static_cast<size_t>(made_.top[static_cast<size_t>(one)]);
      spend(32);
      if (column[top] >= 0) made.stacks.push_back(stack(below, column[top]));
      for (const auto& [start, state] : calls_[top]) add(stack(stack(below, state), start), true);
      if (!network_.final[top] || is_entered) continue;  // a call reads something
      if (below >= 0)
        add(below, false);
      else if (!is_fresh)
        made.is_left = true;
    }
    return reads_.emplace(key, std::move(made)).first->second;
  }

  const EffectNetwork& network_;
  ByteKinds kinds_;
  size_t max_effects_, max_steps_;
  TokenEffects& made_;
  std::vector<std::vector<std::pair<int32_t, int32_t>>> calls_;  // by state: start of the rule, state after it
  std::vector<int32_t> specials_;
  std::vector<std::vector<int32_t>> columns_;  // the state after a byte of each kind, or a special token
  std::vector<size_t> depth_;                  // of stacks
  std::unordered_map<EffectPair, int32_t> stacks_;
  std::unordered_map<EffectPair, StackRead> reads_;
  std::unordered_map<uint64_t, std::vector<size_t>> known_;  // effects by the hash of their pairs
  std::vector<uint8_t> is_fresh_;
  std::vector<int32_t> after_;  // [effects, kinds]
  size_t unread_ = 0, start_ = 0;
};

}  // namespace

TokenEffects token_effects(const TokenTrie& tokens, size_t vocabulary_size, const EffectNetwork& network, size_t max_effects, size_t max_steps) {
  TokenEffects made;
  try {
    Effects(network, max_effects, max_steps, made).put_tokens(tokens, vocabulary_size);
  } catch (const Ended& ended) {
    made.end = ended.why;
  }
  return made;
}

}  // namespace structgen
